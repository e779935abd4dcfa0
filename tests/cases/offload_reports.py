"""Reports of models that did not run where their user took them to be."""

from cases.parts import (
    GIB,
    MIB,
    PID,
    Asked,
    Report,
    build,
    card,
    serving,
    vram,
    weights,
)
from slowtok.detectors.case.case import Baseline, Case
from slowtok.detectors.case.machine import GpuProcess

GTT = "https://github.com/ggml-org/llama.cpp/issues/26432"
DEPTH = 74_700


def _on_7900(context: int, tps: float, prefill_tps: float, held_gib: float, gtt_gib: float) -> Case:
    process = GpuProcess(
        pid=PID,
        memory_bytes=int(held_gib * GIB),
        host_memory_bytes=int(gtt_gib * GIB),
        is_server=True,
    )
    return build(
        Asked(tps=tps, prompt=DEPTH, prefill_s=DEPTH / prefill_tps),
        kind="llama-server",
        model=weights("Qwen3.6-27B", "IQ4_XS", like="Qwen3.5-27B", file_bytes=int(14.1e9)),
        cards=(card("AMD Radeon RX 7900 XT", total_bytes=20_464 * MIB),),
        gpu=({**vram(held_gib * 1024, 20_464), "processes": (process,)},),
        server={
            "version": "11924d4c1",
            "context_tokens": context,
            "slots": 1,
            "gpu_layers": 99,
            "kv_type_k": "q4_0",
            "kv_type_v": "q4_0",
            "flash_attention": "on",
            "speculative": True,
        },
        device={"os": "linux"},
    )


def _moved_to_gtt() -> Report:
    return Report(
        name="r064-gtt-7900xt",
        url=GTT,
        says="18 tokens/s at a depth of 74,700, read at 303 a second, with -c 196608; 14.6 GB in "
        "GTT after the first request; 42-46 and 449 with -c 131072",
        case=_on_7900(196_608, 18.0, 303.0, 19.95, 14.6),
        slow=True,
        primary=("vram-spill", "context-oversized"),
        allowed=("slow-prefill",),
        inferred={"gpu.free_bytes": "19.95 of 20,464 MiB: as told right after the load"},
    )


def _room_on_7900() -> Report:
    return Report(
        name="r064-room-7900xt",
        url=GTT,
        says="42-46 tokens/s at a depth of 74,700, read at 449 a second, with -c 131072; 18.60 GB "
        "of 20 and 0.43 in GTT: the control of the report",
        case=_on_7900(131_072, 44.0, 449.0, 18.60, 0.43),
        slow=False,
        allowed=("long-context",),
        verdicts=("normal",),
        inferred={"phases.decode_tps": "44: the middle of 42 to 46"},
    )


def _vulkan_9060() -> Report:
    case = build(
        Asked(tps=9.0),
        kind="llama-server",
        model=weights("gemma-4-26B-A4B", "Q5_K_M", like="Gemma-4-26B-A4B"),
        cards=(card("AMD Radeon RX 9060 XT"),),
        server={"version": "b9093"},
        device={"os": "linux", "ram_bytes": 32 * GIB},
        baseline=Baseline(count=20, decode_tps=27.0),
    )
    return Report(
        name="r066-vulkan-9060xt",
        url="https://github.com/ggml-org/llama.cpp/issues/22898",
        says="9 tokens/s at a long context where 27 were, until the server is started again; "
        "26.9 with ROCm; memory not told",
        case=case,
        slow=True,
        allowed=("vram-spill", "context-oversized"),
        inferred={
            "baseline": "the same server before",
            "model": "UD-Q5_K_XL, counted as Q5_K_M",
            "timeline.tokens.prompt": "100: how long the context was is not told",
        },
        needs="how much of it the driver moved into RAM (amdgpu's fdinfo), and the flags",
    )


def _fit_leaves_room() -> Report:
    cards = (card("NVIDIA GeForce RTX 5070"), card("NVIDIA GeForce RTX 3060", 1))
    full = vram(12_288 - 1024, 12_288)
    case = build(
        Asked(tps=23.5),
        kind="llama-server",
        model=weights("Qwen3.6-27B", "Q4_K_M", like="Qwen3.5-27B"),
        cards=cards,
        gpu=2 * ({**full, "processes": serving()},),
        server={"version": "b9382", "speculative": True},
        baseline=Baseline(count=20, decode_tps=29.5),
    )
    return Report(
        name="r030-fit-leaves-room",
        url="https://github.com/ggml-org/llama.cpp/issues/23772",
        says="23-24 tokens/s since --fit leaves 1,024 MiB of each card free, 29-30 with 512",
        case=case,
        slow=True,
        allowed=("partial-offload", "model-too-big", "context-oversized"),
        inferred={
            "gpu.free_bytes": "what --fit leaves by default",
            "baseline": "the same machine with what it had before",
        },
        needs="how many bytes the engine left in RAM: its log or /props, or the CPU at work",
    )


def _driver_mismatch() -> Report:
    size = int(6.1 * GIB)
    case = build(
        Asked(tps=4.0, completion=240),
        kind="ollama",
        model=weights("qwen3.5:9b", "Q4_K_M", like="Qwen3.5-9B", file_bytes=size),
        host={"server_cpu_cores": 7.66},
        server={
            "version": "0.20.6",
            "gpu_indices": None,
            "loaded_bytes": size,
            "loaded_gpu_bytes": 0,
        },
        device={"os": "linux", "gpus_reason": "Driver/library version mismatch"},
    )
    return Report(
        name="r048-driver-mismatch",
        url="https://github.com/ollama/ollama/issues/15918",
        says="0 of 33 layers on the GPU after an update of its driver, CPU at 766 %, no answer "
        "within 60 s; nvidia-smi fails with a version mismatch",
        case=case,
        slow=True,
        primary=("cpu-fallback",),
        inferred={
            "phases.decode_tps": "4: no rate is told but that 60 s are not enough for an answer",
            "device.gpus_reason": "what NVML says then, as nvidia-smi did",
        },
    )


def _wrong_device() -> Report:
    size = int(5e9)
    case = build(
        Asked(tps=5.0, completion=60),
        kind="ollama",
        cards=(card("NVIDIA GeForce RTX 4080 Laptop GPU"),),
        gpu=({"busy_ratio": 0.0, "processes": ()},),
        server={
            "version": "0.30",
            "gpu_indices": (),
            "loaded_bytes": size,
            "loaded_gpu_bytes": size,
        },
        device={"os": "windows"},
    )
    return Report(
        name="r092-wrong-device",
        url="https://github.com/ollama/ollama/issues/16667",
        says="some 9 times slower than with CUDA: Vulkan runs on the Intel GPU in system RAM, the "
        "RTX 4080 Laptop is left out as integrated, Ollama says GPU; neither model nor rate told",
        case=case,
        slow=None,
        verdicts=("unknown", "slow"),
        inferred={
            "phases.decode_tps": "any: none is told",
            "server.loaded_bytes": "any, all of it on a GPU",
            "gpu": "a card that is left out idles",
        },
        later="wrong-device",
        needs="the other GPU: Intel's are not read; that the NVIDIA one idles while the engine "
        "says 100 % GPU is a contradiction to tell",
    )


REPORTS = (
    _moved_to_gtt,
    _room_on_7900,
    _vulkan_9060,
    _fit_leaves_room,
    _driver_mismatch,
    _wrong_device,
)
