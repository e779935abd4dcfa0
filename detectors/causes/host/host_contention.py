"""Other processes took the cores that the server's threads were ready to run on.

Signal:
The server's threads were runnable but without a core for at least 5 % of the time that they wanted
to run, and other processes used the cores meanwhile. Or the hypervisor of a virtual machine took at
least 5 % of the time that its cores wanted to run (steal). The loss starts and stops with the other
processes, also in the middle of a request. llama.cpp's threads meet at a barrier many times per
token, and a token moves on only while all of them run together: on two cores with two threads, one
busy loop next to the server made decode 3 to 7 times slower, and four made it 17 to 22 times
slower. So the time that one thread waited was lost for all of them.

Not to be confused with:
- `threads-misconfigured`: the threads wait for each other, and other processes are quiet.
- `cpu-quota`: the kernel's throttling counter moves, and the machine has idle cores.
- `batch-shared`: the other work is another request of the same server.
- A thread of a GPU server that runs at 100 % of one core and waits for none is CUDA's busy-wait,
  which is harmless.
- Steal costs nothing while the GPU is busy all the time: the GPU does not stop for it.
- Other processes on idle cores make nobody wait.

Remedy:
Stop the other programs, which slowtok names where it sees them, move them to other cores, or lower
their priority. If they must stay, give the server as many threads as there are cores left: with one
busy loop on two cores, one thread decoded a token in 7.4 ms where two took 20 to 41 ms. A guest
cannot take back the time that the hypervisor takes: use another kind of instance, with cores of its
own, or with CPU credits left.

Sources:
- Linux Documentation/scheduler/sched-stats.rst (run delay: time spent waiting on a run queue).
- proc_stat(5) (steal: time spent in other operating systems when running virtualized).
- Measured with llama-server (SmolLM2-135M, Q4_1) on a two-core virtual machine.
"""

import math
from dataclasses import replace

from slowtok.detectors.analysis.cpu import (
    LEAST_CORES,
    cpu_users,
    in_words,
    recommended_threads,
    stop_them,
    used_by,
)
from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu
from slowtok.detectors.analysis.gpu.gpu_window import busy_together, by_gpu
from slowtok.detectors.analysis.host_window import (
    RunQueue,
    computes_on_cpu,
    gpu_mean,
    mean,
    need_samples,
    run_queue,
    run_queue_in,
    runs_on_cpu,
)
from slowtok.detectors.analysis.phase_loss import nearest_loss_s
from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.finding import Evidence, Finding, Traits, need
from slowtok.detectors.case.machine import CpuUser, HostSample

TITLE = "Other processes took the CPU"
TRAITS = Traits(requires="host-samples")

MIN_TAKEN_RATIO = 0.05
"""Heuristic. Healthy runs waited 0.6 to 1.2 %; at 5 % two threads lose some 10 %."""

MIN_TAKEN_CORES = 0.02
"""Heuristic. A server that hardly uses the CPU waits for it a good part of nothing: on a
busy machine one that used 0.002 cores waited for 16 % of the time that it wanted to run."""

MIN_OTHERS_CORES = LEAST_CORES

MIN_PREFILL_S = 2.0  # a shorter one may have no sample, and is not judged either

CPU_CONFIDENCE = 0.9
GPU_CONFIDENCE = 0.6
"""Beside a GPU, part of the host's work hides behind the kernels, so the loss is less certain."""

# What it costs that the server's threads waited for a core: what was counted, and what follows.
#
# Strategy: the share of the time that threads waited is lost at least, as a team that meets at
# barriers moves on only with all of its threads; how much more is a range, of which the value that
# is nearest to what happened counts.

MIN_PROVEN_RATIO = 0.10
"""Of a phase; what was counted of it below that, other things may have hidden. Heuristic."""

