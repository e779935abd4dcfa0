"""`slowtok bench` against a real llama-server, and what it says where it cannot run."""

import json
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.commands import SLOWTOK, environment, keep_ram_bandwidth, run
from fakes.engine import RunningEngine, real_engine
from fakes.running import running_proxy
from slowtok.config.settings import load
from slowtok.proxy.cli.bench import stage
from slowtok.proxy.cli.bench.stage import BenchModelError, _listed
from slowtok.proxy.cli.commands.bench import BenchOptions, run_bench

NOBODY = "127.0.0.1:9"
LONG_S = 180.0
FEW = ("--tokens", "32", "--runs", "2")


@pytest.fixture(scope="module")
def llama_server() -> Iterator[RunningEngine]:
    with real_engine() as running:
        yield running


def bench(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command; on a busy machine it takes its time."""
    return subprocess.run(
        [*SLOWTOK, "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
        env=environment(**env),
    )


def result_file(path: Path, **protocol: object) -> Path:
    """A small result of before, with so short a prefill prompt that nobody waits for it."""
    figure = {"unit": "tokens/s", "more_is_better": True}
    path.write_text(
        json.dumps(
            {
                "event": "bench",
                "schema": 1,
                "at": "2026-11-20T10:00:00Z",
                "protocol": {"prompt": "standard", "tokens": 32, "runs": 2, "prefill_rules": 8}
                | protocol,
                "setup": {"engine": {"threads": 64}},
                "figures": [
                    {"name": "decode_tps", "values": [1e6, 1e6], **figure},
                    {"name": "prefill_tps", "values": [1e6, 1e6], **figure},
                ],
                "runs": [],
            }
        )
    )
    return path


@pytest.mark.engine_speed
@pytest.mark.engine
def test_measures_through_the_running_slowtok_and_compares(
    llama_server: RunningEngine, tmp_path: Path
) -> None:
    keep_ram_bandwidth(tmp_path / "state")
    before, after = result_file(tmp_path / "before.json"), tmp_path / "after.json"
    with running_proxy(tmp_path / "state", llama_server.url) as proxy:
        said = bench(
            *("--listen", proxy.url.removeprefix("http://"), "--json"),
            *("--compare", str(before), "--save", str(after)),
            *("--state-dir", str(tmp_path / "other")),
        )
        records = proxy.get("/slowtok/requests")

    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert [run["label"] for run in found["runs"]] == [
        "prefill 1", "decode 1", "prefill 2", "decode 2",
    ]  # fmt: skip
    assert {run["id"] for run in found["runs"]} < {record["id"] for record in records}
    assert [(c["name"], c["outcome"]) for c in found["compared"]["changes"]] == [
        ("decode_tps", "worse"),
        ("prefill_tps", "worse"),
    ]
    differ = {d["name"]: (d["before"], d["after"]) for d in found["compared"]["differences"]}
    assert differ["engine.threads"] == (64, 2)
    assert not {name for name in differ if name.startswith("protocol")}
    assert all(
        run.get("cached_tokens", 0) < 40 for run in found["runs"] if "prefill" in run["label"]
    )
    assert all(f["cause"] != "prompt-cache-miss" for r in found["runs"] for f in r["findings"])
    assert found["again"].endswith(f"--compare {after}")
    saved = json.loads(after.read_bytes())
    assert saved["figures"] == found["figures"]
    if sys.platform != "win32":
        assert stat.S_IMODE(after.stat().st_mode) == 0o600


@pytest.mark.engine_speed
@pytest.mark.engine
def test_brings_a_slowtok_of_its_own_and_takes_an_own_prompt(
    llama_server: RunningEngine, tmp_path: Path
) -> None:
    keep_ram_bandwidth(tmp_path)
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Tell me of a very secret garden.")
    said = bench(
        *("--listen", NOBODY, "--upstream", llama_server.url, *FEW),
        *("--prompt", str(prompt), "--state-dir", str(tmp_path)),
        COLUMNS="80",
    )

    assert said.returncode == 0, said.stderr
    assert "through slowtok of its own" in said.stdout.replace("\n", " ")
    assert re.search(r"^decode +[\d.]+ tokens/s +median of 2", said.stdout, re.MULTILINE)
    assert re.search(r"^prefill +[\d.]+ tokens/s +median of 2", said.stdout, re.MULTILINE)
    assert f"--prompt {prompt} --compare {tmp_path / 'bench.json'}" in said.stdout
    assert all(len(line) <= 80 for line in said.stdout.splitlines() if "--compare" not in line)
    assert "secret" not in (tmp_path / "bench.json").read_text() + said.stdout


def test_no_engine_is_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stage, "ENGINE_S", 0.2)
    settings = load(
        {"listen": NOBODY, "upstream": [f"http://{NOBODY}"], "state_dir": str(tmp_path)}, {}
    )

    assert run_bench(settings, BenchOptions()) == 3
    assert capsys.readouterr().err == (
        f"slowtok: no engine answers (http://{NOBODY}); --upstream URL names one\n"
    )


def test_a_file_that_cannot_be_used_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    own = result_file(tmp_path / "own.json", prompt="sha256:1234")
    cases = {
        ("--compare", str(tmp_path / "none.json")): "No such file",
        ("--compare", str(other)): "this is not a result of slowtok bench",
        ("--compare", str(own)): "another prompt",
        ("--prompt", str(tmp_path / "none.txt")): "No such file",
        ("--save", str(tmp_path / "none" / "a.json")): "no such folder",
        ("--save", str(tmp_path)): "it is a directory",
    }
    for arguments, reason in cases.items():
        said = run("bench", "--listen", NOBODY, "--state-dir", str(tmp_path), *arguments)
        assert (said.returncode, said.stdout) == (2, ""), arguments
        assert reason in said.stderr
        assert said.stderr.startswith(f"slowtok: {arguments[0]} {arguments[1]}: ")


@pytest.mark.parametrize(
    ("wanted", "names", "said"),
    [
        ("smolm2", ["smollm2-135m", "qwen3"], "did you mean smollm2-135m?"),
        ("qwen", ["smollm2-135m", "qwen3"], "did you mean qwen3?"),
        ("zzz", ["b", "a"], "listed: a, b"),
    ],
)
def test_a_model_that_no_engine_lists(wanted: str, names: list[str], said: str) -> None:
    with pytest.raises(BenchModelError, match=f"no engine lists it; {re.escape(said)}"):
        _listed(wanted, names)


@pytest.mark.parametrize(
    ("wanted", "names"), [("a", ["a", "b"]), ("a", []), ("a", ["a:latest", "b"])]
)
def test_a_model_that_is_listed_or_where_nothing_is(wanted: str, names: list[str]) -> None:
    assert _listed(wanted, names) == wanted
