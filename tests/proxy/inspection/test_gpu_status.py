"""GPUs in /slowtok/status, for people with none, one, two, and in a container."""

from typing import Any

import pytest

from fakes.records import GIB
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts, GpuProcess, GpuSample
from slowtok.proxy.inspection.gpu_status import gpu_status, gpus_not_visible

NOT_SUPPORTED = "not supported by this GPU or driver"


def card(index: int, **facts: Any) -> GpuFacts:
    return GpuFacts(index=index, name="NVIDIA GeForce RTX 3090", max_power_limit_w=390.0, **facts)


def sample(index: int = 0, *processes: GpuProcess, **readings: Any) -> GpuSample:
    return GpuSample(
        at_s=1.0,
        index=index,
        total_bytes=24 * GIB,
        free_bytes=4 * GIB,
        reserved_bytes=GIB,
        processes=processes,
        **readings,
    )


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (DeviceFacts(), "not looked yet"),
        (DeviceFacts(gpus=None, gpus_reason="NVML library not found"), "NVML library not found"),
        (DeviceFacts(gpus=()), "no GPU"),
        (DeviceFacts(gpus=(), gpus_reason="GPU 0: GPU is lost"), "GPU 0: GPU is lost"),
    ],
)
def test_no_gpu_is_told_with_its_reason(device: DeviceFacts, why: str) -> None:
    [hidden] = gpus_not_visible(device, ())

    assert (hidden["fact"], hidden["why"]) == ("GPUs", why)
    assert hidden["how_to_enable"].startswith("nothing to do if this machine has no GPU")
    assert gpu_status(device, ()) == []


def test_one_gpu_with_its_limits_and_its_memory() -> None:
    server = GpuProcess(pid=7, name="llama-server", memory_bytes=18 * GIB, is_server=True)
    device = DeviceFacts(gpus=(card(0, absent={"dram_busy_ratio": NOT_SUPPORTED}),))
    [shown] = gpu_status(
        device, [sample(0, server, power_limit_w=350.0), GpuSample(at_s=2, index=0)]
    )

    assert shown == {
        "index": 0,
        "name": "NVIDIA GeForce RTX 3090",
        "max_power_limit_w": 390.0,
        "power_limit_w": 350.0,
        "vram": {
            "server_bytes": 18 * GIB,
            "others_bytes": 0,
            "hidden_bytes": GIB,
            "free_bytes": 4 * GIB,
            "total_bytes": 24 * GIB,
        },
    }
    assert gpus_not_visible(device, ()) == [
        {
            "fact": "share of the memory bandwidth in use of GPU 0 (NVIDIA GeForce RTX 3090)",
            "why": NOT_SUPPORTED,
            "how_to_enable": "Hopper and newer data-centre GPUs tell it",
        }
    ]


def test_gpu_that_tells_all_hides_nothing() -> None:
    device = DeviceFacts(gpus=(card(0, absent={"vgpu_licensed": NOT_SUPPORTED}),))

    assert gpus_not_visible(device, [sample()]) == []


def test_virtual_gpu_should_tell_its_licence() -> None:
    device = DeviceFacts(gpus=(card(0, virtual=True, absent={"vgpu_licensed": NOT_SUPPORTED}),))
    [hidden] = gpus_not_visible(device, ())

    assert hidden["fact"].startswith("vGPU licence of GPU 0")


def test_two_gpus_that_lack_the_same_are_one_line() -> None:
    absent = {"pcie_rx_bytes_per_s": NOT_SUPPORTED, "pcie_tx_bytes_per_s": NOT_SUPPORTED}
    both = DeviceFacts(gpus=(GpuFacts(index=0, absent=absent), GpuFacts(index=1, absent=absent)))
    one = DeviceFacts(
        gpus=(
            GpuFacts(index=0),
            GpuFacts(index=1, absent={"energy_j": NOT_SUPPORTED, "busy_ratio": "no permission"}),
        )
    )

    assert [hidden["fact"] for hidden in gpus_not_visible(both, ())] == [
        "PCIe traffic of GPU 0, GPU 1"
    ]
    assert [(hidden["fact"], hidden["why"]) for hidden in gpus_not_visible(one, ())] == [
        ("energy of GPU 1", NOT_SUPPORTED),
        ("GPU utilisation of GPU 1", "no permission"),
    ]


def test_gpu_that_is_missing_is_told_beside_the_others() -> None:
    device = DeviceFacts(gpus=(card(0),), gpus_reason="GPU 1: GPU is lost")

    assert gpus_not_visible(device, ()) == [{"fact": "some GPUs", "why": "GPU 1: GPU is lost"}]


def test_container_with_its_own_pids_is_told_what_to_do() -> None:
    foreign = GpuProcess(pid=9001, memory_bytes=18 * GIB, is_server=None)
    device = DeviceFacts(gpus=(card(0),), private_pids=True)
    [hidden] = gpus_not_visible(device, [sample(0, foreign)])

    assert hidden["fact"] == "which processes on the GPUs are the server's"
    assert "--pid=host" in hidden["why"]
    assert gpus_not_visible(DeviceFacts(gpus=(card(0),), private_pids=False), ()) == []


def test_windows_is_told_why_memory_has_no_names() -> None:
    hiding = sample(0, GpuProcess(pid=1, name="ollama.exe", is_server=True))
    telling = sample(1, GpuProcess(pid=1, memory_bytes=GIB))
    [hidden] = gpus_not_visible(DeviceFacts(gpus=(card(0), card(1))), [hiding, telling])

    assert hidden["fact"] == "memory of each process on GPU 0 (NVIDIA GeForce RTX 3090)"
    assert hidden["why"].startswith("Windows")
