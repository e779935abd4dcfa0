"""The engine runs with too many CPU threads for its cores, or with far too few.

Signal:
Too many: the engine has more threads than cores (or than the quota allows), and they wait for each
other on the run queue although other processes are quiet. Each token has many barriers, and one
thread without a core stops all. Too few: fewer than half of the physical cores (performance cores,
where there are others) are at work, while the memory bandwidth is not reached and other programs
leave the cores free. Beside a GPU, decode is also slower than what lies in RAM accounts for.

Not to be confused with:
- `host-contention`: other processes use the cores that the threads wait for.
- `partial-offload`, `model-too-big`: weights in RAM make decode slow with any number of threads.
- `cpu-quota`: the kernel throttles the server. With more threads than the quota, both are true.
- Once the memory bandwidth is reached, from three or four threads on, more threads bring nothing,
  which is normal.

Remedy:
Use as many threads as there are physical cores (performance cores on hybrid CPUs), or whole cores
in the quota. In llama-server an explicit `--threads 0` or `-1` means all logical cores: leave it
out.

Sources:
- ggml-org/llama.cpp#20020 (8 cores, 16 threads: 2.5 tokens/s where 9 are possible), #842, #767,
  #12966 (no gain above 3-4 threads where bandwidth is the limit).
- Measured with llama-server on two cores, 1.5, 2, 4 and 8 threads per core: decode 3.3, 3.4, 4.3
  and 7.0 times slower than with one thread per core. Under a quota of one core: two threads took
  20.2 ms per token where one took 7.0.
"""

import math
from dataclasses import dataclass

from slowtok.detectors.analysis.cpu import (
    ask_for,
    logical_cores,
    physical_cores,
    usable_cores,
)
from slowtok.detectors.analysis.host_window import (
    RunQueue,
    computes_on_cpu,
    decode_s,
    decode_tps,
    mean,
    need_samples,
    run_queue,
    runs_on_cpu,
)
from slowtok.detectors.analysis.phase_loss import nearest_loss_s
from slowtok.detectors.analysis.placement.where import off_gpu
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, EvidenceKind, Finding, Traits, need, weigh

TITLE = "Wrong number of CPU threads"
TRAITS = Traits(requires="host-samples", since_load=True)

MIN_OWN_WAIT_RATIO = 0.10
"""Heuristic. Healthy: 1 %; three threads on two cores: 27 %."""

MIN_OWN_WAIT_CORES = 0.1
"""Heuristic: what hardly uses the CPU waits for a good part of next to nothing."""

MIN_OVERSUBSCRIBED_SLOWDOWN = 3.0
"""From one thread too many on: three threads on two cores measured 3.3, llama.cpp#20020 has 3.6."""

FEW_THREADS_RATIO = 0.5
"""Heuristic."""

BANDWIDTH_REACHED_RATIO = 0.5
"""Share of the measured RAM bandwidth above which more threads are not promised to help."""

CONFIDENCE = 0.85

BUSY_RATIO = 0.9
"""Threads that hold decode up have no rest. Heuristic."""


def detect(case: Case) -> Finding | None:
    """Fire on threads that wait for each other, or on cores left idle below the bandwidth."""
    queue = run_queue(case, "decode")
    own_ratio = queue.own_ratio + _throttled_ratio(queue)
    cores = usable_cores(case, case.device.cpu_physical_cores)
    own_cores = queue.own_cores + queue.throttled_cores
    if own_ratio >= MIN_OWN_WAIT_RATIO and own_cores >= MIN_OWN_WAIT_CORES:
        threads = need(case.server.threads, "number of CPU threads of the engine")
        return _too_many(case, threads, cores, queue) if threads > math.ceil(cores) else None
    cores = usable_cores(case, physical_cores(case.device))
    busy = mean(case.host_during("decode"), lambda s: s.server_busy_threads)
    # threads that waited for a core are threads too, whoever had it
    wanted = None if busy is None else max(busy, queue.wanted_cores)
    working = need(case.server.threads or wanted, "number of CPU threads of the engine")
    free_cores = logical_cores(case) - queue.others_cores
    is_few = working < FEW_THREADS_RATIO * min(cores, free_cores)
    part = _cpu_part(case) if is_few else None
    if part is None:
        need_samples(case, "decode")
        return None
    return _too_few(case, working, cores, part)


def _throttled_ratio(queue: RunQueue) -> float:
    return queue.throttled_cores / queue.wanted_cores if queue.wanted_cores else 0.0


