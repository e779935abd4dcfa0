"""Cases in which a part of the model is not on the GPU, after published reports.

Sizes, layers, splits, utilisation and rates are the reports' own; where they are silent (the other
model facts, RAM, threads) usual values stand, which each case names as inferred.
"""

from dataclasses import replace
from typing import Any

from fakes.gpu_cases import (
    BUSY_GPU,
    DEVICE,
    GIB,
    GPU_HOST,
    LLAMA_8B,
    MIB,
    RTX_3090,
    SERVER,
    SERVER_PID,
    gpu_case,
    with_readings,
)
from slowtok.detectors.case.case import Case, History, ModelLoad
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuProcess, GpuSample, HostSample

SPLIT_HOST: HostSample = replace(
    GPU_HOST, cpu_busy_cores=8.3, server_cpu_cores=7.8, server_busy_threads=8
)
"""Eight threads compute what is not on the GPU."""

MIXTRAL = ModelFacts(
    name="mixtral:8x7b",
    quantisation="Q4_0",
    file_bytes=26_440_000_000,
    read_bytes=7_220_000_000,
    parameters=46_703_000_000,
    layers=32,
    experts=8,
    experts_used=2,
    kv_bytes_per_token=131_072.0,
    bits_per_weight=4.5,
)

QWEN_7B = ModelFacts(
    name="qwen2.5:7b",
    quantisation="Q4_K_M",
    file_bytes=4_683_000_000,
    read_bytes=4_370_000_000,
    parameters=7_616_000_000,
    layers=28,
    kv_bytes_per_token=57_344.0,
    bits_per_weight=4.9,
)

GEMMA_27B = ModelFacts(
    name="gemma3:27b",
    quantisation="Q4_K_M",
    file_bytes=17_400_000_000,
    read_bytes=17_400_000_000,
    parameters=27_430_000_000,
    layers=62,
    kv_bytes_per_token=81_920.0,
    kv_window_tokens=1024,
    kv_window_bytes_per_token=425_984.0,
    bits_per_weight=5.1,
)

RTX_4060 = replace(
    RTX_3090,
    uuid="GPU-4060",
    name="NVIDIA GeForce RTX 4060",
    total_bytes=8 * GIB,
    bus_width_bits=128,
    bandwidth_bytes_per_s=272e9,
)


def card(server_mib: int, *others: GpuProcess, total: int = 24 * GIB, **readings: Any) -> GpuSample:
    """A GPU that waits for the CPU, with so much of the server on it."""
    server = GpuProcess(
        pid=SERVER_PID, name="ollama", memory_bytes=server_mib * MIB, is_server=True
    )
    held = server_mib * MIB + sum(other.memory_bytes or 0 for other in others)
    waiting = replace(
        BUSY_GPU,
        busy_ratio=0.15,
        memory_busy_ratio=0.08,
        power_w=150.0,
        reasons=0x1,
        total_bytes=total,
        free_bytes=total - 300 * MIB - held,
        processes=(server, *others),
    )
    return replace(waiting, **readings)


def ollama(
    context: int, *, loaded: float | None = None, on_gpu: float | None = None
) -> ServerFacts:
    """Ollama with so many GiB of its model in memory and on GPUs, by its own word."""
    return replace(
        SERVER,
        kind="ollama",
        url="http://127.0.0.1:11434",
        context_tokens=context,
        gpu_layers=-1,
        loaded_bytes=None if loaded is None else int(loaded * GIB),
        loaded_gpu_bytes=None if on_gpu is None else int(on_gpu * GIB),
    )


def model_too_big() -> Case:
    """ollama/ollama#3301: Mixtral on an RTX 3090, 23 of 33 layers, 15 % busy, 15 tokens/s.

    22,070 MiB are in use; RAM of 50 GB/s (DDR4) and the default context of that time are inferred.
    """
    return gpu_case(
        ms_per_token=1000 / 15,
        completion=400,
        model=MIXTRAL,
        server=replace(ollama(2048), gpu_layers=23),
        device=replace(DEVICE, ram_bandwidth_bytes_per_s=50e9),
        gpu=card(21_600, power_limit_w=370.0),
        host=SPLIT_HOST,
    )


