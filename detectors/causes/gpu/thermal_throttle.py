"""The GPU, or its memory, was too hot and lowered its clocks.

Signal:
The driver's counters of time throttled for heat grew by at least 5 % of the phase, the clocks were
lower meanwhile, and that explains at least half of what was lost. Without such counters, the bits
by which the driver gives heat as the reason for lower clocks have to be set in most samples, within
3 C of the limit. Throttling begins after seconds to minutes of load, comes and goes, and is worse
in the next request.

Not to be confused with:
- A hot GPU need not be throttled: 83 C is where many are meant to run. Temperature alone is no
  evidence.
- Counters that are not zero prove nothing: they count since the driver was loaded. Only their
  growth matters.
- `power-cap`: the power bit is set, and power is at its limit.
- `hardware-slowdown`: the power brake is on, without heat.
- `clocks-stuck`: the clocks are low, and the driver gives no reason.
- `long-context`: decode gets slower with each token, while the clocks stay high.

Remedy:
First improve the air flow. Then try a lower power limit, which costs a decode little, and after
that new paste or pads. GDDR6X memory can be too hot under a cool GPU: GeForce cards do not report
the temperature of their memory.

Sources:
- nvml.h (0x20: GPU or memory above its highest operating temperature; 0x40: clocks halved or less).
- ollama/ollama#13552 (81 C, counters above zero, no throttling).
- rammsguns/llm-rig#100 (RTX A4000 without air: 375 to 628 MHz); ggml-org/llama.cpp#10444 and
  jundot/omlx#2689 (Apple: clock from 1,368 to 743 MHz after hours).
- `slowtok.detectors.analysis.gpu.clocks`: what lower clocks cost.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from slowtok.detectors.analysis.gpu.clock_loss import ClockLoss, is_laptop, is_present, loss, since
from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu
from slowtok.detectors.analysis.gpu.gpu_window import (
    gained_ratio,
    median,
    newest,
    share_with_bits,
    without_first_second,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.clocks_event import THERMAL_BITS
from slowtok.detectors.case.finding import (
    UNNAMED,
    Evidence,
    EvidenceKind,
    Finding,
    Traits,
    need,
    weigh,
)
from slowtok.detectors.case.machine import GpuSample

TITLE = "GPU too hot"
TRAITS = Traits(requires="gpu")

MIN_COUNTED_RATIO = 0.05
"""Heuristic: DCGM warns at any growth, which every warm card has."""

MIN_BITS_RATIO = 0.5
MAX_MARGIN_C = 3
"""Heuristic: without counters, most samples have to show it, at the limit."""

COOL_MARGIN_C = 10
"""Heuristic: this far below its limit it is not the die that is hot."""

HOT_CHIP_C = 80
"""Apple's chips tell no limit, and reach more than 100 C. Heuristic."""

PASSIVE = re.compile(
    r"\b(A2|A10G?|A16|A30|A40|A100|A800|B[12]00|H[128]00|H20|GH200|GB200|L[24]|L20|L40S?|P4|P40|P100"
    r"|T4|V100|M10|M40|M60|K80|MI\d{2,3}X?)\b|Server Edition",
)
"""Data centre cards have no fans of their own (their makers' data sheets)."""

MIN_BURSTS = 3
LOWER_LIMIT_RATIO = 0.85
"""An RTX 3090 at 290 of 340 W decodes 7 % slower (noonghunna/club-3090), and stays cooler."""


def detect(case: Case) -> Finding | None:
    """Fire when heat lowered the clocks and that explains the loss."""
    if not decodes_on_gpu(case):
        return None
    found = loss(case, _is_hot)
    if found is None:
        return UNNAMED if is_present(case, THERMAL_BITS) else None
    proof = _proof(found)
    return None if proof is None else _finding(case, found, proof)


def _is_hot(sample: GpuSample) -> bool:
    return sample.reasons is None or bool(sample.reasons & THERMAL_BITS)


def _proof(found: ClockLoss) -> tuple[EvidenceKind, ...] | None:
    """Return the independent evidence of heat, None where it contradicts."""
    counted, margin = _counted_ratio(found.samples), _margin_c(found)
    near = margin is not None and margin <= MAX_MARGIN_C
    if counted is not None:
        enough = counted >= MIN_COUNTED_RATIO
        return ("counter", "gauge", *(("gauge",) if near else ())) if enough else None
    bits = share_with_bits(without_first_second(found.samples), THERMAL_BITS)
    if bits is None and found.gpu.vendor == "apple":  # nothing else lowers these under load
        hot = (newest(found.samples, lambda s: s.temperature_c) or HOT_CHIP_C) >= HOT_CHIP_C
        return ("gauge", "inference") if hot else None
    if bits is None and found.gpu.vendor != "amd":
        need(bits, "reasons for lower clocks")
    need(margin, "temperature margin of the GPU")
    if not near or (bits is not None and bits < MIN_BITS_RATIO):
        return None
    return ("gauge", "inference") if bits is None else ("gauge", "gauge")


