"""Which GPUs a server uses, by the driver's word and by its environment's."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from slowtok.detectors.case.machine import DeviceFacts, GpuFacts, GpuProcess, GpuSample
from slowtok.proxy.engines.gpus_used import gpus_used, seen_from

GIB = 2**30
UUIDS = ("GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000")
ADDRESSES = ("00000000:C1:00.0", "00000000:01:00.0", "00000000:41:00.0")


def device(count: int, *, private_pids: bool | None = False) -> DeviceFacts:
    gpus = tuple(
        GpuFacts(index=i, uuid=UUIDS[i], pci_bus_id=ADDRESSES[i], vendor="nvidia")
        for i in range(count)
    )
    return DeviceFacts(gpus=gpus, private_pids=private_pids)


def held(
    gib: float | None, *, server: bool | None = True, pid: int = 7, name: str = "x"
) -> GpuProcess:
    memory = None if gib is None else int(gib * GIB)
    return GpuProcess(pid=pid, name=name, memory_bytes=memory, is_server=server)


def listed(index: int, *processes: GpuProcess, at_s: float = 1.0, free: float = 23) -> GpuSample:
    """A 24 GiB GPU with these processes."""
    used = sum(p.memory_bytes or 0 for p in processes)
    return GpuSample(
        at_s=at_s,
        index=index,
        processes=processes,
        total_bytes=24 * GIB,
        free_bytes=min(int(free * GIB), 24 * GIB - used),
        reserved_bytes=0,
    )


ALL_EMPTY = [listed(0, free=24), listed(1, free=24)]


def test_vllm_uses_the_cards_of_its_workers() -> None:
    samples = [
        listed(0, held(70, pid=101, name="VLLM::Worker_TP0")),
        listed(1, held(70, pid=102, name="VLLM::Worker_TP1")),
        listed(2, held(3, server=False)),
    ]

    assert gpus_used(samples, device(3), {}) == (0, 1)


def test_ollama_before_and_after_its_runner_has_loaded() -> None:
    before = [listed(0, free=24), listed(1, held(1, server=False))]
    after = [*before, listed(0, held(18, name="ollama"), at_s=2.0)]

    assert gpus_used(before, device(2), {}) == ()
    assert gpus_used(after, device(2), {}) == (0,)


def test_newest_list_counts_and_samples_without_one_do_not() -> None:
    samples = [
        listed(0, held(18)),
        listed(0, held(5, server=False), at_s=2.0),
        GpuSample(at_s=3.0, index=0),
    ]

    assert gpus_used(samples, device(1), {}) == ()


def test_looking_at_a_card_is_not_using_it() -> None:
    model, context = held(18), held(0.4)

    assert gpus_used([listed(0, model), listed(1, context)], device(2), {}) == (0,)
    assert gpus_used([listed(0, context), listed(1, context)], device(2), {}) == (0, 1)
    small = [listed(0, held(0.6)), listed(1, held(0.5))]
    assert gpus_used(small, device(2), {}) == (0, 1)


def test_windows_says_where_but_not_how_much() -> None:
    samples = [listed(0, held(None)), listed(1, held(None, server=False), free=23.9)]

    assert gpus_used(samples, device(2), {}) == (0,)


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_known_without_lists(count: int) -> None:
    assert gpus_used([], device(count), {}) is None
    assert gpus_used([GpuSample(at_s=1.0, index=0)], device(count), {}) is None


@pytest.mark.parametrize("gpus", [None, ()])
def test_a_gpu_that_no_library_shows_may_be_used(gpus: tuple[GpuFacts, ...] | None) -> None:
    assert gpus_used([], DeviceFacts(gpus=gpus), {}) is None


def test_another_pid_namespace_tells_nothing() -> None:
    foreign = listed(0, held(18, server=None))

    assert gpus_used([foreign, listed(1, free=24)], device(2), {}) is None
    assert gpus_used(ALL_EMPTY, device(2, private_pids=True), {}) is None


def test_memory_on_nobodys_name_may_be_the_servers() -> None:
    """WSL2 lists no process at all."""
    assert gpus_used([listed(0, free=4)], device(1), {}) is None
    assert gpus_used([listed(0, free=23.8)], device(1), {}) == ()


def test_a_card_that_tells_nothing_is_idle_beside_one_that_is_used() -> None:
    """An integrated GPU whose processes cannot be read."""
    assert gpus_used([listed(0, held(18))], device(2), {}) == (0,)


@pytest.mark.parametrize(
    ("environment", "used"),
    [
        ({"CUDA_VISIBLE_DEVICES": UUIDS[1]}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-AAAA2"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": f" {UUIDS[2]}, {UUIDS[0]}"}, (0, 2)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, None),
        ({"CUDA_VISIBLE_DEVICES": "GPU-cccc"}, None),
        ({"CUDA_VISIBLE_DEVICES": "MIG-4711"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "0,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (0, 1)),
        ({"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"HIP_VISIBLE_DEVICES": "0"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "1"}, (1,)),
        ({"NVIDIA_VISIBLE_DEVICES": f"{UUIDS[0]},{UUIDS[2]}"}, (0, 2)),
        ({"NVIDIA_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0"}, (2,)),
        ({"NVIDIA_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "0"}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": UUIDS[2]}, (2,)),
        ({"NVIDIA_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": ""}, ()),
    ],
)
def test_environment_tells_where_the_driver_does_not(
    environment: Mapping[str, str], used: tuple[int, ...] | None
) -> None:
    assert gpus_used([], device(3), environment) == used


def test_number_is_clear_where_there_is_one_gpu() -> None:
    assert gpus_used([], device(1), {"CUDA_VISIBLE_DEVICES": "0"}) == (0,)
    assert gpus_used([], device(1), {"CUDA_VISIBLE_DEVICES": "1"}) is None


def test_driver_is_believed_before_the_environment() -> None:
    """A Vulkan build does not look at CUDA's variable."""
    samples = [listed(0, held(18)), listed(1, free=24)]

    assert gpus_used(samples, device(2), {"CUDA_VISIBLE_DEVICES": UUIDS[1]}) == (0,)


