"""Requests that generate nothing, and times that are only estimated."""

from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import case, healthy, with_phases, with_timeline, with_tokens
from slowtok.detectors.case.case import Case, Range
from slowtok.detectors.case.named_facts import how_to_enable
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.record import make_record


def embedding(prefill_tps: float | None, *, tokens: int = 900, **phases: Any) -> Case:
    """A request that only reads; 500 to 1,500 tokens/s are to be expected."""
    quiet = with_tokens(replace(healthy(), prompt=None), prompt=tokens, cached=None, completion=0)
    quiet = with_timeline(quiet, ended="complete", stream=False, token_at_s=())
    took_s = None if prefill_tps is None else tokens / prefill_tps
    known = {"prefill_s": took_s, "prefill_tps": prefill_tps, "decode_s": None, "decode_tps": None}
    read = with_phases(quiet, **{**known, "total_s": 10.0, "decode_stream_s": None, **phases})
    return replace(
        read,
        envelope=replace(
            read.envelope, prefill=Range(low=500.0, high=1500.0), expected_prefill_tps=1000.0
        ),
    )


@pytest.mark.parametrize("tokens", [3, 900])
def test_a_normal_prefill_is_normal_however_short(tokens: int) -> None:
    diagnosis = diagnose(embedding(800.0, tokens=tokens, source="stream"))

    assert (diagnosis.verdict, diagnosis.reason) == ("normal", "")


def test_a_slow_prefill_is_slow_where_the_engine_tells() -> None:
    diagnosis = diagnose(embedding(100.0, source="engine"))

    assert (diagnosis.verdict, diagnosis.phase) == ("slow", "prefill")


@pytest.mark.parametrize(
    "unclear",
    [
        pytest.param(embedding(100.0, source="stream"), id="the wait may hold a queue"),
        pytest.param(embedding(100.0, source="engine", prefill_s=0.03), id="a moment"),
        pytest.param(embedding(None, source="stream"), id="not alone"),
        pytest.param(
            replace(embedding(100.0), envelope=healthy().envelope), id="nothing to be expected"
        ),
    ],
)
def test_what_cannot_be_judged_is_unknown_and_never_called_too_short(unclear: Case) -> None:
    diagnosis = diagnose(unclear)

    assert diagnosis.verdict == "unknown"
    assert diagnosis.reason.startswith("nothing was generated, and ")


def test_nothing_is_concluded_from_an_estimate() -> None:
    """It looks twenty times too slow, and its prefill would be slow as well."""
    guessed = with_phases(case(ms_per_token=140, prefill_s=9), source="estimate")
    guessed = with_timeline(guessed, stream=False, token_at_s=())

    diagnosis = diagnose(guessed)

    assert diagnosis.verdict == "unknown"
    assert diagnosis.reason.startswith("the engine gave no timings")
    assert diagnosis.findings == {}
    assert {
        "fact": "decode time",
        "how_to_enable": how_to_enable("decode time"),
    } in make_record(guessed, diagnosis)["not_visible"]
    assert "--enable-per-request-metrics" in how_to_enable("decode time")
    assert 'split_nonstreamed = "stream"' in how_to_enable("decode time")
