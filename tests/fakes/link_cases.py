"""Cases of memory that spilled, of a shared GPU, of slow links and of several GPUs.

Utilisation, powers and rates that a report gave are from that report; the traffic is computed from
bytes and rates, because no report has any.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fakes.cases import with_device, with_server
from fakes.gpu_cases import (
    BUSY_GPU,
    DEVICE,
    GIB,
    HEALTHY_MS,
    LLAMA_8B,
    MIB,
    RTX_3090,
    SERVER,
    SERVING,
    gpu_case,
    with_readings,
)
from slowtok.detectors.case.case import Case, Timeline
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts, GpuProcess, GpuSample

FULL = {"free_bytes": 150 * MIB}
GAME = GpuProcess(pid=77, name="game", memory_bytes=2 * GIB, busy_ratio=0.5)

QWEN_27B = ModelFacts(
    name="qwen3.6-27b",
    quantisation="AWQ",
    file_bytes=15_000_000_000,
    read_bytes=14_500_000_000,
    parameters=27_000_000_000,
    layers=64,
    kv_bytes_per_token=65_536.0,
    bits_per_weight=4.3,
)
VLLM: ServerFacts = replace(
    SERVER,
    kind="vllm",
    gpu_layers=None,
    split_mode=None,
    tensor_parallel=2,
    gpu_indices=(0, 1),
    gpu_memory_ratio=0.9,
)
BY_LAYERS: ServerFacts = replace(SERVER, gpu_indices=(0, 1), split_mode="layer")
GTX_1660 = replace(
    RTX_3090,
    index=1,
    name="NVIDIA GeForce GTX 1660 SUPER",
    total_bytes=6 * GIB,
    bandwidth_bytes_per_s=336e9,
    max_pcie_generation=3,
)


def fetching(
    rx: float | Callable[[float], float],
    *,
    ms_per_token: float,
    os: str | None = "windows",
    **readings: Any,
) -> Case:
    """A full GPU at low power that takes so many bytes per second from RAM."""
    slow = gpu_case(ms_per_token=ms_per_token)
    seen = {"pcie_rx_bytes_per_s": rx, "power_w": 150.0, "busy_ratio": 0.99, **FULL, **readings}
    return with_device(with_readings(slow, **seen), os=os)


def vram_spill() -> Case:
    """6 times slower, as in unslothai/unsloth#11349: 0.8 GB per token at 18 of 26 GB/s."""
    return fetching(18e9, ms_per_token=6 * HEALTHY_MS)


def idle_controller() -> Case:
    """AtomicBot-ai/atomic-llama-cpp-turboquant#77: 10 times slower, memory controller at 2 %.

    Clocks and power are as usual, and PCIe is not told.
    """
    slow = gpu_case(ms_per_token=10 * HEALTHY_MS)
    seen = {"busy_ratio": 1.0, "memory_busy_ratio": 0.02, "pcie_rx_bytes_per_s": None, **FULL}
    return with_device(with_readings(slow, **seen), os="windows")


def evicted(evicted_bytes: int, *, ms_per_token: float = 80.0) -> Case:
    """An AMD card whose driver moved so much of the server's memory to RAM."""
    held = replace(SERVING, busy_ratio=None, evicted_bytes=evicted_bytes)
    card = replace(RTX_3090, vendor="amd")
    slow = gpu_case(ms_per_token=ms_per_token, device=replace(DEVICE, gpus=(card,), os="linux"))
    return with_readings(
        slow,
        processes=(held,),
        pcie_rx_bytes_per_s=None,
        pcie_tx_bytes_per_s=None,
        pstate=None,
        **FULL,
    )


def stepped(before: Case, *, at: float, times: float) -> Case:
    """The case with a rate that falls so many times after this share of its time."""
    first, last = before.timeline.token_at_s[0], before.timeline.token_at_s[-1]
    cut_s = first + at * (last - first)
    count = len(before.timeline.token_at_s)
    early = round(count * at * times / (at * times + 1 - at))
    late = count - early
    token_at_s = (
        *(first + (cut_s - first) * i / early for i in range(early)),
        *(cut_s + (last - cut_s) * i / max(late - 1, 1) for i in range(late)),
    )
    timeline: Timeline = replace(before.timeline, token_at_s=token_at_s)
    return replace(before, timeline=timeline)


def shared(*processes: GpuProcess, ms_per_token: float = 2 * HEALTHY_MS, **readings: Any) -> Case:
    """A full GPU with these processes on it, half as fast as alone."""
    return with_readings(gpu_case(ms_per_token=ms_per_token), processes=processes, **readings)


