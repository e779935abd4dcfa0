"""Whole replies without timings: what only read a prompt, and what is estimated."""

from dataclasses import replace
from typing import Any

import pytest

from slowtok.detectors.case.case import EngineTimings, Phases, Timeline, Tokens
from slowtok.proxy.stream.phases import estimate, split

READ = Tokens(prompt=900, completion=0)
ANSWERED = Tokens(prompt=300, cached=100, completion=41)


def whole(tokens: Tokens, engine: EngineTimings | None = None, **changes: Any) -> Timeline:
    return Timeline(
        request_id="1",
        path="/",
        stream=False,
        started_unix_s=0.0,
        accepted_at_s=0.0,
        sent_at_s=1.0,
        headers_at_s=4.0,
        last_byte_at_s=4.0,
        tokens=tokens,
        engine=engine,
        **changes,
    )


def test_what_only_reads_is_all_prefill_where_it_was_alone() -> None:
    phases = split(whole(READ))

    assert (phases.source, phases.prefill_s, phases.decode_s) == ("stream", 3.0, None)
    assert phases.prefill_tps == 300.0
    assert (phases.prefill_from_at_s, phases.decode_from_at_s) == (1.0, 4.0)
    assert phases.decode_tps is None


def test_beside_others_its_time_may_be_a_queue() -> None:
    phases = split(whole(READ), alone=False)

    assert (phases.prefill_s, phases.prefill_tps, phases.queue_s) == (None, None, None)


def test_ollama_tells_its_load_and_its_prefill() -> None:
    phases = split(whole(READ, EngineTimings(load_s=1.0, prefill_s=1.5)))

    assert (phases.source, phases.load_s, phases.prefill_s) == ("engine", 1.0, 1.5)
    assert phases.queue_s == 0.5
    assert (phases.prefill_from_at_s, phases.decode_from_at_s) == (2.5, 4.0)


def estimated(
    timeline: Timeline,
    *,
    prefill_tps: float | None = 200.0,
    decode_tps: float | None = 40.0,
    choices: int = 1,
) -> Phases:
    phases = split(timeline, choices=choices)
    return estimate(
        phases, timeline, choices=choices, prefill_tps=prefill_tps, decode_tps=decode_tps
    )


def test_an_estimate_slows_both_parts_by_the_same_factor() -> None:
    phases = estimated(whole(ANSWERED))  # 1 s each was to be expected, and there were 3 s

    assert phases.source == "estimate"
    assert (phases.prefill_s, phases.decode_s) == (1.5, 1.5)
    assert phases.prefill_tps == pytest.approx(200 / 1.5)
    assert phases.decode_tps == pytest.approx(40 / 1.5)
    assert phases.decode_from_at_s is None  # when, nobody knows


def test_several_answers_decode_side_by_side() -> None:
    phases = estimated(whole(replace(ANSWERED, completion=82)), choices=2)

    assert (phases.prefill_s, phases.decode_s) == (1.5, 1.5)
    assert phases.decode_tps == pytest.approx(40 / 1.5)


@pytest.mark.parametrize(
    ("timeline", "rates"),
    [
        pytest.param(whole(ANSWERED), {"prefill_tps": None}, id="no rate to be expected"),
        pytest.param(whole(ANSWERED), {"decode_tps": None}, id="nor for decode"),
        pytest.param(whole(Tokens()), {}, id="no counts"),
        pytest.param(whole(Tokens(prompt=3)), {}, id="half of them"),
        pytest.param(whole(Tokens(prompt=0, completion=1)), {}, id="nothing to do"),
        pytest.param(whole(READ), {}, id="nothing generated: that is no estimate"),
        pytest.param(
            whole(ANSWERED, EngineTimings(prefill_s=1.0, decode_s=1.0)), {}, id="the engine tells"
        ),
        pytest.param(replace(whole(ANSWERED), stream=True), {}, id="arrivals tell"),
        pytest.param(replace(whole(ANSWERED), last_byte_at_s=None), {}, id="cut off"),
    ],
)
def test_nothing_is_estimated_without_need_or_ground(
    timeline: Timeline, rates: dict[str, Any]
) -> None:
    assert estimated(timeline, **rates) == split(timeline)