REGAIN_EXPONENT = 0.7
"""Measured: with two threads, r of 0.66, 0.50 and 0.33 made decode 3.0, 6.4 and 19.6 times slower
(r to the power of 2.7); with one thread, r of 0.68 made it 1.4 times slower (power of 0.9). Threads
that meet again wait for the others' time slices too. More than two threads were not measured."""

# What the hypervisor of a virtual machine took of its CPU: how it is told, and what helps.

MIN_STOLEN_RATIO = 0.05
"""Of the time that cores wanted to run; the usual mark for a neighbour that is felt. Heuristic."""

MIN_IDLE_RATIO = 0.15
"""Of a decode, from where on a GPU waits: healthy ones are 90 to 99 % busy. Heuristic."""

OWN_CORES = (
    "The host of this virtual machine gives its cores to others. If it is a burstable instance, "
    "its CPU credits are used up: wait for them, or turn unlimited credits on; otherwise take an "
    "instance with dedicated cores, or another host. Nothing inside the virtual machine can get "
    "the cores back."
)


def detect(case: Case) -> Finding | None:
    """Fire when others took cores from the server, in the phase where that cost most."""
    phases: tuple[Phase, ...] = ("decode", "prefill")
    if not case.host_during("prefill"):  # shorter than a sample: nothing to say about it
        phases = ("decode",)
    queues = {phase: _queue_in(case, phase) for phase in phases}
    contended = [
        phase
        for phase, queue in queues.items()
        if _is_taken(queue) or queue.stolen_ratio >= MIN_STOLEN_RATIO
    ]
    if not contended:
        need_samples(case, "decode")
        if (case.phases.prefill_s or 0.0) >= MIN_PREFILL_S:
            need_samples(case, "prefill")
        return None
    costs = {phase: _cost_of(case, phase, queues[phase]) for phase in contended}
    phase = max(contended, key=lambda phase: costs[phase][0])
    return _finding(case, phase, queues[phase], *costs[phase])


def _is_taken(queue: RunQueue) -> bool:
    return (
        queue.taken_ratio >= MIN_TAKEN_RATIO
        and queue.taken_cores >= MIN_TAKEN_CORES
        and queue.others_cores >= MIN_OTHERS_CORES
    )


def _finding(case: Case, phase: Phase, queue: RunQueue, lost_s: float, proof_s: float) -> Finding:
    is_steal = queue.stolen_ratio >= max(queue.taken_ratio, MIN_STOLEN_RATIO)
    taken = () if is_steal and not _is_taken(queue) else _evidence_of_others(case, phase, queue)
    stolen = _evidence_of_steal(case, phase, queue)
    return Finding(
        phase=phase,
        confidence=CPU_CONFIDENCE if computes_on_cpu(case) else GPU_CONFIDENCE,
        lost_s=lost_s,
        proof_s=proof_s,
        summary=_said_of_steal(phase, queue) if is_steal else _said_of_others(case, phase, queue),
        remedy=OWN_CORES if is_steal else _remedy(case, phase, queue),
        evidence=(*stolen, *taken) if is_steal else (*taken, *stolen),
    )


def _said_of_others(case: Case, phase: Phase, queue: RunQueue) -> str:
    cores = _cores(case, phase)
    of_cores = "cores" if cores is None else f"of {cores:.0f} cores"
    return (
        f"The server's threads were ready to run but waited {100 * queue.taken_ratio:.0f} % "
        f"of the time because other processes used {queue.others_cores:.1f} {of_cores}; "
        f"{phase} lost about {{lost}}."
    )


def _evidence_of_others(case: Case, phase: Phase, queue: RunQueue) -> tuple[Evidence, ...]:
    return (
        Evidence(
            name="wait for a core",
            value=100 * queue.taken_ratio,
            unit="%",
            limit=100 * MIN_TAKEN_RATIO,
        ),
        Evidence(
            name="CPU used by others",
            value=queue.others_cores,
            unit="cores",
            limit=MIN_OTHERS_CORES,
        ),
        Evidence(name="CPU used by the server", value=queue.server_cores, unit="cores"),
        *used_by(cpu_users(case, phase)),
    )


