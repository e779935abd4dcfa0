"""How well a GPU is used by the code that runs on it, and what builds of llama.cpp have code for.

Strategy: a GPU that is busy at its usual clocks, with next to nothing on the bus and nobody else
there, but whose memory rests or which draws far less than it did, runs code that does not fit it.

Sources: ggml-org/llama.cpp#28455 (KV types with flash attention on CUDA in builds without
GGML_CUDA_FA_ALL_QUANTS; one type for keys and values). #17906, merged on 24 December 2025, is code
of its own for Blackwell: about build 7,520, as 6,325 is of 30 August and 8,808 of 24 April.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slowtok.detectors.case import Case, Phase
from slowtok.detectors.clocks import serving
from slowtok.detectors.drafts import speculates
from slowtok.detectors.engine import ServerFacts
from slowtok.detectors.envelope_memory import build_of
from slowtok.detectors.finding import Channel, Evidence, Missing, need
from slowtok.detectors.gpu_window import (
    BRAKE_BITS,
    THERMAL_BITS,
    facts_of,
    gained,
    median,
    newest,
    settled,
    share_with_bits,
)
from slowtok.detectors.machine import GpuSample
from slowtok.detectors.vram import MODEL_BYTES, newest_split

LLAMA_CPP = frozenset({"llama-server", "ollama", "lm-studio"})
KV_TYPES = frozenset({"f32", "f16", "bf16", "q8_0", "q4_0"})
SUPPORTED_SINCE = {"Blackwell": 7500}

MIN_BUSY_RATIO = 0.90
MAX_POWER_RATIO = 0.70
"""Of its own best; of its limit where that is not known. An old build: 98 % busy at 47 % of the
limit, a new one at 80 % (Blackwellboy/model-serving-minefield, trap 46). No published source for
the value between; healthy cards may be at 0.55 of their limit, so that alone says nothing."""

MAX_MEMORY_RATIO = 0.50
MAX_OF_EXPECTED_RATIO = 0.75
"""A healthy decode uses 0.6 of the bandwidth and more, 68 to 90 % of the time; one of a small model
less, by what is expected of it. No published source for the values below."""

MIN_CLOCK_RATIO = 0.75
MIN_MEMORY_CLOCK_RATIO = 0.85
"""Lower clocks are a cause of their own; healthy cards run at 0.8 of their highest and more, their
memory at 0.95."""

MAX_HELD_BACK_RATIO = 0.05
"""Of the time, by heat or a brake: more is a cause of its own. The power bit alone says nothing. No
published source."""

MAX_BUS_BYTES_PER_S = 1e9
MAX_OTHERS_RATIO = 0.10
"""Fetching weights moves more; a desktop works less. No published source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoorUse:
    """How the GPU looked: `channels` are what speaks for slow code.

    `memory_counted` says that the driver counted how much of the bandwidth was used.
    """

    index: int
    busy_ratio: float
    power_ratio: float | None
    channels: tuple[Channel, ...]
    memory_counted: bool
    evidence: tuple[Evidence, ...]


def poor_use(case: Case, phase: Phase) -> PoorUse | None:
    """Return how the one GPU looked that was busy all the while; None where it was not so.

    Nothing else may explain it, so all else has to be known.

    Raises:
        Missing: how busy it was is not known, nor its clocks, the bus or who else is there.
    """
    gpus = serving(case, phase)
    if len(gpus) != 1 or case.neighbours.decode_mean > 0 or speculates(case):
        return None
    [(index, samples)] = gpus.items()
    late = settled(samples)
    busy = need(median(late, lambda s: s.busy_ratio), "GPU utilisation")
    if busy < MIN_BUSY_RATIO or _clocks_are_low(case, index, late) or _is_shared(samples):
        return None
    if (share_with_bits(late, THERMAL_BITS | BRAKE_BITS) or 0.0) > MAX_HELD_BACK_RATIO:
        return None
    if _fetches(late) or _had_errors([s for s in case.gpu if s.index == index]):
        return None
    power, power_ratio = _power(case, late)
    memory, memory_ratio = _memory(case, late) if phase == "decode" else ((), None)
    evidence = Evidence(name="GPU busy", value=100 * busy, unit="%", limit=100 * MIN_BUSY_RATIO)
    return PoorUse(
        index=index,
        busy_ratio=busy,
        power_ratio=power_ratio,
        channels=(*power, *memory),
        memory_counted=median(late, lambda s: s.dram_busy_ratio) is not None,
        evidence=(evidence, *_percent("power", power_ratio), *_percent("memory", memory_ratio)),
    )