def _too_many(case: Case, threads: int, cores: float, queue: RunQueue) -> Finding:
    own_ratio = queue.own_ratio + _throttled_ratio(queue)
    slowdown = max(threads / cores, MIN_OVERSUBSCRIBED_SLOWDOWN)
    duration_s = decode_s(case)
    proven_ratio = queue.proven_own_ratio if computes_on_cpu(case) else 0.0
    proof_s = duration_s * min(proven_ratio, 1.0)
    return Finding(
        phase="decode",
        confidence=CONFIDENCE,
        lost_s=max(duration_s * (1 - 1 / slowdown), proof_s),
        proof_s=proof_s,
        summary=(
            f"The engine runs {threads} CPU threads on {cores:.3g} "
            f"core{'s' if cores != 1 else ''}, so its threads waited for a core "
            f"{100 * own_ratio:.0f} % of the time; decode lost about {{lost}}."
        ),
        remedy=ask_for(case),
        evidence=(
            Evidence(name="CPU threads", value=threads, unit="threads", limit=cores),
            Evidence(
                name="wait for a core",
                value=100 * own_ratio,
                unit="%",
                limit=100 * MIN_OWN_WAIT_RATIO,
            ),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CpuPart:
    """What the CPU reads for one token, and the time that it had for it.

    `most_tps` is what the split gives at best, None where all of a token is the CPU's.
    """

    read_bytes: float
    token_s: float
    most_tps: float | None = None


def _cpu_part(case: Case) -> _CpuPart | None:
    """Return the CPU's part of a token; None where it has none, or the split alone explains it.

    Weights in RAM make decode slow with any number of threads, so what even a poor split gives is
    no reason to ask for more of them.
    """
    rate_tps, envelope = decode_tps(case), case.envelope
    if runs_on_cpu(case):
        read_bytes = need(envelope.read_bytes, "bytes read per token")
        return _CpuPart(read_bytes=read_bytes + (envelope.kv_bytes or 0), token_s=1 / rate_tps)
    split, expected_tps = envelope.as_configured, envelope.expected_tps
    if case.server.threads is None or split is None or not expected_tps or rate_tps >= split.low:
        return None
    placed = off_gpu(case)
    if placed is None or placed.over_link or envelope.read_bytes is None:
        return None
    read_bytes = placed.weights_ratio * envelope.read_bytes
    read_bytes += placed.kv_ratio * (envelope.kv_bytes or 0)
    on_gpu_s = (1 - placed.cpu_ratio) / expected_tps
    token_s = max(1 / rate_tps - on_gpu_s, 0.0)
    return _CpuPart(read_bytes=read_bytes, token_s=token_s, most_tps=split.high)


def _too_few(case: Case, threads: float, cores: float, part: _CpuPart) -> Finding | None:
    bandwidth = need(case.device.ram_bandwidth_bytes_per_s, "RAM bandwidth")
    used_ratio = part.read_bytes / part.token_s / bandwidth if part.token_s else 1.0
    if used_ratio >= BANDWIDTH_REACHED_RATIO:
        return None
    # with all cores decode reaches at least this share of the bandwidth, and at most all of it
    least = max(min(cores / threads, BANDWIDTH_REACHED_RATIO / used_ratio), 1.0)
    most = min(cores / threads, 1 / used_ratio)
    duration_s = decode_s(case) * part.token_s * decode_tps(case)
    least_s, most_s = duration_s * (1 - 1 / least), duration_s * (1 - 1 / most)
    if part.most_tps is not None:
        most_s = min(most_s, decode_s(case) * (1 - decode_tps(case) / part.most_tps))
    busy = mean(case.host_during("decode"), lambda s: s.server_cpu_cores) or 0.0
    proof: tuple[EvidenceKind, ...] = ("gauge",) if busy >= BUSY_RATIO * threads else ()
    return Finding(
        phase="decode",
        confidence=weigh("gauge", "inference", *proof),
        lost_s=nearest_loss_s(case, min(least_s, most_s), most_s),
        summary=(
            f"The engine used {threads:.0f} of {cores:.3g} {_kind(case)}cores and "
            f"{100 * used_ratio:.0f} % of the RAM bandwidth; with all of them decode could take "
            f"about {{lost}} less."
        ),
        remedy=ask_for(case),
        evidence=(
            Evidence(
                name="CPU threads",
                value=threads,
                unit="threads",
                limit=FEW_THREADS_RATIO * cores,
            ),
            Evidence(
                name="RAM bandwidth used",
                value=100 * used_ratio,
                unit="%",
                limit=100 * BANDWIDTH_REACHED_RATIO,
            ),
        ),
    )


def _kind(case: Case) -> str:
    return "performance " if case.device.cpu_performance_cores else ""