def gpu_shared() -> Case:
    """Two that want all of it: half of the time each, as in pytorch/pytorch#14531."""
    return shared(replace(SERVING, busy_ratio=0.49), GAME)


def on_gpus(
    server: ServerFacts,
    *gpus: GpuFacts,
    readings: Sequence[dict[str, Any]],
    ms_per_token: float,
    model: ModelFacts = LLAMA_8B,
    **common: Any,
) -> Case:
    """A case on several GPUs, each with its own readings beside the common ones."""
    device: DeviceFacts = replace(DEVICE, gpus=gpus)
    before = gpu_case(ms_per_token=ms_per_token, server=server, device=device, model=model)
    samples: list[GpuSample] = []
    for gpu, own in zip(gpus, readings, strict=True):
        total = gpu.total_bytes or BUSY_GPU.total_bytes
        seen = {"total_bytes": total, **common, **own}
        samples += [replace(s, index=gpu.index, **seen) for s in before.gpu]
    samples.sort(key=lambda s: (s.at_s, s.index))
    return replace(before, gpu=tuple(samples))


def pair(server: ServerFacts, first: dict[str, Any], second: dict[str, Any], **more: Any) -> Case:
    """A case on two RTX 3090."""
    cards = (RTX_3090, replace(RTX_3090, index=1, uuid="GPU-3090-2"))
    return on_gpus(server, *cards, readings=(first, second), **more)


def multi_gpu_split() -> Case:
    """noonghunna/club-3090#356: 82 and 51 % busy, 195 and 243 of 290 W, 50 tokens/s.

    The link and what crosses it are inferred.
    """
    return pair(
        VLLM,
        {"busy_ratio": 0.82, "power_w": 195.0},
        {"busy_ratio": 0.51, "power_w": 243.0},
        ms_per_token=20.0,
        model=QWEN_27B,
        power_limit_w=290.0,
    )


def by_rows() -> Case:
    """Rows on two cards, slower than one card after the other (as ggml-org/llama.cpp#4747)."""
    rows = replace(BY_LAYERS, split_mode="row")
    waiting = {"busy_ratio": 0.5, "power_w": 250.0}
    return pair(rows, waiting, waiting, ms_per_token=20.0)


def pcie_link(**readings: Any) -> Case:
    """Tensor parallel with one card on a riser: its link is half full all the time."""
    thin = {
        "pcie_generation": 2,
        "pcie_width": 1,
        "pcie_rx_bytes_per_s": 0.2e9,
        "pcie_tx_bytes_per_s": 0.2e9,
        **readings,
    }
    both = {"busy_ratio": 0.55, "memory_busy_ratio": 0.5, "power_w": 200.0}
    return pair(VLLM, both, {**both, **thin}, ms_per_token=28.0, model=QWEN_27B)


def streamed(*, generation: int = 4, width: int = 2, rx: float = 3e9) -> Case:
    """A long prefill whose weights come over the link, by design."""
    slow = gpu_case(prefill_s=20.0, prompt=4000)
    return with_readings(
        slow,
        pcie_generation=generation,
        pcie_width=width,
        pcie_rx_bytes_per_s=lambda s: rx if s < 20 else 20e6,
    )


def healthy_layers() -> Case:
    """Layers on two equal cards: each is busy for half of the time, as it should be."""
    half = {"busy_ratio": 0.48, "memory_busy_ratio": 0.42, "power_w": 190.0}
    return pair(BY_LAYERS, half, half, ms_per_token=HEALTHY_MS)


def gap() -> Case:
    """ggml-org/llama.cpp#10682: half of the slower card's rate by layers; it fits either.

    That both were busy for a quarter of the time is inferred.
    """
    quarter = {"busy_ratio": 0.25, "power_w": 100.0}
    return pair(BY_LAYERS, quarter, quarter, ms_per_token=2 * HEALTHY_MS)


def uneven() -> Case:
    """Half of the model on a card with a third of the bandwidth, while the faster one has room."""
    part = replace(SERVING, memory_bytes=3350 * MIB)
    fast = {"busy_ratio": 0.25, "processes": (part,), "free_bytes": 20 * GIB}
    slow = {"busy_ratio": 0.7, "processes": (part,), "free_bytes": 2 * GIB}
    return on_gpus(BY_LAYERS, RTX_3090, GTX_1660, readings=(fast, slow), ms_per_token=14.0)


def with_env(before: Case, *, unified: bool | None) -> Case:
    """The case on Linux, with or without the variable that lets memory spill."""
    return with_server(with_device(before, os="linux"), unified_memory=unified)
