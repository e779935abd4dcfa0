"""Setups as JSON lines: one answer for each, in order, whatever stands between them."""

import io
from typing import Any

import orjson
import pytest

from fakes.hardware import ROW
from slowtok.proxy.cli.commands.fit import bounded_lines
from slowtok.proxy.cli.fit.asked import FitOptions, question
from slowtok.proxy.cli.fit.batch import MAX_LINE_BYTES, answer, answers
from slowtok.proxy.cli.fit.outlook import outlook, outlook_json

RATE = {"low", "expected", "high", "ceiling"}


def ask(**changes: Any) -> dict[str, Any]:
    return answer(orjson.dumps(ROW | changes), 1)


def test_a_whole_row() -> None:
    found = ask()
    assert list(found) == ["decode_tps", "prefill_tps", "vram_gib", "fits", "basis"]
    decode = found["decode_tps"]
    assert set(decode) == set(found["prefill_tps"]) == RATE
    assert decode["low"] < decode["expected"] < decode["high"] < decode["ceiling"]
    assert found["fits"] is True
    assert found["vram_gib"]["weights"] == pytest.approx(4.58, abs=0.001)
    assert found["vram_gib"]["kv_cache"] == pytest.approx(0.5)  # 512 MiB, as llama.cpp prints
    assert found["basis"][0].startswith("roofline")


def test_numbers_and_text_say_the_same() -> None:
    numbers = {"n_gpus": 1, "vram_gb": 24, "mem_bw_gbs": 1008.1, "params_b": 8.03}
    numbers |= {"weights_gib": 4.58, "n_layers": 32, "context_depth": 4096, "ngl_or_offload": 99}
    assert ask(**numbers) == ask()


@pytest.mark.parametrize("column", sorted(ROW))
def test_anything_may_be_missing(column: str) -> None:
    found = answer(orjson.dumps({k: v for k, v in ROW.items() if k != column}), 1)
    assert "error" not in found
    assert found["decode_tps"]["ceiling"] is None or found["decode_tps"]["ceiling"] > 100
    assert ask(**{column: None}) == ask(**{column: ""}) == found


def test_nothing_known_is_null_with_a_reason() -> None:
    found = answer(b"{}", 1)
    assert set(found["decode_tps"].values()) == {None}
    assert found["fits"] is None
    assert "size" in found["basis"][0]


@pytest.mark.parametrize(
    "setup",
    [
        {"model": "qwen3:8b", "gpu": "RTX 4090"},
        {"model": "qwen3:8b", "gpu": "2 x RTX 3090", "context": "32768", "kv_type": "q8_0"},
        {"params": 8, "quant": "Q4_K_M", "gpu": "RTX 3060 12GB", "context": 8192, "depth": 0},
        {"model": "Qwen3-8B", "quant": "Q6_K", "gpu": "cpu", "ram_bandwidth": 80.0},
    ],
)
def test_options_by_name_are_answered_as_the_command_answers_them(setup: dict[str, Any]) -> None:
    found = answer(orjson.dumps(setup), 1)
    numbers = {name: int(value) for name, value in setup.items() if name == "context"}
    command = outlook_json(outlook(question(FitOptions(**(setup | numbers)), None), None))

    assert found == {name: command[name] for name in found}
    assert found["decode_tps"]["expected"] > 1


def test_a_claimed_rate_is_judged() -> None:
    setup = {"model": "qwen3:8b", "gpu": "RTX 4090", "claim": 17000}
    assert answer(orjson.dumps(setup), 1)["claim"]["possibility"] == "impossible"


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ({"params": "many", "quant": "Q4_0", "gpu": "4090"}, "params is not a number: 'many'"),
        ({"params": 8, "context": 1.5, "gpu": "4090"}, "context is not a whole number: '1.5'"),
        ({"params": 8, "quant": "Q4_0"}, "no gpu: name one, or cpu for none"),
        (
            {"params": 8, "quant": "Q4_0", "gpu": "RTX 9999"},
            "--gpu RTX 9999: slowtok's table of GPUs",
        ),
        ({"params": 8, "quant": "Q4_0", "gpu": "4090", "claim": 0}, "--claim 0: must be more"),
    ],
)
def test_a_bad_option_is_named(setup: dict[str, Any], said: str) -> None:
    assert answer(orjson.dumps(setup), 7)["error"].startswith(f"line 7: {said}")


