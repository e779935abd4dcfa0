"""A CPU quota of the server's container or service stops its threads in every period.

Signal:
The kernel throttled the cgroup of the server in at least 5 % of its periods (100 ms by default),
and the server's threads stood still meanwhile: the time that the kernel counts as stopped is lost
for certain. Averages look harmless: the CPU use stays below the limit, and the machine has idle
cores.

Not to be confused with:
- `host-contention`: other processes keep the cores busy, and nothing is throttled.
- `threads-misconfigured`: there are more threads than cores, without any quota. Engines count the
  cores that they see, not the quota, so under a quota the default thread count is often wrong, too.

Remedy:
Raise or remove the limit (docker --cpus, Kubernetes limits.cpu, systemd CPUQuota), or start the
engine with as many threads as the quota has whole cores: under a quota of one core, two threads
took 20.2 ms per token where one took 7.0.

Sources:
- Linux Documentation/scheduler/sched-bwc.rst (nr_periods, nr_throttled, throttled time).
- kubernetes/kubernetes#67577 (throttled far below the limit on average).
- ollama/ollama#17916 (many more threads than the quota has cores: 45 times slower).
- tobocop2/lilbee#660 (96 visible cores, quota 7.65, 48 threads: generation collapses).
- Measured with llama-server (SmolLM2-135M, Q4_1) on a two-core virtual machine.
"""

from slowtok.detectors.analysis.cpu import in_words, recommended_threads
from slowtok.detectors.analysis.host_window import computes_on_cpu, decode_s, mean, need_samples
from slowtok.detectors.analysis.phase_loss import nearest_loss_s
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits, need

TITLE = "Held back by a CPU quota"
TRAITS = Traits(requires="host-samples")

MIN_THROTTLED_RATIO = 0.05
"""Heuristic: below one period in twenty, the stops add up to less than jitter."""

MIN_STOPPED_RATIO = 0.02
"""Heuristic: a period may count as throttled for its last few microseconds only."""

MAX_EXPONENT = 1.8
"""The most that was measured, see `_lost_ratios`."""

CROWD_RATIO = 2.0
MAX_SLOWDOWN = 45.0
"""Threads that spin at a barrier: 45 times slower (ollama/ollama#17916); above twice the quota, as
there. Heuristic: where it begins."""

MIN_PROVEN_RATIO = 0.10
"""Of the decode: what was counted as stopped below that is no proof yet of a slow one.
Heuristic."""

CONFIDENCE = 0.95
"""A counter of the kernel that says nothing else."""


def detect(case: Case) -> Finding | None:
    """Fire when the kernel throttled the server's cgroup during decode."""
    samples = need(case.host_during("decode") or None, "host samples during decode")
    ratio = need(mean(samples, lambda s: s.server_throttled_ratio), "CPU throttling of the server")
    if ratio < MIN_THROTTLED_RATIO:
        need_samples(case, "decode")
        return None
    stopped_cores = need(
        mean(samples, lambda s: s.server_throttled_s_per_s), "time the server was throttled"
    )
    used_cores = need(mean(samples, lambda s: s.server_cpu_cores), "CPU time of the server")
    stopped_ratio = stopped_cores / (stopped_cores + used_cores) if stopped_cores else 0.0
    if stopped_ratio < MIN_STOPPED_RATIO:
        return None
    quota = mean(samples, lambda s: s.server_quota_cores)
    threads = max(stopped_cores + used_cores, case.server.threads or 0)
    least_ratio, most_ratio = _lost_ratios(stopped_ratio, quota, threads)
    lost_s = nearest_loss_s(case, decode_s(case) * least_ratio, decode_s(case) * most_ratio)
    proof_s = decode_s(case) * least_ratio if least_ratio >= MIN_PROVEN_RATIO else 0.0
    limit = (
        "Its CPU quota"
        if quota is None
        else f"The CPU quota of {quota:g} core{'s' if quota != 1 else ''}"
    )
    return Finding(
        phase="decode",
        confidence=CONFIDENCE,
        lost_s=lost_s,
        proof_s=proof_s,
        summary=(
            f"{limit} stopped the server's threads in {100 * ratio:.0f} % of the scheduling "
            f"periods, {100 * stopped_ratio:.0f} % of the time that they wanted to run; "
            f"decode lost about {{lost}}."
        ),
        remedy=_remedy(case, quota),
        evidence=(
            Evidence(
                name="throttled periods",
                value=100 * ratio,
                unit="%",
                limit=100 * MIN_THROTTLED_RATIO,
            ),
            Evidence(name="throttled", value=stopped_cores, unit="cores"),
            Evidence(name="CPU used by the server", value=used_cores, unit="cores", limit=quota),
        ),
    )


def _lost_ratios(stopped_ratio: float, quota: float | None, threads: float) -> tuple[float, float]:
    """Return what stopping for this share of the wanted time costs, at least and at most.

    Threads that stop together lose that share. They stop a few ms apart, though, and wait for each
    other meanwhile, at the quota's expense. Measured, two threads: with quotas of 1 and 1.5 cores
    they ran for 0.53 and 0.76 of the time and lost 69 and 26 %, powers of 1.8 and 1.1. Many more
    threads than the quota has cores burn it by waiting for each other: far worse was reported.
    """
    ran_ratio = 1 - stopped_ratio
    most_ratio = float(1 - ran_ratio**MAX_EXPONENT)
    if quota is not None and threads >= CROWD_RATIO * quota:
        most_ratio = max(most_ratio, 1 - 1 / MAX_SLOWDOWN)
    return 1 - ran_ratio, most_ratio


def _remedy(case: Case, quota: float | None) -> str:
    remedy = (
        "Raise or remove the limit (docker --cpus, Kubernetes limits.cpu, systemd CPUQuota, "
        "cgroup cpu.max)"
    )
    if quota is None:
        return f"{remedy}."
    if not computes_on_cpu(case):  # fewer threads leave the one that drives the GPU no more time
        return f"{remedy}."
    return f"{remedy}, or {in_words(case.server.kind, recommended_threads(case) or 1)}."
