"""Whose the memory is, on machines of all kinds. Sizes in GiB."""

import pytest

from slowtok.detectors.analysis.gpu.vram import Holder, newest_split, split_vram
from slowtok.detectors.case.machine import GpuProcess, GpuSample

GIB = 2**30


def gib(count: float | None) -> int | None:
    return None if count is None else int(count * GIB)


def process(
    pid: int,
    memory: float | None,
    *,
    server: bool | None = False,
    name: str | None = "game",
) -> GpuProcess:
    return GpuProcess(pid=pid, name=name, memory_bytes=gib(memory), is_server=server)


def sample(
    *processes: GpuProcess,
    free: float | None,
    total: float | None = 24,
    reserved: float | None = 0.5,
    listed: bool = True,
    at_s: float = 1.0,
) -> GpuSample:
    return GpuSample(
        at_s=at_s,
        index=0,
        free_bytes=gib(free),
        total_bytes=gib(total),
        reserved_bytes=gib(reserved),
        processes=processes if listed else None,
    )


def test_two_processes_and_what_is_left() -> None:
    found = split_vram(
        sample(process(1, 12, server=True, name="llama-server"), process(2, 3), free=8.25)
    )

    assert found is not None
    assert found.server_bytes == 12 * GIB
    assert found.others == (Holder("game", 2, 3 * GIB),)
    assert found.others_bytes == 3 * GIB
    assert found.hidden_bytes == gib(0.25)
    assert (found.free_bytes, found.total_bytes) == (gib(8.25), 24 * GIB)
    assert found.usable_bytes == gib(23.5)
    parts = (12 * GIB, 3 * GIB, found.unassigned_bytes, found.hidden_bytes, found.free_bytes)
    assert sum(part or 0 for part in parts) == found.usable_bytes


def test_a_server_of_several_processes_is_one_and_others_are_largest_first() -> None:
    found = split_vram(
        sample(
            process(1, 5, server=True),
            process(2, 1, name="small"),
            process(3, 6, server=True),
            process(4, 2, name="large"),
            free=9.5,
        )
    )

    assert found is not None
    assert found.server_bytes == 11 * GIB
    assert [other.name for other in found.others] == ["large", "small"]
    assert found.hidden_bytes == 0


def test_vllm_that_filled_the_card() -> None:
    found = split_vram(sample(process(1, 78.875, server=True), free=0.625, total=80))

    assert found is not None
    assert (found.server_bytes, found.hidden_bytes) == (gib(78.875), 0)
    assert found.free_bytes == gib(0.625)


def test_windows_hides_what_each_process_has() -> None:
    found = split_vram(
        sample(process(1, None, server=True), process(2, None, name="dwm.exe"), free=2, total=16)
    )

    assert found is not None
    assert found.server_bytes is None
    assert found.others == (Holder("dwm.exe", 2, None),)
    assert found.others_bytes is None
    assert found.hidden_bytes is None
    assert found.free_bytes == 2 * GIB


def test_unified_memory_has_no_split() -> None:
    assert split_vram(sample(process(1, 60, server=True), free=None, total=None)) is None
    assert split_vram(sample(free=0, total=0)) is None


def test_a_pid_namespace_blames_nobody() -> None:
    found = split_vram(
        sample(
            process(90001, 12, server=None, name=None),
            process(90002, 3, server=None, name=None),
            free=8.5,
        )
    )

    assert found is not None
    assert found.server_bytes is None
    assert found.others == ()
    assert found.unassigned_bytes == 15 * GIB
    assert found.hidden_bytes == 0


@pytest.mark.parametrize(("used", "server"), [(0.25, 0), (20, None)])
def test_what_nobody_is_seen_to_hold_may_be_the_servers(used: float, server: int | None) -> None:
    """WSL2 lists no process at all."""
    found = split_vram(sample(free=23.5 - used))

    assert found is not None
    assert found.server_bytes == server
    assert found.hidden_bytes == gib(used)


def test_without_a_list_nothing_is_anybodys() -> None:
    found = split_vram(sample(free=4, listed=False))

    assert found is not None
    assert (found.server_bytes, found.hidden_bytes, found.unassigned_bytes) == (None, None, None)
    assert found.others == ()


def test_a_slice_is_a_gpu_of_its_own() -> None:
    found = split_vram(sample(process(1, 7, server=True), free=2.5, total=9.75, reserved=0.25))

    assert found is not None
    assert (found.server_bytes, found.usable_bytes) == (7 * GIB, gib(9.5))


def test_without_the_reserve_what_is_hidden_is_not_known() -> None:
    found = split_vram(sample(process(1, 12, server=True), free=11, reserved=None))

    assert found is not None
    assert found.hidden_bytes is None
    assert found.usable_bytes == 24 * GIB


@pytest.mark.parametrize(("listed", "hidden"), [(15.25, 0), (18, None)])
def test_readings_that_were_taken_apart(listed: float, hidden: int | None) -> None:
    found = split_vram(sample(process(1, listed, server=True), free=8.5))

    assert found is not None
    assert found.hidden_bytes == hidden


def test_the_newest_list_counts_even_if_memory_was_read_since() -> None:
    old = sample(process(1, 1, server=True), free=22.5)
    listed = sample(process(1, 12, server=True), free=11.5, at_s=2.0)
    later = sample(free=11, at_s=2.1, listed=False)

    found = newest_split([old, listed, later, GpuSample(at_s=2.2, index=0)])

    assert found is not None
    assert (found.server_bytes, found.free_bytes) == (12 * GIB, gib(11.5))
    only_memory = newest_split([later])
    assert only_memory is not None
    assert only_memory.free_bytes == 11 * GIB
    assert newest_split([GpuSample(at_s=2.2, index=0)]) is None
