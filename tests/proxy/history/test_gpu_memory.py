"""Where a load shows in the memory of a GPU."""

from dataclasses import replace

import pytest

from fakes.gpu_cases import GIB, MIB
from fakes.loads import RESERVED_BYTES, TOTAL_BYTES, holding
from slowtok.detectors.case.machine import GpuSample
from slowtok.proxy.history.loads import Rise, held_over_time, last_rise, lowest

PIDS = (4711,)


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