def _clocks_are_low(case: Case, index: int, samples: Sequence[GpuSample]) -> bool:
    past, card = case.history, facts_of(case, index)
    sm = need(median(samples, lambda s: s.sm_clock_mhz), "clocks of the GPU")
    memory = median(samples, lambda s: s.memory_clock_mhz)
    best_sm = past.best_sm_clock_mhz or card.max_sm_clock_mhz
    best_memory = past.best_memory_clock_mhz or card.max_memory_clock_mhz
    return _is_below(sm, MIN_CLOCK_RATIO, best_sm) or _is_below(
        memory, MIN_MEMORY_CLOCK_RATIO, best_memory
    )


def _is_below(clock: float | None, ratio: float, best: float | None) -> bool:
    return clock is not None and best is not None and clock < ratio * best


def _is_shared(samples: Sequence[GpuSample]) -> bool:
    """Say whether other processes work on the GPU; they need to be seen to be ruled out."""
    held = newest_split(samples)
    lists = [s.processes for s in samples if s.processes is not None]
    others = [p for p in need(lists or None, "processes on the GPU")[-1] if p.is_server is not True]
    if held is not None and (held.hidden_bytes or 0) > MODEL_BYTES:
        raise Missing("processes on the GPU")
    for other in others:
        if (other.memory_bytes or 0) > MODEL_BYTES:
            need(other.busy_ratio, "GPU time of each process")
    return sum(other.busy_ratio or 0.0 for other in others) >= MAX_OTHERS_RATIO


def _fetches(samples: Sequence[GpuSample]) -> bool:
    """Say whether the GPU fetches from RAM: by the bus, or by what lies there."""
    traffic = median(samples, lambda s: s.pcie_rx_bytes_per_s)
    lists = [s.processes for s in samples if s.processes is not None]
    in_ram = [p.host_memory_bytes for p in (lists[-1] if lists else ()) if p.is_server]
    if traffic is None and in_ram and None not in in_ram:
        return sum(count or 0 for count in in_ram) > MODEL_BYTES
    return need(traffic, "PCIe traffic") >= MAX_BUS_BYTES_PER_S


def _had_errors(samples: Sequence[GpuSample]) -> bool:
    return bool(gained(samples, lambda s: s.xids) or gained(samples, lambda s: s.ecc_errors))


def _power(case: Case, samples: Sequence[GpuSample]) -> tuple[tuple[Channel, ...], float | None]:
    power, best = median(samples, lambda s: s.power_w), case.history.best_power_w
    whole = best or newest(samples, lambda s: s.power_limit_w)
    if power is None or not whole:
        return (), None
    ratio = power / whole
    return (("gauge",) if best and ratio <= MAX_POWER_RATIO else ()), ratio


def _memory(case: Case, samples: Sequence[GpuSample]) -> tuple[tuple[Channel, ...], float | None]:
    """Return what the memory says: its bandwidth is counted, its busy time only sampled.

    The share of time with any traffic falls with any slowdown, whatever its reason: it is shown,
    and is no evidence of its own.
    """
    limit = min(MAX_MEMORY_RATIO, MAX_OF_EXPECTED_RATIO * _expected_memory_ratio(case))
    used = median(samples, lambda s: s.dram_busy_ratio)
    if used is not None:
        return (("counter",) if used <= limit else ()), used
    return (), median(samples, lambda s: s.memory_busy_ratio)


def _expected_memory_ratio(case: Case) -> float:
    """Return the share of the bandwidth that a healthy decode of this model uses."""
    e = case.envelope
    if not e.bandwidth_bytes_per_s or e.expected_tps is None:
        return 1.0
    return e.expected_tps * ((e.read_bytes or 0.0) + (e.kv_bytes or 0.0)) / e.bandwidth_bytes_per_s


def _percent(name: str, ratio: float | None) -> tuple[Evidence, ...]:
    if ratio is None:
        return ()
    limit = {"power": MAX_POWER_RATIO, "memory": MAX_MEMORY_RATIO}[name]
    return (Evidence(name=f"{name} in use", value=100 * ratio, unit="%", limit=100 * limit),)


def kv_types(server: ServerFacts) -> tuple[str, str]:
    """Return the types of keys and values; 16-bit is the default."""
    return (server.kv_type_k or "f16").lower(), (server.kv_type_v or "f16").lower()


def lacks_attention(case: Case) -> bool:
    """Say whether usual builds have no flash attention for this KV cache on these GPUs."""
    server, gpus = case.server, case.device.gpus or ()
    if server.kind not in LLAMA_CPP or server.flash_attention == "off":
        return False
    if server.kv_on_gpu is False or any(gpu.vendor != "nvidia" for gpu in gpus):
        return False
    key, value = kv_types(server)
    return key != value or key not in KV_TYPES


def lacks_generation(case: Case) -> int | None:
    """Return the first build with code for these GPUs, if the engine's build is older."""
    mine, build = case.server.gpu_indices, build_of(case.server.version)
    used = {g.architecture for g in case.device.gpus or () if not mine or g.index in mine}
    since = max((SUPPORTED_SINCE.get(name or "", 0) for name in used), default=0)
    return since if build is not None and build < since else None
