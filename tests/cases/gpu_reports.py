"""Reports on GPUs that were slow in themselves, or looked like it."""

from cases.parts import (
    GIB,
    Asked,
    Report,
    build,
    card,
    serving,
    vram,
    weights,
    whole_between,
)
from slowtok.detectors.case.case import Baseline, History

CLUB = "https://github.com/noonghunna/club-3090"

MINEFIELD = "https://github.com/Blackwellboy/model-serving-minefield"


def _harmless_cap_315() -> Report:
    model = weights("27b", "INT4", like="Qwen3.5-27B")
    read = float(model.read_bytes or 0)
    case = build(
        Asked(tps=854e9 / read, completion=1024),
        kind="openai",
        model=model,
        cards=(card("NVIDIA GeForce RTX 3090"),),
        gpu=(
            {
                "power_w": 314.0,
                "power_limit_w": 315.0,
                "sm_clock_mhz": whole_between(1500, 1515),
                "memory_clock_mhz": 9501,
                "reasons": lambda i: 0 if i % 33 == 0 else 0x4,
                "temperature_c": whole_between(63, 74),
                "throttled_sw_thermal_ns": 0,
                "throttled_hw_thermal_ns": 0,
            },
        ),
    )
    return Report(
        name="p4-harmless-cap-3090",
        url="https://github.com/ashalliants/ninfer-3090/pull/72",
        says="capped at 315 W, power cap in 161 of 162 samples, 1,500-1,515 MHz, 63-74 C, "
        "854 GB/s read: nothing lost",
        case=case,
        slow=False,
        verdicts=("normal",),
        inferred={
            "phases.decode_tps": "854 GB/s over the weights' size",
            "model": "27B at 4 bits, the size that fits",
        },
    )


def _harmless_cap_510() -> Report:
    case = build(
        Asked(tps=138.18, completion=600, told=False),
        kind="vllm",
        model=weights("Qwen3-4B", "FP8"),
        cards=(card("NVIDIA GeForce RTX 4090"),),
        gpu=(
            {
                "power_w": 246.0,
                "power_limit_w": 510.0,
                "sm_clock_mhz": 2820,
                "memory_clock_mhz": 10_251,
                "pstate": 2,
                "reasons": 0,
                "temperature_c": 43,
            },
        ),
    )
    return Report(
        name="p6-harmless-cap-4090",
        url=f"{CLUB}/issues/697",
        says="138.18 tokens/s at 246 of 510 W, 137.85 with a cap of 520 W; 43 C, no throttling",
        case=case,
        slow=False,
        verdicts=("normal",),
    )


def _harmless_cap_330() -> Report:
    case = build(
        Asked(tps=29.07, completion=300, told=False),
        kind="vllm",
        model=weights("Qwen3.6-27B", "INT4", like="Qwen3.5-27B"),
        cards=tuple(card("NVIDIA GeForce RTX 3090", i) for i in range(2)),
        gpu=2
        * (
            {
                "power_w": 308.9,
                "power_limit_w": 330.0,
                "sm_clock_mhz": 1920,
                "memory_clock_mhz": 9501,
                "pstate": 2,
                "temperature_c": 75,
                "reasons": lambda i: 0 if i % 33 == 0 else 0x4,
            },
        ),
        server={"tensor_parallel": 2},
    )
    return Report(
        name="v6-harmless-cap-3090",
        url=f"{CLUB}/issues/698",
        says="29.07 tokens/s on two cards capped at 330 W each, 618 W together, throttled in 97 % "
        "of samples at 1,920 MHz and 75 C; 28.57 at 340 W: the cap costs nothing",
        case=case,
        slow=False,
        verdicts=("normal",),
        inferred={"model": "INT4 is told; the geometry of the family's last published model"},
    )


def _cap_230() -> Report:
    case = build(
        Asked(tps=25.2),
        kind="llama-server",
        model=weights("Qwen3.6-27B", "Q3_K_M", like="Qwen3.5-27B"),
        cards=(card("NVIDIA GeForce RTX 3090", default_power_limit_w=370.0),),
        gpu=({"power_w": 230.0, "power_limit_w": 230.0, "reasons": 0x4},),
        baseline=Baseline(count=20, decode_tps=38.2),
    )
    return Report(
        name="v7-cap-230w",
        url=f"{CLUB}/blob/master/docs/HARDWARE.md",
        says="25.2 tokens/s at 230 W, 38.2 at 388 W",
        case=case,
        slow=True,
        primary=("power-cap",),
        inferred={
            "gpu.power_w": "the limit: that is what binds",
            "gpu.reasons": "what a binding limit shows",
            "baseline": "the same card without the cap",
            "device.gpus": "370 W by default, as other rows of that table say",
        },
    )