def _cores(case: Case, phase: Phase) -> float | None:
    measured = mean(case.host_during(phase), lambda s: s.cpu_cores)
    return case.device.cpu_logical_cores if measured is None else measured


def _remedy(case: Case, phase: Phase, queue: RunQueue) -> str:
    users: tuple[CpuUser, ...] = cpu_users(case, phase)
    remedy, cores = stop_them(users), _cores(case, phase)
    worth = recommended_threads(case)
    if cores is None or worth is None or not runs_on_cpu(case):
        return f"{remedy}."
    left = max(math.floor(cores - queue.others_cores + 0.25), 1)
    threads = case.server.threads
    if threads is not None and threads > worth:
        # too many even without the others: the number that another remedy names, too
        return f"{remedy}; and {in_words(case.server.kind, worth)}."
    if left >= (threads or worth):
        return f"{remedy}."
    setting = in_words(case.server.kind, left)
    return f"{remedy}; if they must stay, {setting}, which leaves them their cores."


def _queue_in(case: Case, phase: Phase) -> RunQueue:
    """Return the run queue of a phase; what was stolen counts where it held the work up.

    That is where a team of CPU threads computes, and where a GPU stood idle for as long.
    """
    queue = run_queue(case, phase)
    if computes_on_cpu(case) or _gpu_idled(case, phase, queue.stolen_ratio):
        return queue
    return replace(queue, stolen_ratio=0.0)


def _gpu_idled(case: Case, phase: Phase, stolen_ratio: float) -> bool:
    if phase != "decode" or not decodes_on_gpu(case):
        return False
    busy_ratio = busy_together(by_gpu(case.gpu_during(phase)).values(), case.server, gpu_mean)
    return busy_ratio is not None and 1 - busy_ratio >= max(stolen_ratio, MIN_IDLE_RATIO)


def _cost_of(case: Case, phase: Phase, queue: RunQueue) -> tuple[float, float]:
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
    steals = queue.stolen_ratio > 0
    most_ratio = mean(case.host_during(phase), lambda s: _most_ratio_in(s, steals=steals))
    most_s = min(duration_s * (_most_ratio(queue) if most_ratio is None else most_ratio), bound_s)
    least_s = max(min(least_s, most_s), proof_s)
    return nearest_loss_s(case, least_s, max(most_s, proof_s)), proof_s


def _most_ratio(queue: RunQueue) -> float:
    threads = max(queue.wanted_cores, 1.0)
    exponent = threads + REGAIN_EXPONENT * min(threads - 1, 1)
    return float(1 - (1 - queue.lost_ratio) ** exponent)


def _most_ratio_in(sample: HostSample, *, steals: bool) -> float | None:
    """Return the same for one sample; None where it lacks something, as threads read at 1 Hz."""
    queue = run_queue_in(sample, steals=steals)
    return None if queue is None else _most_ratio(queue)


def _said_of_steal(phase: Phase, queue: RunQueue) -> str:
    """Return what was taken and what it cost, as a finding's summary."""
    return (
        f"The hypervisor withheld the CPU from this virtual machine for "
        f"{100 * queue.stolen_ratio:.0f} % of the time that its cores wanted to run; {phase} lost "
        f"about {{lost}}."
    )


def _evidence_of_steal(case: Case, phase: Phase, queue: RunQueue) -> tuple[Evidence, ...]:
    """Return the numbers; none where too little was taken to be felt."""
    if queue.stolen_ratio < MIN_STOLEN_RATIO:
        return ()
    stolen_cores = mean(case.host_during(phase), lambda s: s.cpu_steal_cores) or 0.0
    return (
        Evidence(
            name="taken by the hypervisor (steal)",
            value=100 * queue.stolen_ratio,
            unit="%",
            limit=100 * MIN_STOLEN_RATIO,
        ),
        Evidence(name="cores taken by the hypervisor", value=stolen_cores, unit="cores"),
    )
