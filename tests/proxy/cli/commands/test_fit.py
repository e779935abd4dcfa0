"""`slowtok fit`, run as a user runs it: the real small model, numbers, claims, JSON lines."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from fakes.commands import SLOWTOK, WAIT_S, environment, run
from slowtok.proxy.cli.commands.fit import billions

# Where the demo keeps its model.
GGUF_FILE = Path.home() / ".cache/slowtok/SmolLM2-135M-Instruct.Q4_1.gguf"
ROW = {
    "gpu": "NVIDIA GeForce RTX 4090", "model": "Qwen3-8B", "quant": "Q4_K_M", "weights_gib": 4.68,
    "context_depth": 100, "vram_gb": "24",
}  # fmt: skip
NUMBERS = ("--params", "8.03", "--quant", "Q4_K_M", "--layers", "32", "--kv-heads", "8",
           "--head-dim", "128", "--gpu", "RTX 3060")  # fmt: skip


def test_numbers_for_people_on_80_columns() -> None:
    done = run("fit", *NUMBERS, "--claim", "50", env={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    for said in ("KV cache", "0.50", "It fits", "decode at 2,048 tokens", "plausible", "ceiling"):
        assert said in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stderr == ""


def test_the_claim_of_17000() -> None:
    done = run("fit", "Qwen3-8B", "--quant", "Q4_K_M", "--gpu", "RTX 5090", "--claim", "17000")
    assert done.returncode == 0
    assert "impossible" in done.stdout
    assert "45.5 times what the memory can deliver" in " ".join(done.stdout.split())


def test_json_is_one_object() -> None:
    done = run("fit", *NUMBERS, "--json", "--context", "8192")
    found = json.loads(done.stdout)
    assert found["vram_gib"]["kv_cache"] == 1.0
    assert found["context_tokens"] == 8192


@pytest.mark.skipif(not GGUF_FILE.exists(), reason="the demo's model is not in the cache")
def test_a_real_file(tmp_path: Path) -> None:
    done = run("fit", str(GGUF_FILE), "--gpu", "RTX 3060", "--json", "--state-dir", str(tmp_path))
    found = json.loads(done.stdout)
    assert found["layers"] == 30
    # 30 layers x 3 heads x 128 values x 2 bytes x 4,096 tokens
    assert found["vram_gib"]["kv_cache"] == round(23040 * 4096 / 2**30, 3)
    assert not any("assumed" in line for line in found["basis"])


def test_the_machine_that_is_here(tmp_path: Path) -> None:
    done = run("fit", *NUMBERS[:-2], "--json", "--state-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["vram_gib"]["available"] > 0


def test_ram_bandwidth_that_was_given(tmp_path: Path) -> None:
    named = ("--gpu", "cpu", "--json", "--state-dir", str(tmp_path))
    slow, fast = (
        json.loads(run("fit", *NUMBERS[:-2], *named, "--ram-bandwidth", given).stdout)
        for given in ("20", "80")
    )

    assert fast["decode_tps"]["high"] > 2 * slow["decode_tps"]["high"]


@pytest.mark.parametrize("command", ["fit", "serve", "doctor", "demo"])
def test_ram_bandwidth_that_is_no_number_is_one_line(command: str) -> None:
    done = run(command, "--ram-bandwidth", "fast")

    assert done.returncode == 2
    assert done.stderr.strip() == (
        "slowtok: ram_bandwidth = 'fast' (from arguments): expected a number"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no model was named"),
        (("--params", "8"), "--params 8: the type of the weights is missing"),
        (("--params", "8", "--quant", "Q9", "--gpu", "cpu"), "--quant Q9: not a known type; known"),
        ((*NUMBERS, "--engine", "foo"), "--engine foo: not one of llama.cpp, llama-server"),
        (("--params", "8", "--quant", "Q4_K_M", "--gpu", "RTX4091"), "NVIDIA GeForce RTX 4090"),
        (("/", "--gpu", "cpu"), "as a Hugging Face folder: it has no config.json"),
        (("nowhere/there/m.gguf", "--gpu", "cpu"), "nowhere/there/m.gguf: no such file or folder"),
        ((__file__, "--gpu", "cpu"), "cannot be read as a GGUF file"),
        (("--gpu", "RTX 1", *NUMBERS[:-2]), "--gpu RTX 1: slowtok's table of GPUs"),
        ((*NUMBERS, "--compare", "RTX 1"), "--gpu RTX 1: slowtok's table of GPUs"),
        ((*NUMBERS, "--compare", "RTX 4090,"), "--compare: expected the name of a GPU"),
        ((*NUMBERS, "--compare", "4090", "--claim", "9"), "--claim judges one machine"),
        ((*NUMBERS, "--claim", "0"), "--claim 0: must be more than 0"),
        ((*NUMBERS, "--claim", "nan"), "--claim nan: must be more than 0"),
        ((*NUMBERS, "--claim", "inf"), "--claim inf: must be a finite number"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: tuple[str, ...], said: str) -> None:
    done = run("fit", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_batch_answers_each_line_at_once_and_goes_on() -> None:
    process = subprocess.Popen(
        [*SLOWTOK, "fit", "--batch"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for line, key in ((json.dumps(ROW), "decode_tps"), ("bad", "error"), ("{}", "fits")):
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()  # standard input stays open: the answer must not wait for its end
            assert key in json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(WAIT_S) == 1
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("columns", ["60", "80", "120"])
@pytest.mark.parametrize("more", [(), ("--compare", "2 x RTX 3090, M4 Max 64GB")])
def test_tables_and_commands_fit_the_columns_without_colours(
    columns: str, more: tuple[str, ...]
) -> None:
    asked = ("fit", "gpt-oss:20b", "--gpu", "RTX 3060 12GB", "--kv-type", "q8_0", *more)
    done = run(*asked, env={"COLUMNS": columns, "NO_COLOR": "1"})

    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= int(columns)
    assert "\x1b" not in done.stdout
    said = ("2 x NVIDIA GeForce", "Apple M4 Max") if more else ("128k", "ollama run gpt-oss:20b")
    assert all(words in done.stdout for words in said)


def test_json_has_the_table_the_commands_and_the_other_machines() -> None:
    asked = ("fit", "qwen3:8b", "--gpu", "RTX 3060", "--json", "--compare", "RTX 4090")
    found = json.loads(run(*asked).stdout)

    assert [row["quantisation"] for row in found["table"]][:2] == ["Q4_K_M", "Q5_K_M"]
    assert [each["engine"] for each in found["commands"]] == ["llama-server", "Ollama"]
    assert [each["engine"] for each in found["compare"][0]["commands"]][-1] == "vLLM"


@pytest.mark.parametrize(("text", "expected"), [("8", 8), ("8B", 8), ("0.5b", 0.5), ("500M", 0.5)])
def test_numbers_of_weights_may_have_their_letter(text: str, expected: float) -> None:
    assert billions(text) == expected


def test_number_of_weights_that_is_none_is_said_in_words() -> None:
    ended = run("fit", "--params", "8x", "--quant", "Q4_K_M")

    assert ended.returncode == 2
    assert "'8x' is not a number of weights" in ended.stderr


PAGE = Path(__file__).resolve().parents[4] / "docs/fit.md"


@pytest.mark.parametrize(
    "block",
    re.findall(r"^```\n\$ slowtok (.*?)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL),
    ids=lambda block: block[0],
)
def test_the_page_shows_what_is_printed(block: tuple[str, str]) -> None:
    done = run(*shlex.split(block[0]), env={"COLUMNS": "80"})

    assert [line.rstrip() for line in done.stdout.splitlines()] == block[1].splitlines()


@pytest.mark.parametrize("command", re.findall(r"`slowtok (fit [^`]*)`", PAGE.read_text()))
def test_commands_of_the_page_work(command: str) -> None:
    done = run(*shlex.split(command))

    assert (done.returncode, done.stderr) == (0, "")
