"""Cases of a GPU whose clocks are low, of its faults, and of power saving.

Clocks, powers and rates that a report gave are from that report; the rates of the others are what
`slowtok.detectors.analysis.gpu.clocks` gives for their clocks, so they show its arithmetic and
not its truth.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

from fakes.cases import case, with_device, with_host, with_timeline
from fakes.gpu_cases import (
    BUSY_GPU,
    DEVICE,
    HEALTHY_MS,
    LLAMA_8B,
    SERVER,
    gpu_case,
    with_card,
    with_readings,
)
from slowtok.detectors.case.case import Baseline, Case, Envelope, History, Range
from slowtok.detectors.case.machine import GpuFacts

HEALTHY_TPS = 1000 / HEALTHY_MS
HEALTHY_SM_MHZ = 1905
KNOWN = History(best_sm_clock_mhz=HEALTHY_SM_MHZ, best_memory_clock_mhz=9501, best_power_w=340.0)

SPARK = GpuFacts(
    index=0, name="NVIDIA GB10", vendor="nvidia", max_sm_clock_mhz=3003, unified_memory=True
)
R9700 = GpuFacts(
    index=0,
    name="AMD Radeon AI PRO R9700",
    vendor="amd",
    max_sm_clock_mhz=2920,
    default_power_limit_w=300.0,
)
THINKPAD = GpuFacts(
    index=0,
    name="NVIDIA RTX PRO 1000 Blackwell Generation Laptop GPU",
    vendor="nvidia",
    max_sm_clock_mhz=1500,
    max_power_limit_w=50.0,
)
"""Its highest clock is assumed: the report has 1,200 MHz as its healthy one."""

M3_MAX = GpuFacts(
    index=0, name="Apple M3 Max", vendor="apple", max_sm_clock_mhz=1398, unified_memory=True
)


def known(before: Case, history: History = KNOWN) -> Case:
    """The case at a setup that was seen healthy before."""
    learned = Baseline(count=20, decode_tps=HEALTHY_TPS, decode_p10_tps=0.97 * HEALTHY_TPS)
    return replace(before, history=history, baseline=learned)


def at_clock(sm_mhz: int, *, times: float, **readings: Any) -> Case:
    """The healthy case slowed down so many times, with this clock throughout."""
    slow = known(gpu_case(ms_per_token=times * HEALTHY_MS))
    return with_readings(slow, sm_clock_mhz=sm_mhz, **readings)


def on_card(
    gpu: GpuFacts, *, tps: float, expected_tps: float, history: History | None = None, **now: Any
) -> Case:
    """A case on another card, with the rates of a report; the model is not known."""
    silent = replace(BUSY_GPU, **{**dict.fromkeys(UNKNOWN), **now})
    band = Range(low=0.8 * expected_tps, high=1.4 * expected_tps)
    slow = gpu_case(
        ms_per_token=1000 / tps,
        device=replace(DEVICE, gpus=(gpu,)),
        gpu=silent,
        server=replace(SERVER, gpu_layers=None),
    )
    return replace(
        slow,
        history=history or History(),
        model=replace(LLAMA_8B, file_bytes=None),
        envelope=Envelope(decode=band, expected_tps=expected_tps, read_bytes=5e9, kv_bytes=1e8),
    )


UNKNOWN = (
    "reasons",
    "memory_clock_mhz",
    "pstate",
    "power_limit_w",
    "temperature_margin_c",
    "throttled_power_ns",
    "throttled_sw_thermal_ns",
    "throttled_hw_thermal_ns",
    "throttled_power_brake_ns",
    "processes",
    "pcie_rx_bytes_per_s",
    "xids",
)


def slower_from(before: Case, token: int, times: float) -> Case:
    """The case's arrivals at the healthy rate up to a token, and so many times slower after it."""
    count = len(before.timeline.token_at_s)
    gaps_s = [HEALTHY_MS / 1000 * (times if i > token else 1.0) for i in range(1, count)]
    first_s = before.timeline.token_at_s[0]
    return with_timeline(before, token_at_s=tuple(accumulate(gaps_s, initial=first_s)))


def counting(ratio: float) -> Callable[[float], int]:
    """A counter of nanoseconds that counts this share of the time, and had counted before."""
    return lambda t: int(1e12 + ratio * t * 1e9)


def thermal_throttle() -> Case:
    """900 of 1,905 MHz for heat in all of decode: 1.45 times as long."""
    return at_clock(
        900,
        times=1.45,
        reasons=0x24,
        temperature_c=93,
        temperature_margin_c=1,
        power_w=230.0,
        throttled_sw_thermal_ns=counting(0.98),
    )


