"""Which loads are noticed, when, and what they met."""

from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import with_phases, with_server
from fakes.gpu_cases import GIB, MIB, with_model
from fakes.loads import (
    RESERVED_BYTES,
    TOTAL_BYTES,
    holding,
    loading,
    request,
    with_runners,
)
from slowtok.detectors.analysis.placement.reasons import better_load_bytes, others_at_load_bytes
from slowtok.detectors.analysis.placement.where import placement
from slowtok.detectors.case.case import Case, ModelLoad
from slowtok.detectors.case.machine import GpuSample
from slowtok.proxy.history.loads import MAX_LOADS, Loads, Rise, held_over_time, last_rise, lowest

FREE_BYTES = TOTAL_BYTES - RESERVED_BYTES

PIDS = (4711,)


def served(at_s: float, gib: float = 6.0, others_gib: float = 0.0, **server: Any) -> Case:
    """A request that a loaded model serves."""
    return request(at_s, [holding(at_s, gib, others_gib), holding(at_s + 8, gib)], **server)


def model(case: Case, name: str) -> Case:
    return with_model(case, name=name, file_bytes=None)


def test_a_model_that_was_there_before_has_no_load() -> None:
    loads = Loads()

    assert loads.of(served(100.0)) == ()
    assert loads.of(served(200.0)) == ()


def test_a_warm_engine_that_reports_a_moment_loads_nothing() -> None:
    assert Loads().of(loading(100.0, 0.05, [holding(100.0, 6.0)])) == ()


def test_a_load_within_the_request() -> None:
    loads = Loads()
    idle = [holding(98.0, 0.0, 9.0), holding(99.9, 0.0, 10.0)]
    waits = loading(100.0, 4.0, [holding(100.0, 0.0, 10.0), holding(106.0, 6.0, 1.0)])

    assert loads.of(waits, idle) == (
        ModelLoad(
            age_s=0.0,
            model="llama-3-8b",
            context_tokens=8192,
            load_s=4.0,
            server_gpu_bytes=6 * GIB,
            free_before_bytes=FREE_BYTES - 10 * GIB,
            others_bytes=10 * GIB,
        ),
    )
    (later,) = loads.of(served(164.0))
    assert later == replace(loads.of(served(164.0))[0], age_s=60.0)
    assert later.load_s == 4.0


def test_a_look_at_a_model_half_loaded_is_no_size() -> None:
    loads = Loads()
    waits = loading(100.0, 4.0, [holding(100.0, 0.0), holding(103.5, 5.2)])

    assert loads.of(waits)[0].server_gpu_bytes is None
    assert loads.of(served(110.0))[0].server_gpu_bytes == 6 * GIB


def test_an_engine_that_slept_loads() -> None:
    woken = request(100.0, [holding(100.0, 0.3), holding(106.0, 6.0)], slept=True)
    assert Loads().of(with_server(woken, gpu_indices=())) == (), "it took no time"

    (load,) = Loads().of(with_phases(woken, load_s=None))

    assert (load.age_s, load.load_s, load.others_bytes) == (0.0, None, 0)
    assert load.free_before_bytes == pytest.approx(FREE_BYTES - 0.3 * GIB, abs=1)


def test_an_engine_without_a_gpu_loads_too() -> None:
    (load,) = Loads().of(loading(100.0, 4.0, gpu_indices=()))

    assert (load.load_s, load.server_gpu_bytes, load.others_bytes) == (4.0, None, None)


def test_a_load_that_only_the_memory_shows() -> None:
    loads = Loads()
    idle = [holding(60.0 + 2 * i, gib, 2.0) for i, gib in enumerate((0, 0, 3, 6, 6))]

    (load,) = loads.of(served(100.0, 6.0), idle)

    assert (load.age_s, load.others_bytes, load.server_gpu_bytes) == (34.0, 2 * GIB, 6 * GIB)
    assert load.free_before_bytes == FREE_BYTES - 2 * GIB
    assert [seen.age_s for seen in loads.of(served(110.0), idle)] == [44.0], "not twice"


def test_two_requests_that_waited_for_one_load() -> None:
    loads = Loads()
    first = loading(100.0, 10.0, [holding(100.0, 0.0), holding(112.0, 6.0)])
    second = loading(105.0, 5.0, [holding(105.0, 3.0), holding(112.0, 6.0)])

    assert len(loads.of(first)) == 1
    assert [load.age_s for load in loads.of(second)] == [0.0]


def test_an_engine_that_was_started_again_has_loaded() -> None:
    loads = Loads()
    loads.of(served(100.0, 8.0, pid=1))
    now = with_server(request(200.0, [holding(200.0, 6.0, pid=2)]), pid=2, uptime_s=30.0)

    newest, before = loads.of(now)

    assert (newest.age_s, newest.server_gpu_bytes) == (30.0, 6 * GIB)
    assert before.server_gpu_bytes == 8 * GIB


