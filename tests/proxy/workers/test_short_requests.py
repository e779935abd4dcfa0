"""Which requests a worker judges by itself."""

from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import healthy
from slowtok.detectors.analysis.phase_loss import MIN_WAIT_S
from slowtok.detectors.case.case import Baseline, Case, Envelope
from slowtok.proxy.observe.setups import setup_key
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.meter import Meter
from slowtok.proxy.stream.reply import ChoiceTimings
from slowtok.proxy.workers.short_requests import ShortRequests

PATH = "/v1/chat/completions"
ENGINE = "gpu box"
TIMED = ChoiceTimings(
    prompt_tokens=120,
    cached_tokens=20,
    completion_tokens=9,
    prefill_s=0.01,
    decode_s=0.04,
    drafted=None,
    accepted=None,
)


def exchange(took_s: float = 0.1, timed: ChoiceTimings | None = TIMED, **more: Any) -> Exchange:
    """A whole reply of an engine with timings."""
    made = Exchange(
        request_id="a",
        method="POST",
        path=PATH,
        started_unix_s=1.7e9,
        accepted_at_s=10.0,
        api=find_api("POST", PATH),
        model="small",
        engine_name=ENGINE,
        status=200,
        sent_at_s=10.0,
        last_byte_at_s=10.0 + took_s,
        **more,
    )
    assert made.api is not None
    made.meter = Meter(made.api, "application/json")
    if timed is not None:
        made.meter.reply.timings[0] = timed
    made.end(None, 10.0 + took_s)
    return made


def judge(facts: Case | None = None, of: Exchange | None = None) -> ShortRequests:
    """The judge who knows the facts of the exchange's setup."""
    known = ShortRequests()
    timeline = (of or exchange()).timeline()
    known.learn({setup_key(ENGINE, timeline.model, timeline.tokens): facts or healthy()})
    return known


def test_short_request_of_a_known_setup_is_judged() -> None:
    judged = judge().judge(exchange())

    assert judged is not None
    case, diagnosis = judged
    assert diagnosis.verdict == "normal"
    assert case.phases.decode_tps == 8 / 0.04
    assert case.timeline.tokens.cached == 20
    assert case.envelope.decode is not None


def test_setup_that_is_not_known_is_not_judged() -> None:
    assert ShortRequests().judge(exchange()) is None
    assert judge().judge(exchange(timed=replace(TIMED, prompt_tokens=5000))) is None


@pytest.mark.parametrize(
    "other",
    [
        exchange(took_s=MIN_WAIT_S),
        exchange(timed=None),
        exchange(timed=replace(TIMED, cached_tokens=None)),
        exchange(was_unloaded=True),
    ],
    ids=["longer", "without timings", "without a count of cached tokens", "with a load"],
)
def test_request_whose_reply_does_not_tell_all_is_not_judged(other: Exchange) -> None:
    assert judge(of=other).judge(other) is None


def test_several_answers_are_not_judged() -> None:
    several = exchange()
    assert several.meter is not None
    several.meter.reply.choices_seen = 2

    assert judge().judge(several) is None


def test_baseline_is_taken_to_the_context_of_the_request() -> None:
    facts = replace(
        healthy(),
        baseline=Baseline(count=9, decode_tps=100.0, decode_p10_tps=90.0),
        envelope=Envelope(roofline_tps=150.0),
    )
    judged = judge(facts).judge(exchange())

    assert judged is not None
    case, _ = judged
    assert case.envelope.roofline_tps is not None
    here = case.envelope.roofline_tps / 150.0
    assert here != 1.0
    assert case.baseline.decode_tps == pytest.approx(100.0 * here)
    assert case.baseline.decode_p10_tps == pytest.approx(90.0 * here)


def test_facts_that_were_dropped_judge_nothing() -> None:
    known = judge()
    timeline = exchange().timeline()
    known.learn({setup_key(ENGINE, timeline.model, timeline.tokens): None})

    assert known.judge(exchange()) is None
