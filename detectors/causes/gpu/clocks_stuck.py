"""The GPU was busy at a low clock that nothing explains: it is locked, or stuck in a low state.

Signal:
In at least 80 % of the samples the GPU was 80 % busy while its processors' clock was below 0.7, or
its memory's below 0.85, of what they reach under load. The driver gives no reason for the low
clock, and the clocks explain the loss. The clocks are flat over the whole request. The performance
state is often P5 or P8.

Not to be confused with:
- The low clocks of a GPU that has too little to do are an effect (`partial-offload`, `host-bound`,
  `cpu-fallback`, `vram-spill`). Such a GPU is not busy, says so (bit 0x1), or waits for the bus.
- P2 instead of P0 is usual for CUDA on GeForce. In the first second after idling, the clocks still
  rise.
- `power-cap`, `thermal-throttle`, `hardware-slowdown`: their bits are set.
- A locked memory clock on an RTX 5090 costs 16 to 32 % with no sign of it, so slowtok does not see
  it.

Remedy:
Remove clock locks, then restart the engine, then the machine. Small systems with one chip may need
to be unplugged.

Sources:
- Blackwellboy/model-serving-minefield, trap 124 (GB10: 799 instead of 2,418 MHz, P0, no bit,
  42.7 instead of 75 tokens/s; only unplugging helped).
- ROCm/legacy-rocm-build#6289 (AMD: 41 MHz shown, 33 to 25.7 tokens/s), ggml-org/llama.cpp#16767.
- ggml-org/llama.cpp#26024 (1,890 MHz and 16 W: a model that does not fit, no stuck clock).
- NVIDIA/open-gpu-kernel-modules#1265, #1266 (memory lock).
- `slowtok.detectors.analysis.gpu.clocks`: what lower clocks cost.
"""

from dataclasses import replace

from slowtok.detectors.analysis.gpu.clock_loss import ClockLoss, loss, unlock_clocks
from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu, serving_samples
from slowtok.detectors.analysis.gpu.gpu_window import (
    median,
    without_first_second,
)
from slowtok.detectors.analysis.placement.where import MIN_CPU_RATIO, placement
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.clocks_event import (
    BRAKE_BITS,
    IDLE_BIT,
    POWER_BITS,
    SLOWDOWN_BIT,
    THERMAL_BITS,
)
from slowtok.detectors.case.finding import (
    Evidence,
    EvidenceKind,
    Finding,
    Missing,
    Traits,
    need,
    weigh,
)
from slowtok.detectors.case.machine import GpuSample
from slowtok.detectors.expectation.memory import is_tensor_parallel

TITLE = "GPU stuck at a low clock"
TRAITS = Traits(requires="gpu", persistent=True)

MAX_SM_RATIO = 0.7
MAX_MEMORY_RATIO = 0.85
MIN_BUSY_RATIO = 0.8
MIN_SAMPLES_RATIO = 0.8
MAX_BITS_RATIO = 0.1
"""Heuristic."""

MAX_RX_BYTES_PER_S = 3e9
"""Heuristic: a decode whose weights are all on the GPU receives under 0.3."""

LOW_PSTATE = 5
"""CUDA runs in P0 to P3; P5 and P8 are for light load and for none."""

NOT_WHILE_WORKING_RATIO = 0.1
"""At such a clock nothing could have come at this rate: the reading is of the moments between
kernels (AMD: 41 MHz). It shows that something is wrong, not how much it costs."""

EXPLAINING_BITS = POWER_BITS | THERMAL_BITS | BRAKE_BITS | SLOWDOWN_BIT


