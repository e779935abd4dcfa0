"""The GPU could do it faster: the engine has no good code for this GPU, or for this KV cache.

Signal:
The whole model is on the GPU, and decode or prefill is far below what the GPU gives. Either an
operator has no GPU code, so that several CPU threads are busy and the GPU waits: this happens to
flash attention with a type of KV cache that llama.cpp's builds leave out, or with one type for keys
and another for values. Or the GPU is busy at its usual clocks while its memory rests or its power
is far below its own best, and nothing else explains it; an engine built before the GPU's generation
was supported makes that likely.

Not to be confused with:
- `partial-offload`: weights or a KV cache in RAM keep the CPU busy as well.
- `host-bound`: the GPU idles while one thread is busy, or CUDA graphs are off.
- `clocks-stuck`, `power-cap`: the clocks are low.
- `vram-spill`: the bus is busy.
- `gpu-shared`, `batch-shared`: another process or request works on the GPU.
- A stall holds up single tokens, whereas slow code is slow at each token.
- `flash-attention-off`: the command line shows it, and it costs more as the context grows.
- A busy GPU with low power alone is not enough: healthy cards look like that, too, so slowtok never
  names this cause for it.

Remedy:
Use a KV cache of f16, or of q8_0 or q4_0 for both keys and values, or take a newer build, made for
this GPU.

Sources:
- ggml-org/llama.cpp#28456, #28455, #27109 (default builds have kernels for f16, bf16, q8_0, q4_0;
  prefill 1,511 to 197 tokens/s with q5_1; 1,100 to 34 with q4_1 and q8_0).
- am17an/llama.cpp#28 (GB10: decode 27.1 to 9.4, prefill 1,899 to 379 tokens/s with q5_1).
- Blackwellboy/model-serving-minefield, trap 46 (old build: 16 tokens/s, 98 % busy at 47 % of the
  power; new one: 40, at 80 %). ggml-org/llama.cpp#17906, #18436: the build that knows Blackwell.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu, serving_samples
from slowtok.detectors.analysis.gpu.gpu_window import (
    MAX_IDLING_POWER_RATIO,
    MIN_BUSY_RATIO,
    by_gpu,
    gained,
    gpu_facts,
    median,
    newest,
    share_with_bits,
    without_first_second,
)
from slowtok.detectors.analysis.gpu.pcie import FETCHING_BYTES_PER_S
from slowtok.detectors.analysis.gpu.vram import MODEL_BYTES, newest_split
from slowtok.detectors.analysis.host_window import mean
from slowtok.detectors.analysis.measured_loss import measured_loss
from slowtok.detectors.analysis.phase_loss import judge_decode, prefill_excess_s
from slowtok.detectors.analysis.placement.where import off_gpu
from slowtok.detectors.analysis.rate_shape import stalls_of, step_of
from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.clocks_event import BRAKE_BITS, THERMAL_BITS
from slowtok.detectors.case.engine import LLAMA_CPP, ServerFacts
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
from slowtok.detectors.expectation.memory import build_of
from slowtok.detectors.expectation.speculation import speculates

TITLE = "No fast GPU kernel for this model"
TRAITS = Traits(requires="gpu-use", persistent=True, since_load=True)

MAX_STALLED_RATIO = 0.5
"""Of what was lost: slow code is slow at each token. Heuristic."""

OLD_POWER_RATIO = 0.60
"""Of the power limit, where a build is known to be old: 0.47 in trap 46, 0.80 after the rebuild."""

# Attention that the CPU computes, because the build has no GPU code for the KV cache's type.
#
# Sources: ggml-org/llama.cpp#28456 (q5_1: prefill 1,511 to 197 tokens/s), #28455 (which types).

COMPUTING_CORES = 2.0
"""One thread waits for the GPU, whatever it does; more of them compute."""

# How well a GPU is used by the code that runs on it, and what builds of llama.cpp have code for.
#
# Strategy: a GPU that is busy at its usual clocks, with next to nothing on the bus and nobody
# else there, but whose memory rests or which draws far less than it did, runs code that does not
# fit it.
#
# Sources: ggml-org/llama.cpp#28455 (KV types with flash attention on CUDA in builds without
# GGML_CUDA_FA_ALL_QUANTS; one type for keys and values). #17906, merged on 24 December 2025, is
# code of its own for Blackwell: about build 7,520, as 6,325 is of 30 August and 8,808 of 24
# April.

KV_TYPES = frozenset({"f32", "f16", "bf16", "q8_0", "q4_0"})
SUPPORTED_SINCE = {"Blackwell": 7500}

ALWAYS_BUSY_RATIO = 0.90
MAX_MEMORY_RATIO = 0.50
MAX_OF_EXPECTED_RATIO = 0.75
"""A healthy decode uses 0.6 of the bandwidth and more, 68 to 90 % of the time; one of a small model
less, by what is expected of it. Heuristic: the values below."""

MIN_CLOCK_RATIO = 0.75
MIN_MEMORY_CLOCK_RATIO = 0.85
"""Lower clocks are a cause of their own; healthy cards run at 0.8 of their highest and more, their
memory at 0.95."""

MAX_HELD_BACK_RATIO = 0.05
"""Of the time, by heat or a brake: more is a cause of its own. The power bit alone says nothing.
Heuristic."""

MAX_OTHERS_RATIO = 0.10
"""A desktop works less. Heuristic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoorUse:
    """How the GPU looked: `kinds` are what speaks for slow code.

    `memory_counted` says that the driver counted how much of the bandwidth was used.
    """

    index: int
    busy_ratio: float
    power_ratio: float | None
    kinds: tuple[EvidenceKind, ...]
    memory_counted: bool
    evidence: tuple[Evidence, ...]


