"""What a request is told of those before it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.cases import FIRING, case, healthy, with_server, with_timeline, with_tokens
from fakes.gpu_cases import gpu_case, with_readings
from fakes.learning import NOW_UNIX_S, at, kept_at, learn
from fakes.loads import holding, loading
from slowtok.detectors.case.case import Case, History
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.history.baselines import Baselines
from slowtok.proxy.history.history import MAX_PROCESSES, RECENT, EngineHistory, Served, ServedBefore
from slowtok.proxy.history.learned_store import LearnedStore

SHORT, LONG = healthy(), with_tokens(healthy(), prompt=9000, cached=0)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[LearnedStore]:
    kept = kept_at(tmp_path / "learned.sqlite3")
    yield kept
    kept.close()


@pytest.fixture
def past(kept: LearnedStore) -> EngineHistory:
    return EngineHistory(kept, Baselines(kept, made_by="1"))


def note(past: EngineHistory, *cases: Case) -> None:
    for each in cases:
        past.note(each, diagnose(each))


def later(before: Case, by_s: float) -> Case:
    return with_timeline(before, accepted_at_s=before.timeline.accepted_at_s + by_s)


def test_the_first_request_has_no_history(past: EngineHistory) -> None:
    assert past.of(healthy()) == History()


def test_verdicts_of_this_configuration(past: EngineHistory) -> None:
    note(past, healthy(), FIRING["queued"](), FIRING["host-contention"]())

    history = past.of(healthy())

    assert history.judged_recently == 3
    assert history.causes_recently[0] == "host-contention"
    assert history.causes_recently[-1] == "queued"


def test_only_the_last_ones_count(past: EngineHistory) -> None:
    note(past, *[FIRING["queued"]()] * 3, *[healthy()] * (RECENT - 1))

    history = past.of(healthy())
    assert history.judged_recently == RECENT
    assert history.causes_recently == ("queued",)


def test_what_cannot_be_judged_does_not_count(past: EngineHistory) -> None:
    note(past, with_timeline(healthy(), status=500))

    assert past.of(healthy()).judged_recently == 0


def test_what_merely_informs_is_no_cause(past: EngineHistory) -> None:
    informed = FIRING["long-context"]()
    assert "long-context" in diagnose(informed).findings
    note(past, informed)

    assert past.of(healthy()).causes_recently == ()


@pytest.mark.parametrize(
    "other",
    [
        with_server(healthy(), pid=1),
        with_server(healthy(), context_tokens=1),
        with_server(healthy(), gpu_layers=1),
        with_server(healthy(), url="http://127.0.0.1:1"),
        replace(healthy(), model=replace(healthy().model, name="other")),
        later(healthy(), 7 * 3600.0),
    ],
)
def test_another_configuration_or_another_time_begins_anew(
    other: Case, past: EngineHistory
) -> None:
    note(past, case(ms_per_token=40))

    assert past.of(other).judged_recently == 0
    assert past.of(later(healthy(), 5 * 3600.0)).judged_recently == 1


def test_configurations_are_bounded(past: EngineHistory) -> None:
    note(past, *[with_server(healthy(), pid=pid) for pid in range(300)])

    assert past.of(with_server(healthy(), pid=0)).judged_recently == 0
    assert past.of(with_server(healthy(), pid=299)).judged_recently == 1


def test_best_readings_are_those_of_earlier_requests_and_starts(
    past: EngineHistory, tmp_path: Path
) -> None:
    assert past.of(gpu_case()).best_sm_clock_mhz is None
    note(past, gpu_case(), with_readings(gpu_case(), sm_clock_mhz=1200, power_w=100.0))
    past.of(gpu_case())
    past._kept.close()

    again = kept_at(tmp_path / "learned.sqlite3")
    history = EngineHistory(again, Baselines(again)).of(gpu_case())
    again.close()
    assert (history.best_sm_clock_mhz, history.best_memory_clock_mhz) == (1905, 9501)
    assert history.best_power_w == 335.0


def test_rates_of_last_week_and_the_best(past: EngineHistory, kept: LearnedStore) -> None:
    learn(Baselines(kept, made_by="1"), *[at(150.0, days_ago=3)] * 9, *[at(20.0)] * 9)

    history = past.of(at(120.0))
    assert (history.week_ago_decode_tps, history.best_decode_tps) == (150.0, 150.0)
    assert past.of(with_timeline(at(120.0), started_unix_s=NOW_UNIX_S - 4 * 86400.0)) == replace(
        History(), best_decode_tps=150.0
    )


def test_loads(past: EngineHistory) -> None:
    waits = loading(100.0, 4.0, [holding(106.0, 6.0)])

    (load,) = past.of(waits, (holding(99.0, 0.0, 2.0),)).loads
    assert load.others_bytes == 2 * 2**30


def test_loads_of_an_engine_elsewhere_are_not_looked_for(past: EngineHistory) -> None:
    assert past.of(with_server(loading(100.0, 4.0), local=False)).loads == ()


def test_requests_are_counted_by_process_and_by_length() -> None:
    served = Served()
    assert served.before(SHORT) is None

    served.note(SHORT)
    served.note(SHORT)

    assert served.before(SHORT) == ServedBefore(2, 2)
    assert served.before(LONG) == ServedBefore(2, 0)
    assert served.before(with_server(SHORT, pid=4712)) is None


def test_a_process_that_is_not_seen_is_another_once_it_was_found_again() -> None:
    hidden = with_server(SHORT, pid=None, uptime_s=600.0)
    later = with_timeline(hidden, accepted_at_s=hidden.timeline.accepted_at_s + 60.0)
    served = Served()
    served.note(hidden)

    assert served.before(later) == ServedBefore(1, 1)
    assert served.before(with_server(later, uptime_s=10.0)) is None


def test_what_failed_or_was_cut_off_counts_for_nothing() -> None:
    served = Served()
    served.note(with_timeline(SHORT, status=500))
    served.note(with_tokens(SHORT, completion=None))

    assert served.before(SHORT) is None


def test_memory_is_bounded() -> None:
    served = Served()
    for pid in range(MAX_PROCESSES + 1):
        served.note(replace(with_server(SHORT, pid=pid)))

    assert served.before(with_server(SHORT, pid=0)) is None
    assert served.before(with_server(SHORT, pid=1)) is not None
