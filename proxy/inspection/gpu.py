"""Each GPU: what it is, what limits it, and whether something is wrong with it.

What a GPU does at rest says nothing: low clocks, a slow link and low power are by design then.
Bits of the clocks-event mask are no reason by themselves either: a GPU at its power limit or at
its target temperature runs as it should.
"""

from collections.abc import Iterator, Mapping, Sequence

from slowtok.detectors.analysis.gpu.clock_loss import set_limit, unlock_clocks
from slowtok.detectors.analysis.gpu.gpu_window import (
    gained,
    gained_ratio,
    median,
    most,
    newest,
    share_with_bits,
)
from slowtok.detectors.case.clocks_event import (
    BRAKE_BITS,
    IDLE_BIT,
    LABELS,
    POWER_BITS,
    SLOWDOWN_BIT,
    THERMAL_BITS,
)
from slowtok.detectors.case.machine import GpuFacts, GpuSample
from slowtok.proxy.inspection.check import Check, State, gib, measured
from slowtok.proxy.inspection.seen import Seen

BUSY_RATIO = 0.8
LOW_SM_RATIO, LOW_MEMORY_RATIO = 0.7, 0.85
"""Under load and without a reason bit, lower clocks are locked or stuck. Memory at 0.97 of its
maximum is usual: CUDA runs in P2 on GeForce. Heuristic."""

LOWERED_RATIO = 0.9
"""A limit this far below the default was set by somebody. Heuristic."""

CLOSE_MARGIN_C = 3
MOSTLY = 0.5
HEAT_RATIO = 0.05
BRAKE_NS = 100e6
"""A margin of 3 degrees, a twentieth of the time, a tenth of a second of power brake: heuristic. A
single sample with a bit is noise: bits blink when the state changes."""

MAX_ACTIVE_PSTATE = 2
MIN_LINK_S = 1.0
"""Only a GPU at work for a second, in P0 to P2, has its link up."""

Samples = Sequence[GpuSample]


def check_gpus(seen: Seen) -> Iterator[Check]:
    """Yield what is known of each GPU."""
    samples = seen.gpu_samples()
    for gpu in seen.device.gpus or ():
        mine = samples.get(gpu.index, ())
        yield _what(gpu)
        if mine:
            yield from _power(gpu, mine)
            yield from _clocks(gpu, mine)
            yield from _heat(gpu, mine)
            yield from _reasons(gpu, mine)
            yield from _link(gpu, mine)
            yield from _health(gpu, mine)
        yield from _licence(gpu, mine)


def _check(
    gpu: GpuFacts,
    name: str,
    state: State,
    said: str,
    advice: str | None = None,
    numbers: Mapping[str, float | None] | None = None,
) -> Check:
    return Check(
        area="gpu", name=name, about=f"GPU {gpu.index}", state=state, said=said, advice=advice,
        numbers=measured(**(numbers or {})),
    )  # fmt: skip


def _what(gpu: GpuFacts) -> Check:
    bandwidth = gpu.bandwidth_bytes_per_s
    parts = (
        gpu.name or "no name",
        gib(gpu.total_bytes) if gpu.total_bytes else None,
        f"{bandwidth / 1e9:,.0f} GB/s" if bandwidth else None,
        "memory shared with the CPU" if gpu.unified_memory else None,
        "a slice of a GPU (MIG)" if gpu.partition_of else None,
        "virtual (vGPU)" if gpu.virtual else None,
        f"driver {gpu.driver}" if gpu.driver else None,
    )
    return _check(
        gpu, "what", "ok", ", ".join(filter(None, parts)),
        None, {"total_bytes": gpu.total_bytes, "bandwidth_bytes_per_s": bandwidth},
    )  # fmt: skip


def _is_busy(samples: Samples) -> bool:
    return (median(samples, lambda s: s.busy_ratio) or 0.0) >= BUSY_RATIO


def _power(gpu: GpuFacts, samples: Samples) -> Iterator[Check]:
    limit, default = newest(samples, lambda s: s.power_limit_w), gpu.default_power_limit_w
    source = next((s.power_source for s in reversed(samples) if s.power_source), None)
    if source == "battery":
        yield _check(
            gpu, "power-source", "warn", "it runs on battery, which lowers its power", "plug it in"
        )
    elif source == "undersized":
        said = "the power adapter gives less than the machine may need"
        yield _check(gpu, "power-source", "warn", said, "use the adapter that came with it")
    if limit is None:
        return
    draw = median(samples, lambda s: s.power_w)
    said = f"limit {limit:.0f} W"
    said += f", default {default:.0f} W" if default else ""
    said += f", now {draw:.0f} W" if draw is not None else ""
    numbers = {"limit_w": limit, "default_w": default, "now_w": draw}
    moves = "laptop" in (gpu.name or "").lower()  # there it goes up and down with the load
    if default and limit < LOWERED_RATIO * default and not moves:
        said += ": somebody lowered it, which slows prefill, and decode often not at all"
        advice = f"if the cooling allows it, raise the limit: {set_limit(gpu, default)}"
        yield _check(gpu, "power-limit", "note", said, advice, numbers)
    else:
        yield _check(gpu, "power-limit", "ok", said, None, numbers)