def detect(case: Case) -> Finding | None:
    """Fire when what the engine runs has no fast code here, and it shows.

    No formula tells what slow code costs: it is charged with what was lost.
    """
    lost: dict[Phase, float] = {
        "decode": judge_decode(case).lost_s,
        "prefill": prefill_excess_s(case),
    }
    phase: Phase = "prefill" if lost["prefill"] > lost["decode"] else "decode"
    if lost[phase] <= 0 or not decodes_on_gpu(case):
        return None
    if _may_be_on_cpu(case, phase):
        return _attention_on_cpu(case, phase, lost[phase], _rate(case, phase))
    host = need(case.host_during(phase) or None, f"host samples during {phase}")
    need(mean(host, lambda s: s.server_cpu_cores), "CPU time of the server")
    if case.server.eager or case.server.flash_attention == "off":
        return None
    if phase == "decode" and _changed_in_mid_answer(case, lost[phase]):
        return None
    use = poor_use(case, phase)
    if use is None or off_gpu(case) is not None:
        return None
    return _poor_code(case, phase, lost[phase], use)


def _changed_in_mid_answer(case: Case, lost_s: float) -> bool:
    """Return True if the answer stalled, or its rate changed: slow code is slow at each token."""
    stalled_s = sum(stall.gap_s for stall in stalls_of(case))
    measured = measured_loss(case)
    changed = step_of(case) is not None or (
        measured is not None and measured.kind == "slower than itself"
    )
    return changed or stalled_s >= MAX_STALLED_RATIO * lost_s


def _poor_code(case: Case, phase: Phase, lost_s: float, use: PoorUse) -> Finding | None:
    since, gpu = lacks_generation(case), gpu_facts(case, use.index)
    kinds: list[EvidenceKind] = list(use.kinds)
    if since is not None and (kinds or (use.power_ratio or 1.0) <= OLD_POWER_RATIO):
        kinds += ["gauge"] if kinds else ["gauge", "gauge"]
    if not kinds:
        # a memory that is read slowly looks busy all the time: only what was read tells
        need(use.memory_counted or phase != "decode" or None, "bandwidth used of the GPU's memory")
        return None
    name, rate = gpu.name or "The GPU", _rate(case, phase)
    why = "nothing else that is visible explains it, so the engine's code must make poor use of it"
    if since is not None:
        why = f"the engine's build {case.server.version} is older than llama.cpp's code for it"
    return Finding(
        phase=phase,
        confidence=weigh("inference", *kinds),
        lost_s=lost_s,
        summary=(
            f"{name} was {100 * use.busy_ratio:.0f} % busy at its usual clocks but gave only "
            f"{rate.value:.1f} tokens/s where about {rate.limit or 0:.0f} are usual: {why}; "
            f"{phase} lost about {{lost}}."
        ),
        remedy=_newer(case, since),
        evidence=(*use.evidence, rate),
    )


