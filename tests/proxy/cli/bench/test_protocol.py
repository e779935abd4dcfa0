"""What a benchmark sends, and what it takes from a record."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from slowtok.proxy.cli.bench.advice import again, next_steps
from slowtok.proxy.cli.bench.figures import figures_of, run_of
from slowtok.proxy.cli.bench.protocol import STANDARD_PROMPT, WARM_UP_RULES, Protocol
from slowtok.proxy.cli.bench.result import BadResult, Result, read_result, setup_of
from slowtok.proxy.cli.demo.shots import Shot
from slowtok.proxy.inspection.check import Check

SIZED = Protocol(rules=40)
WITHOUT_VALUES = (
    b'{"event":"bench","schema":1,"at":"","protocol":{},"setup":{},"runs":[],'
    b'"figures":[{"name":"a","unit":"b","values":[],"more_is_better":true}]}'
)


def text(shot: Shot) -> str:
    [message] = shot.body["messages"]
    return str(message["content"])


def record(**more: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "verdict": "normal",
        "rate": {"decode_tps": 50.0, "prefill_tps": 900.0},
        "tokens": {"prompt": 500, "cached": 20, "completion": 512},
        "expected": {"decode_low_tps": 40.0, "decode_high_tps": 60.0},
        **more,
    }


def finding(cause: str, lost_ms: float = 1000, **more: Any) -> dict[str, Any]:
    return {
        "cause": cause,
        "confidence": 0.9,
        "lost_ms": lost_ms,
        "remedy": f"cure {cause}",
        **more,
    }


def test_three_runs_of_each_in_turn() -> None:
    shots = SIZED.shots("ab12", "llama-server")

    assert [s.label for s in shots] == [
        "prefill 1", "decode 1", "prefill 2", "decode 2", "prefill 3", "decode 3",
    ]  # fmt: skip
    assert [s.tokens for s in shots[:2]] == [8, 512]
    assert all(s.body["temperature"] == 0 and s.stream for s in shots)


def test_decode_runs_are_those_of_every_benchmark() -> None:
    one, other = ([text(s) for s in SIZED.shots(n, "vllm")[1::2]] for n in ("ab12", "cd34"))

    assert one == other
    assert len(set(one)) == 3
    assert all(STANDARD_PROMPT in prompt for prompt in one)


def test_no_prefill_run_shares_a_line_with_another() -> None:
    prompts = [text(s) for nonce in ("ab12", "cd34") for s in SIZED.shots(nonce, "")[0::2]]
    rules = [set(prompt.splitlines()[1:-1]) for prompt in prompts]

    assert len(set().union(*rules)) == sum(len(lines) for lines in rules) == 6 * 40


@pytest.mark.parametrize(("kind", "sent"), [("llama-server", True), ("ollama", False)])
def test_only_engines_that_know_it_are_told_to_go_on(kind: str, sent: bool) -> None:
    assert ("ignore_eos" in SIZED.shots("ab12", kind)[1].body) is sent


@pytest.mark.parametrize(
    ("prefill_tps", "context_tokens", "tokens"),
    [(10_000, None, 2048), (50, None, 750), (5, None, 320), (10_000, 1024, 864)],
)
def test_a_prefill_prompt_suits_the_machine(
    prefill_tps: float, context_tokens: int | None, tokens: int
) -> None:
    warm_up = record(rate={"prefill_tps": prefill_tps}, tokens={"prompt": 20 * WARM_UP_RULES})
    rules = Protocol().sized(warm_up, context_tokens).rules

    assert rules is not None
    assert 20 * rules == pytest.approx(tokens, abs=20)


def test_a_size_that_is_given_stays() -> None:
    assert SIZED.sized(record(), 512).rules == 40


def test_own_prompt_gives_both_rates_and_never_its_text() -> None:
    own = Protocol(own_prompt="a secret plan", runs=2)

    assert [s.label for s in own.shots("ab12", "")] == ["run 1", "run 2"]
    assert "secret" not in repr(own) + str(own.facts())
    assert own.facts()["prompt"].startswith("sha256:")
    run = run_of("run 1", record())
    assert (run.decode_tps, run.prefill_tps) == (50.0, 900.0)


def test_each_kind_of_run_gives_its_own_rate() -> None:
    runs = [run_of("prefill 1", record()), run_of("decode 1", record()), run_of("decode 2", {})]
    figures = figures_of(runs)

    assert [(f.name, f.values, f.spread) for f in figures] == [
        ("decode_tps", (50.0,), None),
        ("prefill_tps", (900.0,), None),
    ]
    assert runs[2].verdict == "unknown"


def test_energy_needs_every_gpu() -> None:
    told, silent = {"energy_j_per_token": 1.5}, {"index": 1}

    assert run_of("decode 1", record(gpu=[told, told])).energy_j_per_token == 3.0
    assert run_of("decode 1", record(gpu=[told, silent])).energy_j_per_token is None


def test_a_cache_that_was_avoided_on_purpose_is_no_cause() -> None:
    missed = finding("prompt-cache-miss")
    alone = run_of("run 1", record(verdict="slow", phase="prefill", findings=[missed]))
    beside = run_of(
        "run 1", record(verdict="slow", phase="prefill", findings=[missed, finding("queued")])
    )

    assert (alone.verdict, alone.findings) == ("unknown", ())
    assert [f["cause"] for f in beside.findings] == ["queued"]
    assert beside.verdict == "slow"


def test_the_costliest_cause_is_tried_first_then_what_the_doctor_says() -> None:
    runs = [
        run_of("decode 1", record(verdict="slow", findings=[finding("power-cap", 100)])),
        run_of("decode 2", record(verdict="slow", findings=[finding("queued", 60)])),
        run_of("decode 3", record(verdict="slow", findings=[finding("queued", 70)])),
    ]
    checks = [
        Check(area="gpu", name="power", state="ok", said="fine", advice="none"),
        Check(area="flags", name="threads", state="warn", said="too many", advice="fewer"),
        Check(area="flags", name="slots", state="warn", said="too few", advice="more"),
    ]

    steps = next_steps(runs, checks)

    assert [(s.do, s.said_by) for s in steps] == [
        ("cure queued", "diagnosis"),
        ("cure power-cap", "diagnosis"),
        ("fewer", "doctor"),
    ]
    assert steps[0].lost_ms == 130
    assert next_steps([run_of("decode 1", record())], checks[:1]) == []


def test_the_command_again_can_be_pasted() -> None:
    said = again(Path("/tmp/my results/a.json"), [("--model", "a b"), ("--listen", None)])

    assert said == "slowtok bench --model 'a b' --compare '/tmp/my results/a.json'"


def test_a_result_is_read_as_it_was_written() -> None:
    runs = (run_of("decode 1", record(verdict="slow", findings=[finding("queued")])),)
    result = Result(
        at="2026-11-20T10:00:00Z",
        protocol=Protocol(rules=9).facts(),
        setup={"model": {"name": "m"}},
        figures=tuple(figures_of(runs)),
        runs=runs,
    )

    assert read_result(orjson.dumps(result.as_json())) == result


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"event":"request"}',
        b'{"event":"bench","schema":2}',
        WITHOUT_VALUES,
    ],
)
def test_another_file_is_no_result(content: bytes) -> None:
    with pytest.raises(BadResult):
        read_result(content)


def test_setup_leaves_out_what_changes_by_itself() -> None:
    engine = {"kind": "ollama", "pid": 7, "uptime_s": 3.0, "threads": 4, "answers": True}
    status = {
        "version": "1",
        "engines": [{"models": [{"name": "other"}]}, {**engine, "models": [{"name": "m"}]}],
        "gpus": [{"index": 0, "name": "RTX", "now": {"power_w": 9}}],
    }

    assert setup_of(status, "m") == {
        "slowtok": "1",
        "engine": {"kind": "ollama", "threads": 4},
        "model": {"name": "m"},
        "machine": {},
        "gpus": [{"index": 0, "name": "RTX"}],
    }