def _clocks(gpu: GpuFacts, samples: Samples) -> Iterator[Check]:
    sm, memory = (
        median(samples, r) for r in (lambda s: s.sm_clock_mhz, lambda s: s.memory_clock_mhz)
    )
    if sm is None and memory is None:
        return
    numbers = {
        "sm_mhz": sm, "max_sm_mhz": gpu.max_sm_clock_mhz,
        "memory_mhz": memory, "max_memory_mhz": gpu.max_memory_clock_mhz,
    }  # fmt: skip
    said = f"SM {_of(sm, gpu.max_sm_clock_mhz)} MHz"
    said += f", memory {_of(memory, gpu.max_memory_clock_mhz)} MHz"
    if not _is_busy(samples):
        yield _check(
            gpu, "clocks", "ok", f"{said}; idle, so low clocks mean nothing", None, numbers
        )
        return
    held = POWER_BITS | THERMAL_BITS | BRAKE_BITS | SLOWDOWN_BIT
    explained = (share_with_bits(samples, held) or 0.0) >= MOSTLY
    low = _below(sm, gpu.max_sm_clock_mhz, LOW_SM_RATIO) or _below(
        memory, gpu.max_memory_clock_mhz, LOW_MEMORY_RATIO
    )
    if low and not explained:
        unlock = unlock_clocks(gpu)
        advice = "if that does not change, restart the machine"
        if unlock is not None:
            advice = f"remove clock locks ({unlock}); if the clocks stay low, restart the machine"
        said += ", busy, and the driver gives no reason: the clocks are locked or stuck"
        yield _check(gpu, "clocks", "warn", said, advice, numbers)
    else:
        yield _check(gpu, "clocks", "ok", f"{said}, busy", None, numbers)


def _of(now: float | None, highest: float | None) -> str:
    return f"{now or 0:.0f} of {highest}" if now is not None and highest else f"{now or 0:.0f}"


def _counted(count: float | None, what: str) -> str:
    return f"{count or 0:.0f} {what}{'' if count == 1 else 's'}"


def _below(now: float | None, highest: float | None, ratio: float) -> bool:
    return now is not None and bool(highest) and now < ratio * (highest or 0)


def _heat(gpu: GpuFacts, samples: Samples) -> Iterator[Check]:
    die = newest(samples, lambda s: s.temperature_c)
    margin = newest(samples, lambda s: s.temperature_margin_c)
    memory = newest(samples, lambda s: s.memory_temperature_c)
    if margin is None and die is not None and gpu.slowdown_temperature_c is not None:
        margin = gpu.slowdown_temperature_c - die
    counted = [
        gained_ratio(samples, read)
        for read in (lambda s: s.throttled_sw_thermal_ns, lambda s: s.throttled_hw_thermal_ns)
    ]
    ratio = max((value for value in counted if value is not None), default=None)
    parts = (
        f"{die:.0f} C" if die is not None else None,
        f"{margin:.0f} C below the limit at which it slows down" if margin is not None else None,
        f"memory {memory:.0f} C" if memory is not None else None,
    )
    said = ", ".join(filter(None, parts))
    numbers = {
        "die_c": die, "margin_c": margin, "memory_c": memory, "throttled_ratio": ratio,
    }  # fmt: skip
    slowed = (share_with_bits(samples, THERMAL_BITS) or 0.0) >= MOSTLY
    if (ratio or 0.0) > HEAT_RATIO or (ratio is None and slowed):
        part = f"{ratio:.0%} of the time that was looked at" if ratio is not None else "now"
        advice = (
            "improve the air flow, clean the fans and let them turn faster; a power limit that is "
            "15 % lower also helps"
        )
        if gpu.vendor == "apple":
            advice = "let the machine cool, and give it air"
        yield _check(
            gpu, "temperature", "warn", f"{said}: heat slows it down {part}", advice, numbers
        )
    elif margin is not None and margin <= CLOSE_MARGIN_C and _is_busy(samples):
        yield _check(
            gpu,
            "temperature",
            "note",
            f"{said}: it will slow down if it gets hotter",
            "improve the air flow before long runs",
            numbers,
        )
    elif said:
        yield _check(gpu, "temperature", "ok", said, None, numbers)


