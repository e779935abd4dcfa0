"""The machine saves power: it runs on battery or a weak adapter, or a profile holds its clocks low.

Signal:
The GPU or the system reports battery, an undersized adapter or a saving profile (or a laptop's
power limit binds far below what its GPU may draw), the clocks are low, and that explains the loss.
On the CPU, the signs are the same reports or the governor powersave, together with cores below 1.5
GHz while they compute.

Not to be confused with:
- The power source alone costs nothing: a laptop on battery may keep its clocks.
- The low clocks of a GPU that has too little to do (`partial-offload`) are an effect.
- The governor powersave of intel_pstate and amd-pstate is the default, and clocks up under load.
- A laptop's limit moves (Dynamic Boost), so slowtok compares it with the highest one of this
  request.
- `power-cap`: someone set a limit, on a card that is not a laptop's.
- `thermal-throttle`: the clocks are low because of heat.

Remedy:
Use the laptop's own adapter and the performance profile. If a power limit stays low, try without
nvidia-powerd.

Sources:
- NVIDIA/open-gpu-kernel-modules#1162 (65 W adapter: 25 W; 140 W: 50 W), #1310 (ThinkPad: 25 W and
  600 MHz with nvidia-powerd, 35 W and 1,200 MHz without), #1295 (laptop stuck at 55 of 105 W).
- nvml.h (power sources). Linux admin-guide/pm (intel_pstate and amd-pstate: powersave is dynamic).
- `slowtok.detectors.analysis.gpu.clocks`: what lower clocks cost.
"""

from collections.abc import Sequence

from slowtok.detectors.analysis.gpu.clock_loss import (
    ClockLoss,
    is_laptop,
    loss,
    observed_slowdown,
    since,
)
from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu
from slowtok.detectors.analysis.gpu.gpu_window import (
    most,
    newest,
    share_with_bits,
)
from slowtok.detectors.analysis.host_window import decode_s, mean, runs_on_cpu
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.clocks_event import BRAKE_BITS, POWER_BITS, THERMAL_BITS
from slowtok.detectors.case.finding import Evidence, Finding, Traits, need, weigh
from slowtok.detectors.case.machine import SAVING_PROFILES, GpuSample

TITLE = "Power saving slows the machine"
TRAITS = Traits()

SAVING_GOVERNOR = "powersave"
MAX_CPU_MHZ = 1500.0
"""Heuristic: cores that compute run faster on machines that people decode on, unless held
back (LostRuins/koboldcpp#318: 400 MHz to 1,400 MHz)."""

MAX_LIMIT_RATIO = 0.6
"""Of what the GPU may draw: 25 of 50 W, 55 of 105 W. Heuristic: the edge."""

MOVED_RATIO = 0.95
MIN_CAPPED_RATIO = 0.5
MAX_CLOCK_RATIO = 0.7
"""Heuristic. Where nobody speaks of the power source the evidence has to be strong: in
the report 600 MHz with the limit and 1,200 without."""

ADVICE = (
    "Choose the performance profile (powerprofilesctl set performance; Windows: Best performance) "
    "and plug in the adapter that came with the machine, not a dock"
)
GOVERNOR_ADVICE = "; then set the CPU governor (sudo cpupower frequency-set -g performance)"


def detect(case: Case) -> Finding | None:
    """Fire when power saving holds the clocks of what decodes, and that explains the loss."""
    if case.server.local is False:
        return None
    if decodes_on_gpu(case):
        return _on_gpu(case)
    return _on_cpu(case)


def _on_gpu(case: Case) -> Finding | None:
    found = loss(case, _is_not_other)
    if found is None or found.is_starved:
        return None
    words, low = _words(case, found.samples), _low_limit(case, found)
    return None if words is None and low is None else _gpu_finding(case, found, words, low)


def _is_not_other(sample: GpuSample) -> bool:
    return not (sample.reasons or 0) & (THERMAL_BITS | BRAKE_BITS)


def _words(case: Case, samples: Sequence[GpuSample]) -> str | None:
    """Return what the GPU or the system says of its power, None where nothing holds it back."""
    source = next((s.power_source for s in reversed(samples) if s.power_source), None)
    if source == "undersized":
        return "its adapter is too weak"
    if source == "battery" or case.device.on_battery:
        return "it runs on battery"
    if case.device.power_profile in SAVING_PROFILES:
        return f"its power profile is {case.device.power_profile}"
    return None


def _low_limit(case: Case, found: ClockLoss) -> Evidence | None:
    """Return a laptop's power limit if it binds and is far below the highest that there is."""
    limit = newest(found.samples, lambda s: s.power_limit_w)
    if limit is None or not is_laptop(case, found.gpu) or found.sm_ratio >= MAX_CLOCK_RATIO:
        return None
    highest = most(found.samples, lambda s: s.power_limit_w) or limit
    usual = highest if limit < MOVED_RATIO * highest else found.gpu.max_power_limit_w
    capped = share_with_bits(found.samples, POWER_BITS)
    if usual is None or limit > MAX_LIMIT_RATIO * usual or (capped or 0.0) < MIN_CAPPED_RATIO:
        return None
    return Evidence(name="power limit", value=limit, unit="W", limit=MAX_LIMIT_RATIO * usual)


def _gpu_finding(case: Case, found: ClockLoss, words: str | None, low: Evidence | None) -> Finding:
    both = words is not None and low is not None
    why = words or f"its power limit is down to {low.value if low else 0:.0f} W"
    last = "; if the limit stays, try without nvidia-powerd (sudo systemctl stop nvidia-powerd)"
    return Finding(
        phase=found.phase,
        confidence=weigh("gauge", "inference", "gauge", *(("gauge",) if both else ())),
        lost_s=found.lost_s,
        summary=(
            f"The machine saves power ({why}), which holds {found.name} back"
            f"{since(case, found, _is_not_other)}: {found.said}; {found.phase} lost about {{lost}}."
        ),
        remedy=f"{ADVICE}{'' if low is None else last}.",
        evidence=(found.evidence, found.effect, *(() if low is None else (low,))),
    )


def _on_cpu(case: Case) -> Finding | None:
    words = _words(case, ())
    saving_governor = case.device.cpu_governor == SAVING_GOVERNOR
    if words is None and saving_governor:
        words = f"its CPU governor is {SAVING_GOVERNOR}"
    if words is None or not runs_on_cpu(case):
        return None
    mhz = need(mean(case.host_during("decode"), lambda s: s.cpu_mhz), "clock of the CPU")
    observed = observed_slowdown(case, "decode") if mhz <= MAX_CPU_MHZ else 1.0
    if observed <= 1.0:
        return None
    # no formula: what a slower core costs depends on how far the memory holds it back
    return Finding(
        phase="decode",
        confidence=weigh("gauge", "gauge"),
        lost_s=decode_s(case) * (1 - 1 / observed),
        summary=(
            f"The machine saves power ({words}), and its cores ran at {mhz:,.0f} MHz while they "
            f"computed: {observed:.1f} times slower than expected; decode lost about {{lost}}."
        ),
        remedy=f"{ADVICE}{GOVERNOR_ADVICE if saving_governor else ''}.",
        evidence=(
            Evidence(name="CPU clock", value=mhz, unit="MHz", limit=MAX_CPU_MHZ),
            Evidence(name="times slower", value=observed, unit="times", limit=1),
        ),
    )
