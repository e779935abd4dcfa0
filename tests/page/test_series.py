"""One request over time, for its charts: made of a case, kept for a while, served."""

import json
import statistics
import zlib
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest

from fakes.cases import case
from fakes.page_cases import dated, simulated
from fakes.page_stage import Stage
from fakes.records import full_case
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.machine import GpuSample
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs import series as series_module
from slowtok.proxy.outputs.record import make_record
from slowtok.proxy.outputs.series import MAX_BINS, MAX_POINTS, SeriesStore, series

HOT = 0x40


def with_tokens(*at_s: float, completion: int | None = None) -> Case:
    """A case whose tokens came at these times since it came."""
    plain = case()
    line = plain.timeline
    arrivals = tuple(line.accepted_at_s + at for at in at_s)
    tokens = replace(line.tokens, completion=completion)
    return replace(
        plain, timeline=replace(line, token_at_s=arrivals, itl_p50_s=None, tokens=tokens)
    )


def with_reasons(*masks: int | None) -> Case:
    """A case with a GPU sample each 0.1 s."""
    plain = case()
    begin_s = plain.timeline.accepted_at_s
    samples = [
        GpuSample(at_s=begin_s + 0.1 * i, index=0, reasons=mask) for i, mask in enumerate(masks)
    ]
    return replace(plain, gpu=tuple(samples), server=replace(plain.server, gpu_indices=(0,)))


def brakes(of: Case) -> list[tuple[str, float, float]]:
    [gpu] = series(of)["gpus"]
    return [(mark["reason"], mark["from_s"], mark["to_s"]) for mark in gpu["brakes"]]


def test_what_was_not_seen_is_not_there() -> None:
    bare = replace(case(), host=(), gpu=())
    line = replace(bare.timeline, token_at_s=())
    found = series(replace(bare, timeline=line))

    assert found["tokens"] is None
    assert found["gpus"] == []
    assert found["host"] == {"at_s": [], "lanes": {}}


@pytest.mark.parametrize("at_s", [(), (1.0,), (1.0, 2.0), (1.0, 1.0, 1.0)])
def test_too_few_arrivals_give_no_rate(at_s: tuple[float, ...]) -> None:
    assert series(with_tokens(*at_s))["tokens"] is None


def test_rate_counts_tokens_not_arrivals_and_a_pause_shows() -> None:
    arrivals = [1 + i / 10 for i in range(21)] + [5 + i / 10 for i in range(1, 11)]
    rate = series(with_tokens(*arrivals, completion=61))["tokens"]  # two tokens an arrival

    whole = sum(tps * rate["bin_s"] for tps in rate["tps"])
    assert whole == pytest.approx(60, rel=0.01)
    pause = [tps for at, tps in zip(rate["at_s"], rate["tps"], strict=True) if 3.2 < at < 4.9]
    assert pause
    assert set(pause) == {0}
    assert len(rate["tps"]) <= MAX_BINS