def _counted_ratio(samples: Sequence[GpuSample]) -> float | None:
    soft = gained_ratio(samples, lambda s: s.throttled_sw_thermal_ns)
    hard = gained_ratio(samples, lambda s: s.throttled_hw_thermal_ns)
    known = [ratio for ratio in (soft, hard) if ratio is not None]
    return max(known, default=None)


def _margin_c(found: ClockLoss) -> float | None:
    hot = [s for s in found.samples if _is_hot(s)]
    told = median(hot, lambda s: s.temperature_margin_c)
    limit, now = found.gpu.slowdown_temperature_c, median(hot, lambda s: s.temperature_c)
    return told if told is not None or limit is None or now is None else limit - now


def _finding(case: Case, found: ClockLoss, proof: tuple[EvidenceKind, ...]) -> Finding:
    counted = _counted_ratio(found.samples)
    share = share_with_bits(found.samples, THERMAL_BITS) if counted is None else counted
    proof_s = 0.0 if counted is None else min(counted * found.duration_s, found.lost_s)
    temperature = newest(found.samples, lambda s: s.temperature_c)
    hot = "" if temperature is None else f" ({temperature:.0f} C)"
    part = f"in {100 * share:.0f} % of {found.phase}" if share else f"in {found.phase}"
    who = f"The memory of {found.name}" if _memory(found) else found.name
    sure = "was probably" if _memory(found) or share is None else "was"
    cool = (
        f", although the GPU itself was cool{hot}, so the GPU" if _memory(found) else f"{hot} and"
    )
    evidence = [found.evidence, found.effect]
    if share is not None:
        least = 100 * (MIN_BITS_RATIO if counted is None else MIN_COUNTED_RATIO)
        evidence.append(
            Evidence(name="time slowed down by heat", value=100 * share, unit="%", limit=least)
        )
    if (margin := _margin_c(found)) is not None:
        evidence.append(Evidence(name="temperature margin", value=margin, unit="C"))
    return Finding(
        phase=found.phase,
        confidence=weigh(*proof),
        lost_s=found.lost_s,
        summary=(
            f"{who} {sure} too hot{cool} slowed down {part}{_when(case, found)}: it ran its "
            f"{found.said}; {found.phase} lost about {{lost}}."
        ),
        remedy=_remedy(case, found),
        evidence=tuple(evidence),
        proof_s=proof_s,
    )


def _memory(found: ClockLoss) -> bool:
    return (_margin_c(found) or 0) >= COOL_MARGIN_C


def _when(case: Case, found: ClockLoss) -> str:
    hot = [s.reasons is not None and _is_hot(s) for s in found.samples]
    bursts = sum(now > before for before, now in pairwise([False, *hot]))
    return f", in {bursts} bursts" if bursts >= MIN_BURSTS else since(case, found, _is_hot)


def _remedy(case: Case, found: ClockLoss) -> str:
    limit = newest(found.samples, lambda s: s.power_limit_w) or found.gpu.default_power_limit_w
    pads = "new thermal pads on the memory" if _memory(found) else "cleaning and new thermal paste"
    if found.gpu.vendor == "apple":
        return (
            "Let the machine cool for some minutes, let air reach it, and pause between long "
            "answers."
        )
    if is_laptop(case, found.gpu):
        return (
            "Lift the laptop, so that air gets below it, and choose its loudest fan profile; if "
            f"that does not help, try {pads}."
        )
    air = "Clear the path of the air and let the fans turn faster"
    if PASSIVE.search(found.gpu.name or ""):  # cooled by the chassis
        air = (
            "Raise the speed of the chassis' fans and clear the path of the air, because this card "
            "has no fans"
        )
    if limit is None:
        return f"{air}; if that does not help, try {pads}."
    lower = found.set_limit(LOWER_LIMIT_RATIO * limit)
    return (
        f"{air}; or lower the card's power limit ({lower}), which costs decode little; if neither "
        f"helps, try {pads}."
    )