def test_an_engine_whose_pid_is_not_seen_was_started_again_when_it_is_younger() -> None:
    loads = Loads()
    loads.of(with_server(request(100.0), pid=None, uptime_s=500.0))
    assert loads.of(with_server(request(110.0), pid=None, uptime_s=510.0)) == ()

    newest, _ = loads.of(with_server(request(200.0), pid=None, uptime_s=20.0))
    assert newest.age_s == 20.0


def test_a_context_that_changed_unseen_is_a_load_nobody_noticed() -> None:
    loads = Loads()
    loads.of(loading(100.0, 4.0, [holding(100.0, 0.0), holding(106.0, 6.0)]))

    assert loads.of(served(200.0, context_tokens=32_768)) == ()


def test_memory_of_a_server_that_died_is_not_held_against_the_next_one() -> None:
    loads = Loads()
    loads.of(request(100.0, [holding(100.0, 10.0, pid=1)], pid=1))
    idle = [holding(150.0, 10.0, pid=1), holding(152.0, 0.0), holding(154.0, 6.0, pid=2)]

    now, before = loads.of(request(200.0, [holding(200.0, 6.0, pid=2)], pid=2), idle)

    assert (now.age_s, now.others_bytes, now.free_before_bytes) == (46.0, 0, FREE_BYTES)
    assert before.server_gpu_bytes == 10 * GIB


def test_reload_degradation_can_be_told() -> None:
    loads = Loads()
    good = loading(100.0, 4.0, [holding(100.0, 0.0), holding(106.0, 6.0)])
    bad = loading(200.0, 4.0, [holding(200.0, 0.0), holding(206.0, 4.0)])
    loads.of(good)
    found = loads.of(bad)

    case = replace(bad, history=replace(bad.history, loads=found))
    assert [load.server_gpu_bytes for load in found] == [4 * GIB, 6 * GIB]
    assert better_load_bytes(case) == 6 * GIB


def test_what_others_held_at_the_load_outlives_them() -> None:
    loads = Loads()
    loads.of(loading(100.0, 4.0, [holding(100.0, 0.0, 18.0), holding(106.0, 4.0, 18.0)]))
    later = served(200.0, 4.0)
    case = replace(later, history=replace(later.history, loads=loads.of(later)))

    assert others_at_load_bytes(case, placement(case), FREE_BYTES) == (18 * GIB, True)


def test_two_models_that_push_each_other_out() -> None:
    loads = Loads()
    for i, name in enumerate("abab"):
        at_s = 100.0 * (i + 1)
        samples = [holding(at_s, 0.0), holding(at_s + 6, 6.0)]
        found = loads.of(model(loading(at_s, 4.0, samples, kind="ollama"), name))

    assert [load.model for load in found] == ["b", "a", "b", "a"]
    assert [load.age_s for load in found] == [0.0, 96.0, 196.0, 296.0]


def beside(at_s: float, *held_gib: float) -> GpuSample:
    """A look at the runners of Ollama, one for each model."""
    return with_runners(at_s, {i + 1: gib for i, gib in enumerate(held_gib) if gib})


def test_two_models_side_by_side() -> None:
    loads = Loads()
    ollama = {"kind": "ollama", "loaded_models": ("a", "b")}
    loads.of(model(loading(100.0, 4.0, [beside(100.0), beside(106.0, 6)], **ollama), "a"))
    second = loading(200.0, 4.0, [beside(200.0, 6), beside(206.0, 6, 4)], **ollama)
    newest, *_ = loads.of(model(second, "b"))
    assert newest.server_gpu_bytes == 4 * GIB
    assert newest.others_bytes == 6 * GIB, "the other model"
    assert newest.free_before_bytes == FREE_BYTES - 6 * GIB

    case = model(request(300.0, [beside(300.0, 6, 4)], **ollama), "a")
    first, *_ = loads.of(case)
    assert (first.model, first.server_gpu_bytes, first.age_s) == ("a", 6 * GIB, 196.0)


def test_a_model_that_made_room_between_two_looks_is_nobodys_excuse() -> None:
    waits = loading(100.0, 4.0, [beside(100.0, 10), beside(106.0, 0, 4)], kind="ollama")
    (load,) = Loads().of(waits)

    assert (load.server_gpu_bytes, load.others_bytes) == (4 * GIB, 0)
    assert load.free_before_bytes is None


def test_the_engines_word_stands_in_where_the_driver_hides_whose_memory_it_is() -> None:
    loads = Loads()
    loads.of(loading(100.0, 4.0, loaded_gpu_bytes=9 * GIB))
    (stale,) = loads.of(request(110.0, loaded_gpu_bytes=9 * GIB))
    assert stale.server_gpu_bytes is None, "may be of the load before"

    (load,) = loads.of(request(150.0, loaded_gpu_bytes=5 * GIB))
    assert load.server_gpu_bytes == 5 * GIB


def test_engines_are_apart() -> None:
    loads = Loads()
    loads.of(loading(100.0, 4.0, url="http://127.0.0.1:1"))

    assert loads.of(request(200.0, url="http://127.0.0.1:2")) == ()