def test_a_name_that_nobody_knows_is_null_with_a_reason() -> None:
    found = answer(b'{"model": "nobodys-9b", "gpu": "RTX 4090"}', 1)
    assert set(found["decode_tps"].values()) == {None}
    assert found["basis"][0].startswith("nobodys-9b: there is no such file, and slowtok")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"gpu,model", "not JSON"),
        (b'{"gpu": "x"', "not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b'\xff{"gpu": 1}', "not JSON"),
        (b'{"params_b": "many"}', "params_b is not a number: 'many'"),
        (b'{"params_b": true}', "params_b is not a number"),
        (b'{"params_b": {"a": 1}}', "params_b is not a number"),
        (b'{"params_b": 8, "quant": "Q4_0", "context_depth": -1}', "context_depth is out of range"),
        (b'{"n_gpus": 1e8, "params_b": 8, "quant": "Q4_0"}', "n_gpus"),
        (b'{"params_b": 8, "quant": "Q4_0", "n_layers": 1e8}', "n_layers"),
        (b" " * (MAX_LINE_BYTES + 1), "longer than"),
    ],
)
def test_a_bad_line_is_named(line: bytes, said: str) -> None:
    found = answer(line, 7)
    assert found["error"].startswith("line 7: ")
    assert said in found["error"]
    assert len(found["error"]) < 200


def test_the_rest_goes_on_and_blank_lines_are_no_setups() -> None:
    good = orjson.dumps(ROW)
    found = list(answers([good, b"\n", b"bad\n", b"   \n", good]))
    assert [each.get("line") for each in found] == [None, 3, None]
    assert found[0] == found[2]


def test_a_huge_line_costs_its_beginning_only() -> None:
    stream = io.BytesIO(b"{" + b" " * (3 * MAX_LINE_BYTES) + b"}\n" + orjson.dumps(ROW))
    first, second = bounded_lines(stream)
    assert len(first) == MAX_LINE_BYTES + 1
    assert answer(second, 2) == ask()


def test_a_file_larger_than_the_card_is_answered_with_a_split() -> None:
    found = ask(weights_gib=40, params_b="70.55", n_layers=80, context_depth=0, ngl_or_offload=99)
    whole = ask(weights_gib=40, params_b="70.55", n_layers=80, context_depth=0, vram_gb=80)
    assert found["fits"] is False
    assert whole["fits"] is True
    assert found["decode_tps"]["high"] < whole["decode_tps"]["low"]
    assert any("of 80 layers on GPUs" in line for line in found["basis"])
    assert any("60 GB/s assumed" in line for line in found["basis"])


@pytest.mark.parametrize(
    ("said", "slower"),
    [("99", 1.0), ("all", 1.0), ("ngl 20/33", 3.0), ("16", 4.0), ("99, no-kv-offload", 1.5)],
)
def test_layers_and_cache_in_ram_are_as_slow_as_they_are(said: str, slower: float) -> None:
    expected, whole = (ask(ngl_or_offload=o)["decode_tps"]["expected"] for o in (said, "99"))
    assert whole / expected >= slower


def test_a_cpu_of_unknown_ram_gets_a_wide_band_and_no_ceiling() -> None:
    cpu = {"gpu": "CPU Ryzen 9", "ngl_or_offload": "cpu", "mem_bw_gbs": None, "vram_gb": None}
    found = ask(**cpu)["decode_tps"]
    told = ask(**(cpu | {"mem_bw_gbs": 60}))["decode_tps"]
    assert found["ceiling"] is None
    assert found["low"] < told["low"]
    assert found["high"] > told["high"]
    assert found["expected"] == told["expected"]


def test_speculation_has_no_ceiling() -> None:
    assert ask(backend="llama.cpp CUDA + MTP n=2")["decode_tps"]["ceiling"] is None
    assert ask(model="Llama-3-8B-MTP-GGUF")["decode_tps"]["ceiling"] is None


def test_one_bit_weights_have_a_ceiling_and_no_band() -> None:
    found = ask(quant="Q1_0", weights_gib=1.1)
    assert found["decode_tps"]["low"] is None
    assert found["decode_tps"]["ceiling"] > 0
    assert any("2 bits or less" in line for line in found["basis"])