def test_makers_have_variables_of_their_own() -> None:
    amd = GpuFacts(index=1, uuid="GPU-dead0000", vendor="amd")
    both = DeviceFacts(gpus=(*(device(1).gpus or ()), amd))
    none, one = {"CUDA_VISIBLE_DEVICES": ""}, {"ROCR_VISIBLE_DEVICES": "GPU-dead"}

    assert gpus_used([], both, none) is None
    assert gpus_used([], both, one) == (1,)
    assert gpus_used([], both, none | one) == (1,)
    assert gpus_used([], both, none | one | {"HIP_VISIBLE_DEVICES": "-1"}) == ()


def test_slices_stand_for_the_gpu_that_they_are_of() -> None:
    [whole] = device(1).gpus or ()
    slices = tuple(
        GpuFacts(index=i, uuid=f"MIG-{i}", partition_of=whole.uuid, vendor="nvidia") for i in (1, 2)
    )
    cut = DeviceFacts(gpus=(replace(whole, mig=True), *slices), private_pids=False)
    samples = [listed(1, free=24), listed(2, held(8))]

    assert gpus_used(samples, cut, {}) == (2,)
    assert gpus_used([listed(0, held(8)), *samples], cut, {}) == (2,)
    assert gpus_used([], cut, {"CUDA_VISIBLE_DEVICES": "MIG-1"}) == (1,)
    assert gpus_used([], cut, {"CUDA_VISIBLE_DEVICES": "0"}) is None
    assert gpus_used([], cut, {"CUDA_VISIBLE_DEVICES": UUIDS[0]}) is None


def test_two_engines_do_not_share_their_cards() -> None:
    samples = [listed(0, held(18, pid=11)), listed(1, held(9, pid=22))]

    assert gpus_used(samples, device(2), {}) == (0, 1)
    assert gpus_used(seen_from(samples, {11, 12}), device(2), {}) == (0,)
    assert gpus_used(seen_from(samples, {22}), device(2), {}) == (1,)


def test_seen_from_a_server_the_rest_is_as_it_was() -> None:
    samples = (
        GpuSample(at_s=1.0, index=0),
        listed(0, held(1, server=False), held(1, server=None), held(1, pid=11)),
    )

    assert seen_from(samples, {11}) == samples