def test_loads_are_bounded_in_number_and_age() -> None:
    loads = Loads()
    found = [loads.of(loading(100.0 * i, 4.0)) for i in range(1, 40)][-1]
    assert len(found) == MAX_LOADS

    assert len(loads.of(request(1e6))) == 1, "the one it runs on"


def test_a_load_phase_of_an_engine_that_says_nothing_else() -> None:
    case = with_phases(request(100.0), load_s=4.0, prefill_from_at_s=None)

    (load,) = Loads().of(case)
    assert load.age_s == 0.0


def test_idle_samples_are_wanted_since_the_last_request() -> None:
    loads = Loads()
    assert loads.since_s(served(1000.0)) == 400.0, "as far as samples reach back"
    before = served(1000.0)
    loads.of(before)

    ended_at_s = before.timeline.last_byte_at_s or 0.0
    assert loads.since_s(served(1060.0)) == ended_at_s - 5.0
    assert loads.since_s(served(9000.0)) == 8400.0
    assert loads.since_s(served(1001.0)) == 996.0, "they were there together"


def rise(*held_gib: float, others_gib: float = 0.0) -> Rise | None:
    samples = [holding(2.0 * i, server, others_gib) for i, server in enumerate(held_gib)]
    return last_rise(held_over_time(samples, (0,), PIDS))


@pytest.mark.parametrize(
    "held_gib",
    [(), (0,), (6,), (6, 6, 6), (4, 6), (0, 0.4), (0, 6, 0), (0, 0), (6, 5.9, 6)],
)
def test_no_load(held_gib: tuple[float, ...]) -> None:
    assert rise(*held_gib) is None


@pytest.mark.parametrize(
    ("held_gib", "before_s", "done_s"),
    [
        pytest.param((0, 6), 0.0, 2.0, id="at once"),
        pytest.param((0, 0, 2, 4, 5.9, 6, 6), 2.0, 8.0, id="slowly"),
        pytest.param((0, 6, 6, 0.3, 6), 6.0, 8.0, id="the newest of two"),
        pytest.param((9, 9, 0, 6), 4.0, 6.0, id="a smaller one"),
    ],
)
def test_load(held_gib: tuple[float, ...], before_s: float, done_s: float) -> None:
    found = rise(*held_gib, others_gib=3.0)

    assert found is not None
    assert (found.before.at_s, found.done_at_s) == (before_s, done_s)
    assert found.before.others_bytes == 3 * GIB
    server = found.before.server_bytes or 0
    assert found.before.free_bytes == TOTAL_BYTES - RESERVED_BYTES - 3 * GIB - server


def test_a_process_is_the_servers_before_it_was_recognised() -> None:
    early = holding(0.0, 2.0)
    unknown = replace(
        early, processes=tuple(replace(p, is_server=False) for p in early.processes or ())
    )
    (held,) = held_over_time([unknown], (0,), PIDS)

    assert (held.server_bytes, held.others_bytes) == (2 * GIB, 0)


def test_another_engines_process_is_one_of_the_others() -> None:
    (held,) = held_over_time([holding(0.0, 2.0, 5.0, other_is_server=True)], (0,), PIDS)

    assert (held.server_bytes, held.others_bytes) == (2 * GIB, 5 * GIB)


def test_hidden_memory_is_others() -> None:
    sample = holding(0.0, 2.0)
    (held,) = held_over_time([replace(sample, free_bytes=10 * GIB)], (0,), PIDS)

    assert held.others_bytes == TOTAL_BYTES - RESERVED_BYTES - 12 * GIB


def unowned(sample: GpuSample) -> GpuSample:
    processes = tuple(replace(p, is_server=None) for p in sample.processes or ())
    return replace(sample, processes=processes)


def test_in_a_container_only_what_is_free_is_known() -> None:
    samples = [unowned(holding(0.0, 0.5)), unowned(holding(2.0, 6.0))]
    held = held_over_time(samples, (0,), PIDS)

    assert [h.server_bytes for h in held] == [None, None]
    assert last_rise(held) is None
    assert lowest(held, 0.0, 9.0) is None


def test_several_gpus_count_together_once_all_are_seen() -> None:
    samples = [holding(0.0, 1.0), replace(holding(0.1, 2.0), index=1), holding(2.0, 3.0)]
    idle = replace(holding(1.0, 9.0), index=2)
    held = held_over_time([*samples, idle], (0, 1), PIDS)

    assert [(h.at_s, h.server_bytes) for h in held] == [(0.1, 3 * GIB), (2.0, 5 * GIB)]


def test_looks_without_processes_or_memory_say_nothing() -> None:
    sample = holding(0.0, 1.0)
    looks = [replace(sample, processes=None), replace(sample, total_bytes=None)]

    assert held_over_time(looks, (0,), PIDS) == []


def test_lowest_is_the_latest_of_its_kind() -> None:
    samples = [holding(float(i), gib) for i, gib in enumerate((0.0, 3.0, 1.0, 1.0, 6.0))]
    held = held_over_time(samples, (0,), PIDS)

    found = lowest(held, 1.0, 4.0)
    assert found is not None
    assert found.at_s == 3.0
    assert found.server_bytes == 1024 * MIB
