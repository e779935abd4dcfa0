"""What others' prompts cost a request that had a slot, and when they are named."""

from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import case as healthy_with
from fakes.cases import with_phases, with_server, with_tokens
from fakes.cause_tests import fires, quiet, unnamed
from slowtok.detectors.case.case import Case, Concurrency, History, Neighbours
from slowtok.detectors.causes.server import batch_shared
from slowtok.detectors.diagnosis.diagnose import diagnose

OWN_PREFILL_TPS = 700.0


def behind(at_engine: Concurrency, **server: Any) -> Case:
    """A short chat that waited 13.6 s although the engine had another slot."""
    waited = with_server(healthy_with(queue_s=13.6), **{"slots": 4, "batch_tokens": 2048, **server})
    return replace(waited, neighbours=Neighbours(waiting=at_engine, counted=True))


def beside(at_engine: Concurrency, *, prefill_s: float = 4.0) -> Case:
    """A prompt of 700 tokens that takes one second alone."""
    read = replace(healthy_with(prefill_s=prefill_s), prompt=None)
    read = with_tokens(read, prompt=700, cached=0)
    read = with_phases(read, prefill_tps=700 / prefill_s)
    neighbours = Neighbours(prefill=at_engine, counted=True)
    return replace(read, neighbours=neighbours, history=History(best_prefill_tps=OWN_PREFILL_TPS))


QUIET = [
    pytest.param(
        behind(Concurrency(looks=9, full_ratio=0.0)), id="a wait, and nobody's prompt was read"
    ),
    pytest.param(
        behind(Concurrency(reading_s=3.0, reading_id="x")),
        id="a prompt for less than half of the wait",
    ),
    pytest.param(
        behind(Concurrency(looks=9, full_ratio=1.0, others_reading_ratio=1.0)),
        id="no slot was free",
    ),
    pytest.param(
        with_phases(behind(Concurrency(reading_s=13.0)), queue_s=0.1),
        id="a burst that slows nothing",
    ),
    pytest.param(
        beside(Concurrency(reading_s=1.0), prefill_s=1.3), id="beside another, and as fast"
    ),
    pytest.param(beside(Concurrency()), id="a slow prefill, and nobody's prompt beside it"),
]
PRESENT = [
    pytest.param(
        with_phases(
            behind(Concurrency(reading_s=13.5)), decode_s=60.0, decode_tps=449 / 60, total_s=74.0
        ),
        id="a wait for another's prompt, and a slower decode of its own",
    ),
]
FIRING = [
    pytest.param(
        behind(Concurrency(reading_s=13.5, reading_id="0199f3c2-9")),
        "queue",
        13.5,
        "the prompt of request 0199f3c2-9",
        id="through the proxy: by its id",
    ),
    pytest.param(
        behind(Concurrency(looks=20, full_ratio=0.0, others_reading_ratio=0.9)),
        "queue",
        12.24,
        "a request that did not come through this proxy",
        id="past the proxy",
    ),
    pytest.param(
        behind(Concurrency(reading_s=13.5)),
        "queue",
        13.5,
        "--batch-size 512 (2048 now)",
        id="remedy",
    ),
    pytest.param(
        behind(Concurrency(reading_s=13.5), kind="vllm"),
        "queue",
        13.5,
        "--max-num-batched-tokens 512 and --enable-chunked-prefill (2048 now)",
        id="vLLM",
    ),
    pytest.param(
        behind(Concurrency(reading_s=13.5), batch_tokens=256),
        "queue",
        13.5,
        "shorter waits, give long prompts an engine of their own",
        id="batches are small already",
    ),
    pytest.param(
        beside(Concurrency(reading_s=3.5, reading_id="x")),
        "prefill",
        3.0,
        "request x",
        id="together",
    ),
    pytest.param(
        beside(Concurrency(others_reading_ratio=0.5)), "prefill", 2.0, "did not come", id="hidden"
    ),
]


test_quiet = quiet(batch_shared, QUIET)
test_present_without_cost = unnamed(batch_shared, PRESENT)
test_fires = fires(batch_shared, "phase lost_s said", FIRING)


@pytest.mark.parametrize(
    ("case", "phase"), [pytest.param(*row.values[:2], id=row.id) for row in FIRING]
)
def test_makes_its_phase_slow(case: Case, phase: str) -> None:
    diagnosis = diagnose(case)

    assert (diagnosis.verdict, diagnosis.phase) == ("slow", phase)
    assert next(iter(diagnosis.findings)) == "batch-shared"
    assert "queued" not in diagnosis.findings