def _gb10_low_power() -> Report:
    case = build(
        Asked(tps=42.73, told=False),
        kind="vllm",
        model=weights("Ornith-1.5-35B-A3B", "NVFP4", like="Qwen3.5-35B-A3B"),
        cards=(card("NVIDIA GB10", unified_memory=True, max_sm_clock_mhz=3003),),
        gpu=(
            {
                "busy_ratio": 0.96,
                "sm_clock_mhz": 799,
                "power_w": 19.5,
                "pstate": 0,
                "reasons": 0,
            },
        ),
        baseline=Baseline(count=20, decode_tps=75.0),
        history=History(best_sm_clock_mhz=2418),
    )
    return Report(
        name="p7-gb10-low-power",
        url=f"{MINEFIELD} (trap 124)",
        says="42.73 tokens/s where about 75 are usual, 96 % busy at 799 of 2,418 MHz and 19.5 W, "
        "P0, no reason given, cool",
        case=case,
        slow=True,
        primary=("clocks-stuck",),
        allowed=("low-power-mode",),
        inferred={
            "baseline": "the same box before and after",
            "model": "a model of 35B with 3B active as Qwen3.5-35B-A3B",
        },
    )


def _gb10_hidden_state() -> Report:
    case = build(
        Asked(tps=1 / 0.094, completion=120, told=False),
        kind="vllm",
        cards=(card("NVIDIA GB10", unified_memory=True),),
        gpu=({"reasons": 0},),
        baseline=Baseline(count=50, decode_tps=1 / 0.063),
    )
    return Report(
        name="p9-gb10-hidden-state",
        url="https://github.com/tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark/issues/1",
        says="a decode step takes 94 ms where it takes 63 otherwise; nvidia-smi shows nothing",
        case=case,
        needs="nothing that this machine tells: unexplained is the answer",
        slow=True,
        inferred={
            "phases.decode_tps": "one token a step",
            "baseline": "the same box in its other state",
        },
    )


def _unlicensed() -> Report:
    case = build(
        Asked(tps=6.0),
        kind="ollama",
        model=weights("llama3.1:8b", "Q4_K_M", like="Llama-3-8B"),
        cards=(card("NVIDIA L40S-24Q", virtual=True, total_bytes=24 * GIB, driver="550.127.05"),),
        gpu=({"busy_ratio": 0.0, "vgpu_licensed": False},),
        baseline=Baseline(count=20, decode_tps=60.0),
    )
    return Report(
        name="p11-vgpu-unlicensed",
        url="https://github.com/ollama/ollama/issues/8023",
        says="fast for some 20 minutes, then abnormally slow, GPU 0 % busy; a licence cured it",
        case=case,
        slow=True,
        primary=("vgpu-unlicensed",),
        allowed=("cpu-fallback",),
        inferred={
            "phases.decode_tps": "a tenth: no rate is told, other reports have 10 to 150 times",
            "gpu.vgpu_licensed": "what the driver says while the licence is missing",
        },
    )


def _low_pstate() -> Report:
    read = int(13.5e9)
    model = weights("13b", "Q8_0", like="Llama-2-13B", file_bytes=read, read_bytes=read)
    case = build(
        Asked(tps=9.6),
        kind="llama-server",
        model=model,
        cards=(card("NVIDIA GeForce RTX 3060"),),
        gpu=(
            {
                "busy_ratio": 0.39,
                "power_w": 33.0,
                "power_limit_w": 170.0,
                "temperature_c": 60,
                "pstate": 3,
                **vram(11_888, 12_288),
                "processes": serving(),
            },
        ),
        device={"os": "windows"},
    )
    return Report(
        name="p13-starved-low-pstate",
        url="https://github.com/ggml-org/llama.cpp/issues/17880",
        says="P3, 33 of 170 W, 60 C, 39 % busy, 11,888 of 12,288 MiB, layers on both sides",
        case=case,
        slow=True,
        primary=("partial-offload", "model-too-big", "context-oversized"),
        inferred={
            "phases.decode_tps": "39 % busy with the 11 GB that it holds: 104 ms a token",
            "model": "those 11 GB and the 2.5 GB that a CPU reads in the rest of the time",
        },
    )


def _starved_low_clock() -> Report:
    case = build(
        Asked(tps=7.0),
        kind="llama-server",
        model=weights("35B-A3B", "Q4_K_M", like="Qwen3.5-35B-A3B", file_bytes=int(21e9)),
        cards=(card("NVIDIA GeForce RTX 4060 Laptop GPU", max_sm_clock_mhz=2625),),
        gpu=({"sm_clock_mhz": 1890, "power_w": 16.0},),
        server={"gpu_layers": 999, "cpu_moe_layers": 35, "threads": 14},
        device={"os": "windows", "ram_bytes": 24 * GIB},
        history=History(best_sm_clock_mhz=2625, best_power_w=47.0),
    )
    return Report(
        name="v17-starved-low-clock",
        url="https://github.com/ggml-org/llama.cpp/issues/26024",
        says="1,890 MHz and 16 W where 2,625 and 47 were, 7 tokens/s, 21 GB on a card of 8 GB",
        case=case,
        slow=True,
        primary=("model-too-big", "partial-offload"),
        inferred={"server": "the flags of the same reporter's ggml-org/llama.cpp#26025"},
    )


REPORTS = (
    _harmless_cap_315,
    _harmless_cap_510,
    _harmless_cap_330,
    _cap_230,
    _gb10_low_power,
    _gb10_hidden_state,
    _unlicensed,
    _low_pstate,
    _starved_low_clock,
)
