"""What it costs that the server's threads waited for a core: what was counted, and what follows.

Strategy: the share of the time that threads waited is lost at least, as a team that meets at
barriers moves on only with all of its threads; how much more is a range, of which the value that
is nearest to what happened counts.
"""

from dataclasses import replace

from slowtok.detectors.case import Case, Phase
from slowtok.detectors.excess import within
from slowtok.detectors.finding import need
from slowtok.detectors.machine import HostSample
from slowtok.detectors.window import RunQueue, computes_on_cpu, mean, run_queue, run_queue_of

MIN_PROVEN_RATIO = 0.10
"""Of a phase; what was counted of it below that, other things may have hidden. No published
source."""

REGAIN_EXPONENT = 0.7
"""Measured: with two threads, r of 0.66, 0.50 and 0.33 made decode 3.0, 6.4 and 19.6 times slower
(r to the power of 2.7); with one thread, r of 0.68 made it 1.4 times slower (power of 0.9). Threads
that meet again wait for the others' time slices too. More than two threads were not measured."""


def queue_in(case: Case, phase: Phase) -> RunQueue:
    """Return the run queue of a phase; what was stolen counts where CPU threads compute alone."""
    queue = run_queue(case, phase)
    return queue if computes_on_cpu(case) else replace(queue, stolen_ratio=0.0)


def cost_of(case: Case, phase: Phase, queue: RunQueue) -> tuple[float, float]:
    """Estimate what the waits cost, from the share r of the time that a thread had its core.

    Prefill works long between barriers and loses at least 1 - r. Decode does too; at most its n
    threads run together for r to the power of n, as if their waits were independent, and somewhat
    less (two threads came near that; what more of them lose was not measured).

    Returned with what was counted of it, which is zero where no team of threads computes.
    """
    duration_s = need(
        case.phases.decode_s if phase == "decode" else case.phases.prefill_s, f"{phase} time"
    )
    proof_s = duration_s * queue.proven_ratio if computes_on_cpu(case) else 0.0
    proof_s = proof_s if proof_s >= MIN_PROVEN_RATIO * duration_s else 0.0
    bound_s = duration_s * min(queue.lost_cores, 1.0)
    least_s = min(duration_s * queue.lost_ratio, bound_s)
    if phase == "prefill":
        return max(least_s, proof_s), proof_s
    # Sample by sample: others that took the cores for a part of the time cost only that part.
    samples = [s for s in case.host_during(phase) if _is_whole(s)]
    most_ratio = mean(samples, lambda s: _most_ratio(_with_steal(run_queue_of([s]), queue)))
    most_s = min(duration_s * (_most_ratio(queue) if most_ratio is None else most_ratio), bound_s)
    least_s = max(min(least_s, most_s), proof_s)
    return within(case, least_s, max(most_s, proof_s)), proof_s


def _with_steal(queue: RunQueue, whole: RunQueue) -> RunQueue:
    return queue if whole.stolen_ratio else replace(queue, stolen_ratio=0.0)


def _most_ratio(queue: RunQueue) -> float:
    threads = max(queue.wanted_cores, 1.0)
    exponent = threads + REGAIN_EXPONENT * min(threads - 1, 1)
    return float(1 - (1 - queue.lost_ratio) ** exponent)


def _is_whole(sample: HostSample) -> bool:
    """Say whether a sample has all that the run queue needs; many threads are read at 1 Hz only."""
    needed = (sample.server_cpu_cores, sample.server_run_delay_cores, sample.others_cpu_cores)
    return None not in needed