def _reasons(gpu: GpuFacts, samples: Samples) -> Iterator[Check]:
    mask = samples[-1].reasons
    if mask is None:
        mask = next((s.reasons for s in reversed(samples) if s.reasons is not None), None)
    if mask is None:
        return
    names = [name for bit, name in LABELS.items() if mask & bit & ~IDLE_BIT]
    said = f"limited by: {', '.join(names)}" if names else "nothing limits the clocks now"
    if not names and mask & IDLE_BIT:
        said = "idle"
    brake = gained(samples, lambda s: s.throttled_power_brake_ns)
    braked = share_with_bits(samples, BRAKE_BITS)
    if (brake or 0.0) >= BRAKE_NS or (brake is None and (braked or 0.0) >= MOSTLY):
        yield _check(
            gpu, "limited-by", "warn", f"{said}: something outside the GPU halves its clocks",
            "check the power supply and its cables", {"reasons": mask, "brake_ns": brake},
        )  # fmt: skip
    else:
        yield _check(gpu, "limited-by", "ok", said, None, {"reasons": mask, "brake_ns": brake})


def _link(gpu: GpuFacts, samples: Samples) -> Iterator[Check]:
    generation, width = (
        most(samples, read) for read in (lambda s: s.pcie_generation, lambda s: s.pcie_width)
    )
    if gpu.unified_memory or generation is None or width is None:
        return
    highest, widest = gpu.max_pcie_generation, gpu.max_pcie_width
    numbers = {
        "generation": generation, "width": width,
        "max_generation": highest, "max_width": widest,
    }  # fmt: skip
    said = f"generation {generation:.0f} of {highest or '?'}, {width:.0f} of {widest or '?'} lanes"
    own = gpu.gpu_max_pcie_generation
    if own is not None and highest is not None and own > highest:
        said += f" (the card itself could do generation {own})"
    if not _has_worked(samples):
        said += "; an idle link slows down by design, so this says nothing"
        advice = "run slowtok doctor while the engine generates an answer"
        yield _check(gpu, "link", "unknown", said, advice, numbers)
    elif (widest and width < widest) or (highest and generation < highest):
        advice = (
            "take the card out and put it in again; check riser, slot and the BIOS settings of the "
            "slot (generation, bifurcation)"
        )
        said += " under load: loading a model, prefill of layers in RAM and several GPUs are slower"
        yield _check(gpu, "link", "warn", said, advice, numbers)
    else:
        yield _check(gpu, "link", "ok", f"{said}, under load", None, numbers)


def _has_worked(samples: Samples) -> bool:
    """Return True if the GPU was at work for a whole second up to now."""
    at_work_from_s = None
    for s in samples:
        if s.busy_ratio is None or s.pstate is None:
            continue
        if s.busy_ratio > 0 and s.pstate <= MAX_ACTIVE_PSTATE:
            at_work_from_s = s.at_s if at_work_from_s is None else at_work_from_s
        else:
            at_work_from_s = None
    return at_work_from_s is not None and samples[-1].at_s - at_work_from_s >= MIN_LINK_S


def _health(gpu: GpuFacts, samples: Samples) -> Iterator[Check]:
    xid = newest(samples, lambda s: s.xid)
    ecc, rows = (
        newest(samples, read) for read in (lambda s: s.ecc_errors, lambda s: s.remapped_rows)
    )
    numbers = {"xid": xid, "ecc_errors": ecc, "remapped_rows": rows}
    if xid is not None:
        said = f"the driver reported the critical error Xid {xid:.0f} during this look"
        advice = (
            "`sudo dmesg | grep -i xid` shows it, and NVIDIA's Xid catalogue says what it means"
        )
        yield _check(gpu, "health", "warn", said, advice, numbers)
    elif ecc or rows:
        said = f"{_counted(ecc, 'memory error')} and {_counted(rows, 'remapped row')} so far"
        advice = "nvidia-smi -q -d ECC,ROW_REMAPPER shows which"
        yield _check(gpu, "health", "note", said, advice, numbers)
    elif ecc is not None or rows is not None:
        yield _check(gpu, "health", "ok", "no memory errors, no rows remapped", None, numbers)


def _licence(gpu: GpuFacts, samples: Samples) -> Iterator[Check]:
    licensed = next(
        (s.vgpu_licensed for s in reversed(samples) if s.vgpu_licensed is not None), None
    )
    if licensed is False:
        said = "this vGPU has no licence: it gets slow about 20 minutes after it was started"
        advice = (
            "put its licence token into /etc/nvidia/ClientConfigToken, then run "
            "sudo systemctl restart nvidia-gridd"
        )
        yield _check(gpu, "vgpu-licence", "warn", said, advice)
    elif gpu.virtual and licensed is None:
        said = "whether this vGPU has a licence cannot be seen"
        advice = "`nvidia-smi -q | grep -i licen` shows it"
        yield _check(gpu, "vgpu-licence", "unknown", said, advice)