def power_cap() -> Case:
    """club-3090: RTX 3090, dense 27B: 36.26 tokens/s at 1,680 MHz, 21.58 at 230 W and 825 MHz."""
    return power_capped(limit_w=230.0, sm_mhz=825, times=36.26 / 21.58)


def power_capped(*, limit_w: float, sm_mhz: int, times: float) -> Case:
    """The card of that sweep (370 W by default) at one of its points."""
    slow = at_clock(
        sm_mhz,
        times=times,
        power_w=limit_w - 0.3,
        power_limit_w=limit_w,
        throttled_power_ns=counting(1.0),
    )
    best = History(best_sm_clock_mhz=1680, best_memory_clock_mhz=9501)
    return with_card(
        replace(slow, history=best), default_power_limit_w=370.0, max_power_limit_w=390.0
    )


def hardware_slowdown() -> Case:
    """Clocks at a third, far below the power limit, the brake asserted."""
    return at_clock(
        635, times=1.8, reasons=0x88, power_w=130.0, throttled_power_brake_ns=counting(0.9)
    )


def clocks_stuck() -> Case:
    """Locked to 700 MHz: no bit, little power."""
    return at_clock(700, times=1.69, reasons=0x0, power_w=140.0)


def stuck_spark() -> Case:
    """trap 124: GB10, 96 % busy, 799 of 2,418 MHz, 19.5 W, P0, no reason; 42.73 of 75 tokens/s."""
    return on_card(
        SPARK,
        tps=42.73,
        expected_tps=75.0,
        reasons=0x0,
        pstate=0,
        busy_ratio=0.96,
        sm_clock_mhz=799,
        power_w=19.5,
    )


def stuck_amd() -> Case:
    """ROCm/legacy-rocm-build#6289: 41 MHz shown, 25.7 of 33 tokens/s; its own best is assumed."""
    return on_card(
        R9700,
        tps=25.7,
        expected_tps=33.0,
        history=History(best_sm_clock_mhz=2900),
        busy_ratio=0.99,
        sm_clock_mhz=41,
        power_limit_w=300.0,
        power_w=140.0,
        temperature_margin_c=40,
    )


def gpu_fault() -> Case:
    """A GPU that stopped answering (Xid 119) for four seconds in the middle of the answer."""
    slow = known(gpu_case(ms_per_token=HEALTHY_MS + 4.0))
    times = slow.timeline.token_at_s
    stalled = tuple(times[0] + i * HEALTHY_MS / 1000 + (4.0 if i > 400 else 0) for i in range(1000))
    return with_readings(
        with_timeline(slow, token_at_s=stalled),
        xid=lambda t: 119 if t > 5 else None,
        xids=lambda t: 1 if t > 5 else 0,
    )


def vgpu_unlicensed() -> Case:
    """ollama/ollama#8023: L40S-24Q after 20 minutes, 0 % busy; ten times slower assumed."""
    slow = gpu_case(ms_per_token=10 * HEALTHY_MS, completion=300)
    virtual = with_card(slow, name="NVIDIA L40S-24Q", virtual=True, default_power_limit_w=None)
    return with_readings(
        replace(virtual, server=replace(virtual.server, kind="ollama")),
        vgpu_licensed=False,
        busy_ratio=0.0,
        power_w=None,
        power_limit_w=None,
        reasons=0x0,
    )


def low_power_mode() -> Case:
    """open-gpu-kernel-modules#1310: 25 W and 600 MHz instead of 35 W and 1,200; rate assumed."""
    return on_card(
        THINKPAD,
        tps=20.0,
        expected_tps=28.0,
        reasons=0x4,
        sm_clock_mhz=600,
        power_w=24.9,
        power_limit_w=25.0,
    )


def on_battery() -> Case:
    """A CPU that decodes at 1,100 MHz on battery; the rate is assumed."""
    return with_device(with_host(case(ms_per_token=16.0), cpu_mhz=1100.0), on_battery=True)


def hot_mac() -> Case:
    """jundot/omlx#2689: M3 Max, 1,368 to 743 MHz after three hours; rate by the clock assumed."""
    best = History(best_sm_clock_mhz=1368)
    return on_card(
        M3_MAX, tps=10.0, expected_tps=14.0, history=best, sm_clock_mhz=743, temperature_c=98
    )


def laptop(before: Case, **device: Any) -> Case:
    """The case on a laptop."""
    facts: dict[str, Any] = {"on_battery": False, **device}
    return replace(before, device=replace(before.device, **facts))