def _rate(case: Case, phase: Phase) -> Evidence:
    p, envelope = case.phases, case.envelope
    decode = phase == "decode"
    return Evidence(
        name=f"{phase} rate",
        value=(p.decode_tps if decode else p.prefill_tps) or 0.0,
        unit="tokens/s",
        limit=envelope.expected_tps if decode else envelope.expected_prefill_tps,
    )


def _newer(case: Case, since: int | None) -> str:
    if since is not None:
        return f"Take llama.cpp b{since} or later, made with CUDA 13 (or for architecture 120)."
    build = f" than {case.server.version}" if case.server.version else ""
    other = "Q4_K_M" if case.server.kind in LLAMA_CPP else "AWQ or FP8"
    return (
        f"Take a newer version of the engine{build}, made for this GPU; if that changes nothing, "
        f"try a common quantisation ({other}) and a 16-bit KV cache."
    )


def _may_be_on_cpu(case: Case, phase: Phase) -> bool:
    """Return True if builds lack the code, and the server's threads compute or are not seen.

    Few threads compute, too, where the GPU waits for them.
    """
    cores = _cores(case, phase)
    computes = cores is None or cores >= COMPUTING_CORES or _gpu_waits(case, phase)
    return lacks_attention(case) and computes


def _gpu_waits(case: Case, phase: Phase) -> bool:
    gpus = by_gpu(case.gpu_during(phase)).values()
    busy = [median(without_first_second(samples), lambda s: s.busy_ratio) for samples in gpus]
    known = [ratio for ratio in busy if ratio is not None]
    return bool(known) and sum(known) < MIN_BUSY_RATIO


def _attention_on_cpu(case: Case, phase: Phase, lost_s: float, rate: Evidence) -> Finding | None:
    """Return the finding; None where a part of the model in RAM keeps the CPU busy.

    Where nobody sees the threads, the engine's word is believed with a doubt.
    """
    cores = _cores(case, phase)
    if _is_elsewhere(case, is_seen=cores is not None):
        return None
    key, value = kv_types(case.server)
    kind = key if key == value else f"{key} for keys and {value} for values"
    who = "the CPU probably" if cores is None else f"{cores:.1f} CPU cores"
    limit = COMPUTING_CORES if (cores or 0) >= COMPUTING_CORES else None
    seen = Evidence(name="CPU of the server", value=cores or 0, unit="cores", limit=limit)
    lost = Evidence(name=f"{phase} lost", value=lost_s, unit="s")
    return Finding(
        phase=phase,
        confidence=weigh("server", against=1) if cores is None else weigh("server", "gauge"),
        lost_s=lost_s,
        summary=(
            f"The KV cache is {kind}, for which usual builds have no attention code for the GPU: "
            f"{who} computed attention while the GPU waited; {phase} lost about {{lost}}."
        ),
        remedy=_remedy(case),
        evidence=(lost if cores is None else seen, rate),
    )


def _cores(case: Case, phase: Phase) -> float | None:
    return mean(case.host_during(phase), lambda s: s.server_cpu_cores)


def _is_elsewhere(case: Case, *, is_seen: bool) -> bool:
    try:
        return off_gpu(case) is not None
    except Missing:
        if is_seen:
            raise
        return False