def context_oversized() -> Case:
    """Bitshank-2338/clicky-windows#18: 8 GB RTX 4060, 65,536 tokens, 35 % in RAM by `ollama ps`.

    The model is inferred (a 7B that is wholly on the GPU with 8,192 tokens, as reported), as are
    the rate and a RAM of 45 GB/s.
    """
    return gpu_case(
        ms_per_token=110.0,
        completion=300,
        model=QWEN_7B,
        server=ollama(65_536, loaded=9.3, on_gpu=6.05),
        device=replace(DEVICE, gpus=(RTX_4060,)),
        gpu=card(6_500, total=8 * GIB),
        host=SPLIT_HOST,
    )


def vram_held_by_others() -> Case:
    """ollama/ollama#10823: 62 layers that need 23.4 GiB, 17.8 GiB free at load, 49 of 63 there.

    The model, its context and the rate are inferred; what the others hold now is a browser's rest.
    """
    browser = GpuProcess(pid=77, name="chrome.exe", memory_bytes=900 * MIB)
    case = gpu_case(
        ms_per_token=155.0,
        completion=300,
        model=GEMMA_27B,
        server=ollama(65_536, loaded=23.1, on_gpu=23.1 * 49 / 63),
        gpu=card(18_600, browser),
        host=SPLIT_HOST,
    )
    load = ModelLoad(
        age_s=600.0,
        model="gemma3:27b",
        context_tokens=65_536,
        server_gpu_bytes=int(23.1 * 49 / 63 * GIB),
        free_before_bytes=int(17.8 * GIB),
    )
    return replace(case, history=History(loads=(load,)))


def reload_degradation() -> Case:
    """A model that was wholly on the GPU in an earlier load, and for a quarter is not in this one.

    After lmstudio-ai/lmstudio-bug-tracker#1923, which has no numbers for the split; computed.
    """
    case = gpu_case(
        ms_per_token=44.0,
        completion=400,
        model=LLAMA_8B,
        server=ollama(8192, loaded=6.4, on_gpu=4.8),
        gpu=card(5_200, busy_ratio=0.2),
        host=SPLIT_HOST,
    )
    now = ModelLoad(
        age_s=60.0,
        model="llama3:8b",
        context_tokens=8192,
        server_gpu_bytes=int(4.8 * GIB),
        others_bytes=200 * MIB,
    )
    before = replace(now, age_s=900.0, server_gpu_bytes=int(6.4 * GIB))
    return replace(case, history=History(loads=(now, before)))


def partial_offload() -> Case:
    """A llama-server that was told to put 20 of 33 layers on a card that has room for all."""
    return gpu_case(
        ms_per_token=75.0,
        completion=400,
        server=replace(SERVER, gpu_layers=20),
        gpu=card(4_000, busy_ratio=0.08),
        host=SPLIT_HOST,
    )


def apple() -> DeviceFacts:
    """A Mac: its GPU uses the machine's memory and names no processes."""
    gpu = replace(
        RTX_3090,
        uuid=None,
        name="Apple M3 Max",
        vendor="apple",
        total_bytes=None,
        bus_width_bits=None,
        bandwidth_bytes_per_s=400e9,
        unified_memory=True,
    )
    return replace(DEVICE, gpus=(gpu,), ram_bytes=64 * GIB, ram_bandwidth_bytes_per_s=200e9)


def memory_untold() -> Case:
    """Neither the engine nor the driver tells what of the model is on the GPU, which waits."""
    return with_readings(
        gpu_case(server=replace(SERVER, gpu_layers=None)), processes=None, busy_ratio=0.2
    )
