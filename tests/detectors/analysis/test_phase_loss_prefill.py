"""The verdict on a prefill: its gate, and what it lost."""

from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import (
    healthy,
    with_envelope,
    with_phases,
    with_server,
    with_timeline,
    with_tokens,
)
from slowtok.detectors.analysis.phase_loss import judge_decode, losses, prefill_excess_s
from slowtok.detectors.case.case import Case, History, ModelLoad, Neighbours, Range
from slowtok.detectors.case.engine import EngineActivity
from slowtok.detectors.case.finding import Finding, PhaseLoss
from slowtok.detectors.diagnosis.diagnose import diagnose

BAND = Range(low=1700.0, high=5600.0)
EXPECTED_TPS = 4000.0
BEST = History(best_prefill_tps=3000.0)


def found(lost_s: float) -> dict[str, Finding]:
    finding = Finding(
        phase="prefill", confidence=1.0, lost_s=lost_s, summary="", remedy="", evidence=()
    )
    return {"cause": finding}


def lost(case: Case, findings: dict[str, Finding] | None = None) -> tuple[PhaseLoss, ...]:
    return losses(case, judge_decode(case), findings or {})


def prefilled(tps: float, *, tokens: int = 4000, cached: int = 0, **phases: Any) -> Case:
    """A case that computed these tokens of its prompt at this rate."""
    told = {"prefill_tps": tps, "prefill_s": (tokens - cached) / tps, "total_s": 20.0} | phases
    before = with_tokens(with_phases(healthy(), **told), prompt=tokens, cached=cached)
    return with_envelope(before, prefill=BAND, expected_prefill_tps=EXPECTED_TPS)


def no_prefill_band(before: Case, history: History = BEST) -> Case:
    known = with_envelope(before, prefill=None, expected_prefill_tps=None)
    return replace(known, history=history)


def beside(**activity: Any) -> EngineActivity:
    return EngineActivity(span_s=5.0, **activity)


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param(prefilled(1700.0), id="on the low edge"),
        pytest.param(prefilled(90.0, tokens=255), id="a short prompt is one pass"),
        pytest.param(prefilled(100.0, tokens=6000, cached=5745), id="a short rest of a prompt"),
        pytest.param(prefilled(1600.0, tokens=3100), id="over in less than 2 s"),
        pytest.param(prefilled(400.0, source="stream"), id="the wait may hold more than prefill"),
        pytest.param(prefilled(400.0, source="estimate"), id="estimated"),
        pytest.param(prefilled(400.0, load_s=3.0), id="after a load"),
        pytest.param(
            replace(prefilled(400.0, tokens=3600), history=History(loads=(ModelLoad(age_s=4.0),))),
            id="right after a load that was seen: it warms up",
        ),
        pytest.param(with_server(prefilled(400.0), slept=True), id="the engine was woken"),
        pytest.param(
            replace(prefilled(400.0), neighbours=Neighbours(in_flight_at_send=1)),
            id="beside others",
        ),
        pytest.param(
            replace(prefilled(400.0), activity=beside(alone=False)), id="beside others, unseen here"
        ),
        pytest.param(
            replace(prefilled(400.0), activity=beside(running_max=2)), id="two ran at the engine"
        ),
        pytest.param(no_prefill_band(prefilled(400.0), History()), id="nothing to hold it against"),
        pytest.param(no_prefill_band(prefilled(1500.0)), id="half of its own best"),
        pytest.param(
            no_prefill_band(prefilled(1000.0, tokens=30_000)), id="a long prompt, attention grows"
        ),
        pytest.param(with_timeline(prefilled(400.0), status=500), id="an error"),
    ],
)
def test_prefill_is_not_slow(quiet: Case) -> None:
    assert prefill_excess_s(quiet) == 0.0
    assert all(loss.phase != "prefill" for loss in lost(quiet))


@pytest.mark.parametrize(
    ("slow", "lost_s"),
    [
        pytest.param(prefilled(1600.0), 2.5 * (1 - 1600 / 4000), id="below the band"),
        pytest.param(prefilled(400.0, source="metrics"), 10.0 * 0.9, id="by the engine's counters"),
        pytest.param(prefilled(100.0, tokens=6000, cached=5744), 2.56 * 0.975, id="long enough"),
        pytest.param(
            no_prefill_band(prefilled(1400.0)), 4000 / 1400 - 4000 / 3000, id="below half its best"
        ),
        pytest.param(
            replace(prefilled(1900.0), history=History(best_prefill_tps=3900.0)),
            4000 / 1900 - 4000 / 3900,
            id="within the band, but below half of its best",
        ),
        pytest.param(
            replace(
                prefilled(400.0, tokens=3600),
                history=History(loads=(ModelLoad(age_s=4.0, load_s=2.0),)),
            ),
            9.0 * 0.9,
            id="soon after a load, which another request waited for",
        ),
    ],
)
def test_prefill_is_slow(slow: Case, lost_s: float) -> None:
    [loss] = lost(slow)

    assert prefill_excess_s(slow) == pytest.approx(lost_s)
    assert (loss.phase, loss.slow) == ("prefill", lost_s >= 2.0)
    assert loss.lost_s == pytest.approx(lost_s)


def test_prefill_loses_what_a_finding_shows_if_that_is_more() -> None:
    assert lost(prefilled(400.0), found(9.5))[0].lost_s == pytest.approx(9.5)
    assert lost(prefilled(400.0), found(1.0))[0].lost_s == pytest.approx(9.0)


def test_a_slow_prefill_without_a_cause_is_unexplained() -> None:
    diagnosis = diagnose(replace(prefilled(1400.0, tokens=8000), prompt=None))

    assert (diagnosis.verdict, diagnosis.phase) == ("slow", "prefill")
    assert set(diagnosis.budget_ms_per_token) == {"unexplained"}