def _remedy(case: Case) -> str:
    setting = {
        "llama-server": "--cache-type-k q8_0 --cache-type-v q8_0",
        "ollama": "OLLAMA_KV_CACHE_TYPE=q8_0",
    }.get(case.server.kind, "q8_0 for both")
    return (
        f"Start the engine with {setting} (or f16, or q4_0 for both), or take a build made with "
        "-DGGML_CUDA_FA_ALL_QUANTS=ON."
    )


def poor_use(case: Case, phase: Phase) -> PoorUse | None:
    """Return how the one GPU looked that was busy all the while; None where it was not so.

    Nothing else may explain it, so all else has to be known.

    Raises:
        Missing: how busy it was is not known, nor its clocks, the bus or who else is there.
    """
    gpus = serving_samples(case, phase)
    if len(gpus) != 1 or case.neighbours.decode_mean > 0 or speculates(case):
        return None
    [(index, samples)] = gpus.items()
    late = without_first_second(samples)
    busy = need(median(late, lambda s: s.busy_ratio), "GPU utilisation")
    if busy < ALWAYS_BUSY_RATIO or _clocks_are_low(case, index, late) or _is_shared(samples):
        return None
    if (share_with_bits(late, THERMAL_BITS | BRAKE_BITS) or 0.0) > MAX_HELD_BACK_RATIO:
        return None
    if _fetches(late) or _had_errors([s for s in case.gpu if s.index == index]):
        return None
    power, power_ratio = _power(case, late)
    memory, memory_ratio = _memory(case, late) if phase == "decode" else ((), None)
    evidence = Evidence(name="GPU busy", value=100 * busy, unit="%", limit=100 * ALWAYS_BUSY_RATIO)
    return PoorUse(
        index=index,
        busy_ratio=busy,
        power_ratio=power_ratio,
        kinds=(*power, *memory),
        memory_counted=median(late, lambda s: s.dram_busy_ratio) is not None,
        evidence=(evidence, *_percent("power", power_ratio), *_percent("memory", memory_ratio)),
    )


def _clocks_are_low(case: Case, index: int, samples: Sequence[GpuSample]) -> bool:
    past, card = case.history, gpu_facts(case, index)
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
    """Return True if other processes work on the GPU; they need to be seen to be ruled out."""
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
    """Return True if the GPU fetches from RAM: by the bus, or by what lies there."""
    traffic = median(samples, lambda s: s.pcie_rx_bytes_per_s)
    lists = [s.processes for s in samples if s.processes is not None]
    in_ram = [p.host_memory_bytes for p in (lists[-1] if lists else ()) if p.is_server]
    if traffic is None and in_ram and None not in in_ram:
        return sum(count or 0 for count in in_ram) > MODEL_BYTES
    return need(traffic, "PCIe traffic") >= FETCHING_BYTES_PER_S


def _had_errors(samples: Sequence[GpuSample]) -> bool:
    return bool(gained(samples, lambda s: s.xids) or gained(samples, lambda s: s.ecc_errors))


def _power(
    case: Case, samples: Sequence[GpuSample]
) -> tuple[tuple[EvidenceKind, ...], float | None]:
    power, best = median(samples, lambda s: s.power_w), case.history.best_power_w
    whole = best or newest(samples, lambda s: s.power_limit_w)
    if power is None or not whole:
        return (), None
    ratio = power / whole
    return (("gauge",) if best and ratio <= MAX_IDLING_POWER_RATIO else ()), ratio


def _memory(
    case: Case, samples: Sequence[GpuSample]
) -> tuple[tuple[EvidenceKind, ...], float | None]:
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
    limit = {"power": MAX_IDLING_POWER_RATIO, "memory": MAX_MEMORY_RATIO}[name]
    return (Evidence(name=f"{name} in use", value=100 * ratio, unit="%", limit=100 * limit),)


def kv_types(server: ServerFacts) -> tuple[str, str]:
    """Return the types of keys and values; 16-bit is the default."""
    return (server.kv_type_k or "f16").lower(), (server.kv_type_v or "f16").lower()


def lacks_attention(case: Case) -> bool:
    """Return True if usual builds have no flash attention for this KV cache on these GPUs."""
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