def test_a_bin_holds_some_tokens_however_they_come() -> None:
    slow = [1 + i for i in range(40)]  # one a second
    bursts = [1 + 0.7 * (i // 5) + 0.01 * (i % 5) for i in range(200)]  # of five, on a busy core
    for arrivals in (slow, bursts):
        rate = series(with_tokens(*arrivals))["tokens"]
        mean_tps = (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])

        assert min(rate["tps"]) > 0
        assert statistics.median(rate["tps"]) == pytest.approx(mean_tps, rel=0.3)


def test_a_step_of_the_rate_is_dated_and_a_level_rate_has_none() -> None:
    level = [1 + i / 20 for i in range(60)]
    slower = [level[-1] + (i + 1) / 5 for i in range(40)]

    assert series(with_tokens(*level))["step"] is None
    step = series(with_tokens(*level, *slower))["step"]
    assert step == {
        "at_s": pytest.approx(level[-1], abs=0.001),
        "before_tps": pytest.approx(20, rel=0.01),
        "after_tps": pytest.approx(5, rel=0.03),
    }


def test_brakes_are_stretches_and_idle_is_none() -> None:
    assert brakes(with_reasons(0x1, 0x1, None, 0, 0x2)) == []
    assert brakes(with_reasons(0, HOT, HOT | 0x4, 0, HOT)) == [
        ("hw-thermal", 0.1, 0.4),
        ("sw-power-cap", 0.2, 0.2),
    ]
    apart = with_reasons(HOT, *(0 for _ in range(6)), HOT)
    assert brakes(apart) == [("hw-thermal", 0.0, 0.0), ("hw-thermal", 0.7, 0.7)]


def test_lanes_are_thinned_to_samples_that_were_measured() -> None:
    plain = case()
    begin_s = plain.timeline.accepted_at_s
    many = tuple(
        GpuSample(at_s=begin_s + i / 10, index=0, power_w=float(i), total_bytes=10, free_bytes=4)
        for i in range(5000)
    )
    [gpu] = series(replace(plain, gpu=many))["gpus"]

    assert 400 < len(gpu["at_s"]) <= MAX_POINTS
    assert {len(lane) for lane in gpu["lanes"].values()} == {len(gpu["at_s"])}
    assert [round(10 * at) for at in gpu["at_s"]] == gpu["lanes"]["power_w"]
    assert set(gpu["lanes"]["used_bytes"]) == {6}
    assert "temperature_c" not in gpu["lanes"]


@pytest.mark.parametrize("name", ["thermal-throttle", "queued", "model-load", "slow-reader"])
def test_phases_lie_one_after_the_other_within_the_request(name: str) -> None:
    found = series(simulated(name))
    edges = [edge for phase in found["phases"] for edge in (phase["from_s"], phase["to_s"])]

    assert edges == sorted(edges)
    assert edges[0] >= 0
    assert edges[-1] <= found["total_s"] + 0.01


def test_every_field_is_json_and_no_word_of_a_prompt() -> None:
    said = json.dumps(series(full_case()))

    assert len(json.loads(said)["gpus"]) == 2


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


def put(store: SeriesStore, of: Case, *, after: Clock | None = None) -> str:
    """Put a request into the store, a second after the one before."""
    if after is not None:
        after.now_s += 1.0
    diagnosis = diagnose(of)
    record = make_record(of, diagnosis)
    store(of, diagnosis, record)
    return str(record["id"])


def kept_bytes(of: Case) -> int:
    """What one series takes, compressed."""
    return len(zlib.compress(orjson.dumps(series(of)), series_module.FASTEST))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The store's clock; it stands still where nobody lets time pass."""
    made = Clock()
    monkeypatch.setattr(series_module, "time", made)
    return made


def test_store_forgets_the_oldest_when_there_is_too_much(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(series_module, "MAX_UNWRITTEN", 1)
    cases = [dated(simulated("queued"), float(i)) for i in range(1, 6)]
    size = kept_bytes(cases[0])
    store = SeriesStore(9, max_bytes=int(2.5 * size))

    ids = [put(store, each, after=clock) for each in cases]

    assert [store.get(each) is not None for each in ids] == [False, False, True, True, True]


def test_store_keeps_nothing_of_what_merely_passed() -> None:
    store = SeriesStore(9)
    store(simulated("queued"), None, {"id": "x"})

    assert store.get("x") is None


def short(name: str) -> Case:
    """A whole reply between two samples."""
    plain = case()
    line = replace(plain.timeline, request_id=name, token_at_s=(), itl_p50_s=None)
    return replace(plain, timeline=line, gpu=(), host=plain.host[:2])


def test_they_are_kept_by_number_and_told_when_asked_for() -> None:
    store = SeriesStore(3)
    ids = [put(store, short(f"short {i}")) for i in range(5)]

    found = [store.get(each) for each in ids]
    assert [body is not None for body in found] == [False, False, True, True, True]
    assert json.loads(found[-1] or b"") == series(short("short 4"))
    assert store.get(ids[-1]) == found[-1]


def test_those_that_make_room_are_written_and_memory_stays_bounded(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(series_module, "MAX_UNWRITTEN", 2)
    size = kept_bytes(short("short 0"))
    store = SeriesStore(9, max_bytes=int(2.5 * size))

    ids = [put(store, short(f"short {i}"), after=clock) for i in range(8)]

    assert [store.get(each) is not None for each in ids] == [False] * 4 + [True] * 4


def test_more_than_anybody_could_look_at_are_given_up(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(series_module, "MAX_UNWRITTEN", 2)
    store = SeriesStore(9)

    clock.now_s += 1.0
    ids = [put(store, short(f"short {i}")) for i in range(6)]

    assert [store.get(each) is not None for each in ids] == [True] * 2 + [False] * 2 + [True] * 2


def test_one_long_series_does_not_cost_those_that_came_slowly_before(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    long = simulated("queued")
    readings = len(long.host) + len(long.gpu) + len(long.timeline.token_at_s)
    monkeypatch.setattr(series_module, "MAX_UNWRITTEN_READINGS", readings - 1)
    store = SeriesStore(99)
    ids = [put(store, short(f"short {i}"), after=clock) for i in range(30)]
    ids.append(put(store, dated(long, 99.0)))

    assert all(store.get(each) for each in ids)


def test_long_ones_do_not_stay_unwritten(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    long = simulated("queued")
    readings = len(long.host) + len(long.gpu) + len(long.timeline.token_at_s)
    monkeypatch.setattr(series_module, "MAX_UNWRITTEN_READINGS", readings)
    store = SeriesStore(9)
    first = put(store, dated(long, 1.0), after=clock)
    assert store._kept[first] == b""

    put(store, dated(long, 2.0), after=clock)
    assert store._kept[first] != b""


def test_samples_are_served_and_unknown_ones_are_not_found(stage: Stage) -> None:
    [record] = stage.put(simulated("thermal-throttle"))
    found = httpx.get(f"{stage.url}/slowtok/requests/{record['id']}/samples")
    missing = httpx.get(f"{stage.url}/slowtok/requests/none/samples")

    body: dict[str, Any] = found.json()
    assert found.status_code == 200
    assert found.headers["cache-control"] == "no-store"
    assert body == series(simulated("thermal-throttle"))
    assert missing.status_code == 404
