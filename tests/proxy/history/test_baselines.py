"""What is learned from which requests, and what is said of it later."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.cases import (
    FIRING,
    case,
    healthy,
    with_device,
    with_envelope,
    with_phases,
    with_server,
    with_timeline,
    with_tokens,
)
from fakes.clock_cases import counting
from fakes.gpu_cases import gpu_case, with_readings
from fakes.learning import at, kept_at, learn, version
from slowtok.detectors.case.case import Baseline, Case, History, ModelLoad, Neighbours, Range
from slowtok.detectors.case.engine import ServerFacts
from slowtok.detectors.case.machine import GpuFacts
from slowtok.detectors.expectation.envelope import REFINE_AFTER
from slowtok.proxy.history.baselines import KEEP, Baselines
from slowtok.proxy.history.learned_store import LearnedStore


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[LearnedStore]:
    kept = kept_at(tmp_path / "state" / "learned.sqlite3")
    yield kept
    kept.close()


@pytest.fixture
def baselines(kept: LearnedStore) -> Baselines:
    return Baselines(kept, made_by="1")


def shared(tps: float, *, days_ago: float = 0.0) -> Case:
    return replace(at(tps, days_ago=days_ago), neighbours=Neighbours(decode_mean=1.0, decode_max=1))


def prefilled(tps: float, *, processed: int = 600, before: Case | None = None) -> Case:
    counted = with_tokens(before or healthy(), prompt=processed + 100, cached=100)
    return with_phases(counted, prefill_tps=tps, prefill_s=processed / tps)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(case(ms_per_token=40), id="slow"),
        pytest.param(FIRING["queued"](), id="slow in the queue"),
        pytest.param(with_timeline(healthy(), status=500), id="unknown"),
        pytest.param(with_phases(healthy(), decode_s=0.99), id="short"),
        pytest.param(with_tokens(healthy(), completion=31), id="few tokens"),
        pytest.param(shared(150.0), id="shared"),
    ],
)
def test_no_baseline_is_learned(before: Case, baselines: Baselines) -> None:
    assert learn(baselines, before) == [False]
    assert baselines.find(before) == Baseline()
    assert baselines.find(healthy()) == Baseline()


def test_a_machine_that_was_always_slow_has_no_baseline_but_a_past(baselines: Baselines) -> None:
    learn(baselines, *[at(40.0, days_ago=3)] * 9)

    found = baselines.find(at(40.0))
    assert found == Baseline(usual_decode_tps=40.0, healthy_here=0)
    assert baselines.earlier(at(40.0)).week_ago_decode_tps == 40.0
    assert baselines.earlier(at(40.0)).best_decode_tps is None
    (row,) = baselines.summary()
    assert (row["count"], row["median_tps"]) == (0, None)
    assert (row["seen"], row["seen_median_tps"]) == (9, 40.0)


def test_median_and_noise_of_healthy_requests(baselines: Baselines) -> None:
    rates = (150.0, 90.0, 140.0, 160.0, 145.0, 155.0, 148.0, 152.0, 149.0, 151.0, 147.0)
    assert all(learn(baselines, *map(at, rates)))

    found = replace(baselines.find(healthy()), usual_decode_tps=None, healthy_here=0)
    assert found == Baseline(count=11, decode_tps=149.0, decode_p10_tps=140.0)


def test_what_was_said_before_is_not_said_again_once_more_is_learned(baselines: Baselines) -> None:
    learn(baselines, *[at(150.0, days_ago=2)] * 5)
    assert baselines.find(healthy()).decode_tps == 150.0
    assert baselines.earlier(at(150.0)).best_decode_tps == 150.0

    learn(baselines, *[at(170.0, days_ago=2)] * 6)

    assert baselines.find(healthy()).decode_tps == 170.0
    assert baselines.earlier(at(150.0)).best_decode_tps == 170.0


def test_rates_become_those_of_last_week_by_time_alone(baselines: Baselines) -> None:
    learn(baselines, *[at(150.0)] * 5)

    assert baselines.earlier(at(150.0, days_ago=-0.5)).week_ago_decode_tps is None
    assert baselines.earlier(at(150.0, days_ago=-1.5)).week_ago_decode_tps == 150.0
    assert baselines.earlier(at(150.0, days_ago=-15.0)).week_ago_decode_tps is None


def test_only_the_last_ones_count(baselines: Baselines) -> None:
    learn(baselines, *[at(80.0, days_ago=1)] * KEEP, *[at(150.0)] * KEEP)

    found = replace(baselines.find(healthy()), usual_decode_tps=None, healthy_here=0)
    assert found == Baseline(count=KEEP, decode_tps=150.0, decode_p10_tps=150.0)


def test_slow_ones_do_not_push_healthy_ones_out(baselines: Baselines) -> None:
    learn(baselines, *[at(150.0)] * 5, *[at(20.0)] * 500)

    assert baselines.find(healthy()) == Baseline(
        count=5,
        decode_tps=150.0,
        decode_p10_tps=150.0,
        usual_decode_tps=20.0,  # whatever the verdict: the slow ones are what is usual now
    )


def test_a_setup_that_nothing_is_expected_of_learns_from_its_own_past(baselines: Baselines) -> None:
    """A card that no table lists: nine healthy requests, and then a drop to a tenth."""
    unlisted = with_envelope(at(93.5), decode=None, expected_tps=None, because=("not known",))
    assert all(learn(baselines, *[unlisted] * 9))

    found = baselines.find(unlisted)
    assert (found.count, found.decode_tps) == (9, 93.5)


def test_a_request_with_heat_counted_teaches_no_health(baselines: Baselines) -> None:
    hot = with_readings(gpu_case(), throttled_sw_thermal_ns=counting(0.05))
    assert learn(baselines, hot) == [False]
    assert learn(baselines, gpu_case()) == [True]


def test_what_is_usual_is_of_the_very_process_and_load(baselines: Baselines) -> None:
    learn(baselines, *[at(150.0)] * 3)

    assert baselines.find(healthy()).usual_decode_tps == 150.0
    assert baselines.find(healthy()).healthy_here == 3
    again = with_server(healthy(), pid=4712)
    assert baselines.find(again).usual_decode_tps is None
    assert baselines.find(again).healthy_here == 0
    loaded = replace(healthy(), history=History(loads=(ModelLoad(age_s=3.0),)))
    assert baselines.find(loaded).healthy_here == 0


def test_one_request_is_no_habit(baselines: Baselines) -> None:
    learn(baselines, at(150.0))

    assert baselines.find(healthy()).usual_decode_tps is None
    assert baselines.find(healthy()).healthy_here == 1


def test_a_request_that_shares_the_engine_is_held_against_one_alone(baselines: Baselines) -> None:
    learn(baselines, at(150.0))

    assert baselines.find(shared(75.0)).decode_tps == 150.0


@pytest.mark.parametrize(
    "other",
    [
        with_server(healthy(), version="b2"),
        with_server(healthy(), kind="ollama"),
        with_server(healthy(), kv_type_k="q8_0"),
        with_server(healthy(), kv_type_v="q8_0"),
        with_server(healthy(), speculative=True),
        with_server(healthy(), local=False),
        with_envelope(healthy(), context_tokens=1024),
        with_device(with_server(healthy(), gpu_indices=None), gpus=(GpuFacts(index=0, uuid="G"),)),
        replace(healthy(), model=replace(healthy().model, digest="abc")),
        replace(healthy(), model=replace(healthy().model, file_bytes=1)),
    ],
)
def test_each_setup_has_its_own(other: Case, baselines: Baselines) -> None:
    learn(baselines, healthy())

    assert baselines.find(other) == Baseline()


def test_a_gpu_that_does_not_serve_is_no_part_of_the_setup(baselines: Baselines) -> None:
    serving, idle = GpuFacts(index=0, uuid="GPU-a"), GpuFacts(index=1, uuid="GPU-b")
    before = with_server(with_device(healthy(), gpus=(serving, idle)), gpu_indices=(0,))
    learn(baselines, before)

    assert baselines.find(with_device(before, gpus=(serving,))).count == 1
    assert baselines.find(with_server(before, gpu_indices=(1,))).count == 0


def test_a_rate_follows_the_context(baselines: Baselines) -> None:
    learn(baselines, at(150.0))

    assert baselines.find(with_envelope(at(1.0), roofline_tps=302.0)).decode_tps == 300.0


def test_a_new_fit_changes_nothing_of_what_was_measured(kept: LearnedStore) -> None:
    learn(Baselines(kept, made_by="1"), at(150.0))

    newer = Baselines(kept, made_by="2")
    assert newer.find(with_envelope(at(1.0), roofline_tps=302.0)).decode_tps == 150.0


def test_prefill_is_learned_by_the_size_of_what_was_computed(baselines: Baselines) -> None:
    before = [prefilled(rate) for rate in (900.0, 1000.0, 1100.0, 1000.0)]
    learn(baselines, *before)
    assert baselines.find(before[0]).prefill_tps is None
    learn(baselines, prefilled(1200.0))

    assert baselines.find(before[0]).prefill_tps == 1000.0
    assert baselines.earlier(before[0]).best_prefill_tps == 1100.0
    assert baselines.find(prefilled(1.0, processed=5000)).prefill_tps is None


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(with_tokens(prefilled(900.0), cached=None), id="cache not known"),
        pytest.param(prefilled(900.0, processed=127), id="few tokens"),
        pytest.param(prefilled(9000.0), id="an instant"),
        pytest.param(with_timeline(prefilled(900.0), status=500), id="an error"),
        pytest.param(with_phases(prefilled(900.0), prefill_tps=None), id="no rate"),
        pytest.param(with_phases(prefilled(900.0), source="stream"), id="not the engine's word"),
        pytest.param(
            with_envelope(prefilled(900.0), prefill=Range(low=1000.0, high=3000.0)), id="too slow"
        ),
        pytest.param(
            replace(prefilled(900.0), neighbours=Neighbours(in_flight_at_send=1)), id="shared"
        ),
        pytest.param(prefilled(900.0, before=case(ms_per_token=40)), id="part of a slow request"),
    ],
)
def test_no_prefill_is_learned(before: Case, baselines: Baselines) -> None:
    learn(baselines, *[before] * 9)

    assert baselines.find(prefilled(900.0)).prefill_tps is None
    assert baselines.find(before).prefill_tps is None


def test_last_week_is_what_all_judged_requests_gave(baselines: Baselines) -> None:
    learn(baselines, *[at(200.0, days_ago=15)] * 9)
    learn(baselines, *[at(t, days_ago=5) for t in (60.0, 140.0, 150.0, 150.0, 160.0)])
    learn(baselines, *[at(100.0, days_ago=0.5)] * 9)

    assert baselines.earlier(at(100.0)).week_ago_decode_tps == 150.0
    assert baselines.earlier(at(100.0)).best_decode_tps == 200.0


def test_last_week_is_that_of_any_version_but_of_the_same_company(baselines: Baselines) -> None:
    learn(baselines, *[version(at(150.0, days_ago=3), "b1")] * 9)
    learn(baselines, *[shared(80.0, days_ago=3)] * 9)

    assert baselines.earlier(version(at(120.0), "b2")).week_ago_decode_tps == 150.0
    assert baselines.earlier(version(at(120.0), "b2")).best_decode_tps == 150.0
    assert baselines.earlier(shared(60.0)).week_ago_decode_tps == 80.0


def test_too_little_is_no_last_week(baselines: Baselines) -> None:
    learn(baselines, *[at(150.0, days_ago=3)] * (REFINE_AFTER - 1))

    assert baselines.earlier(at(100.0)).week_ago_decode_tps is None
    assert baselines.earlier(at(100.0)).best_decode_tps is None


def test_a_clock_that_was_ahead_makes_no_last_week(baselines: Baselines) -> None:
    learn(baselines, *[at(150.0, days_ago=-400)] * 9)

    assert baselines.earlier(at(100.0)).week_ago_decode_tps is None
    assert baselines.find(at(100.0)).count == 9


def test_what_is_not_known_is_a_setup_too(baselines: Baselines) -> None:
    unknown = replace(at(150.0), server=ServerFacts(), envelope=healthy().envelope)
    learn(baselines, unknown)

    assert baselines.find(unknown).count == 1


def test_summary_for_people(baselines: Baselines) -> None:
    learn(baselines, *[at(150.0, days_ago=3)] * 5, *[at(120.0)] * 5)

    assert baselines.summary() == [
        {
            "setup": "decode | cpu | smollm2 98000000 | llama-server | kv f16 | ctx 0-1k | alone",
            "count": 10,
            "median_tps": 135.0,
            "of_expected_ratio": 0.894,
            "seen": 10,
            "seen_median_tps": 135.0,
            "drift_ratio": 0.8,
        }
    ]
    assert [(row["day"], row["count"], row["median_tps"]) for row in baselines.by_day()] == [
        ("2024-10-01", 5, 150.0),
        ("2024-10-04", 5, 120.0),
    ]