def detect(case: Case) -> Finding | None:
    """Fire when a busy GPU stayed at a low clock without a reason, and that explains the loss."""
    if not decodes_on_gpu(case):
        return None
    found = loss(case, _is_without_reason, is_told=False)
    if found is None or found.gpu.vendor == "apple":  # Apple's clocks cannot be locked
        return None
    samples = without_first_second(found.samples)
    if not samples or _share_with_reason(samples) > MAX_BITS_RATIO:
        return None
    busy = need(median(samples, lambda s: s.busy_ratio), "GPU utilisation")
    least = MIN_BUSY_RATIO / _taking_turns(case, found)
    if busy < least or _is_fed_by_the_host(case, found):
        return None
    low = sum(1 for s in samples if _is_low(s, found)) / len(samples)
    return _finding(case, found, busy, low) if low >= MIN_SAMPLES_RATIO else None


def _is_without_reason(sample: GpuSample) -> bool:
    return not (sample.reasons or 0) & (EXPLAINING_BITS | IDLE_BIT)


def _share_with_reason(samples: tuple[GpuSample, ...]) -> float:
    return sum(1 for s in samples if not _is_without_reason(s)) / len(samples)


def _taking_turns(case: Case, found: ClockLoss) -> int:
    """Return how many GPUs share the time: with layers on each, one works while others wait."""
    return 1 if is_tensor_parallel(case.server) else len(serving_samples(case, found.phase))


def _is_fed_by_the_host(case: Case, found: ClockLoss) -> bool:
    """Return True if the GPU waits for weights that are not in its memory: low clocks follow."""
    received = median(found.samples, lambda s: s.pcie_rx_bytes_per_s)
    if found.phase == "decode" and received is not None and received > MAX_RX_BYTES_PER_S:
        return True
    try:
        return placement(case).cpu_ratio >= MIN_CPU_RATIO
    except Missing:  # nothing speaks for it
        return False


def _is_low(sample: GpuSample, found: ClockLoss) -> bool:
    sm, memory = sample.sm_clock_mhz, sample.memory_clock_mhz
    if sm is not None and sm < MAX_SM_RATIO * (found.healthy.sm or 0.0):
        return True
    return memory is not None and memory < MAX_MEMORY_RATIO * (found.healthy.memory or 0.0)


def _finding(case: Case, found: ClockLoss, busy: float, low: float) -> Finding:
    pstate = median(found.samples, lambda s: s.pstate)
    in_low_state = pstate is not None and pstate >= LOW_PSTATE
    proof: list[EvidenceKind] = ["gauge", "gauge" if found.healthy.own else "inference"]
    if in_low_state:
        proof.append("gauge")
    vague = found.sm_ratio < NOT_WHILE_WORKING_RATIO
    if vague:  # no formula: charged with what was measured; some cards may always show this
        found = replace(found, lost_s=found.measured_s)
    state = f" in the low state P{pstate:.0f}" if in_low_state else ""
    return Finding(
        phase=found.phase,
        confidence=weigh(*proof, against=int(vague and not found.healthy.own)),
        lost_s=found.lost_s,
        summary=(
            f"{found.name} was {100 * busy:.0f} % busy but stayed{state} at a low clock in "
            f"{100 * low:.0f} % of {found.phase}, and the driver gives no reason: {found.said}; "
            f"{found.phase} lost about {{lost}}."
        ),
        remedy=_remedy(case, found),
        evidence=(
            found.evidence,
            Evidence(name="GPU busy", value=100 * busy, unit="%", limit=100 * MIN_BUSY_RATIO),
            Evidence(
                name="time at the low clock",
                value=100 * low,
                unit="%",
                limit=100 * MIN_SAMPLES_RATIO,
            ),
        ),
    )


def _remedy(case: Case, found: ClockLoss) -> str:
    engine = {"llama-server": "llama-server", "ollama": "Ollama", "vllm": "vLLM"}.get(
        case.server.kind, "the engine"
    )
    unlock = unlock_clocks(found.gpu)
    last = "shut down and unplug it for a minute" if found.gpu.unified_memory else "reboot"
    return f"Remove clock locks ({unlock}), then restart {engine}; if the clock stays low, {last}."
