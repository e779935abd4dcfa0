"""Other processes took the cores that the server's threads were ready to run on.

Signal:
The server's threads were runnable but without a core for at least 5 % of the time that they
wanted to run, and other processes used the cores meanwhile. It starts and stops with those
processes, in the middle of a request too. llama.cpp's threads meet at a barrier many times per
token, and a token moves on only while all of them run together: on two cores with two threads,
one busy loop beside the server made decode 3 to 7 times slower, four made it 17 to 22 times slower.

Not to be confused with:
- `threads-misconfigured`: the threads wait for each other, other processes are quiet.
- `cpu-quota`: the kernel's throttling counter moves; the machine has idle cores.
- `batch-shared`: another request of the same server.
- A GPU server's thread at 100 % of one core that does not wait: CUDA's busy-wait, harmless.

Remedy:
Stop the other programs, which are named where slowtok sees them, move them to other cores, or
lower their priority. If they must stay,
give the server as many threads as there are cores left: with one busy loop on two cores, one
thread decoded a token in 7.4 ms where two threads took 20 to 41 ms.

Sources:
- Linux Documentation/scheduler/sched-stats.rst (run delay: time spent waiting on a run queue).
- Measured with llama-server (SmolLM2-135M, Q4_1) on a two-core virtual machine.
"""

import math

from slowtok.detectors.case import Case, Phase
from slowtok.detectors.cpu_users import LEAST_CORES, cpu_users, stop_them, used_by
from slowtok.detectors.excess import within
from slowtok.detectors.finding import Evidence, Finding, need
from slowtok.detectors.machine import CpuUser, HostSample
from slowtok.detectors.window import RunQueue, mean, run_queue, run_queue_of, runs_on_cpu

TITLE = "Other processes took the CPU"

MIN_TAKEN_RATIO = 0.05
"""No published source. Healthy runs waited 0.6 to 1.2 %; at 5 % two threads lose some 10 %."""

MIN_TAKEN_CORES = 0.02
"""No published source. A server that hardly uses the CPU waits for it a good part of nothing: on a
busy machine one that used 0.002 cores waited for 16 % of the time that it wanted to run."""

MIN_OTHERS_CORES = LEAST_CORES

REGAIN_EXPONENT = 0.7
"""Measured: with two threads, r of 0.66, 0.50 and 0.33 made decode 3.0, 6.4 and 19.6 times slower
(r to the power of 2.7); with one thread, r of 0.68 made it 1.4 times slower (power of 0.9). Threads
that meet again wait for the others' time slices too. More than two threads were not measured."""

CPU_CONFIDENCE = 0.9
GPU_CONFIDENCE = 0.6
"""Beside a GPU, part of the host's work hides behind the kernels, so the loss is less certain."""


def detect(case: Case) -> Finding | None:
    """Fire when others took cores from the server, in the phase where that cost most."""
    phases: tuple[Phase, ...] = ("decode", "prefill")
    if not case.host_during("prefill"):  # shorter than a sample: nothing to say about it
        phases = ("decode",)
    queues = {phase: run_queue(case, phase) for phase in phases}
    contended = [phase for phase in phases if _contended(queues[phase])]
    if not contended:
        return None
    phase = max(contended, key=lambda phase: _lost_s(case, phase, queues[phase]))
    return _finding(case, phase, queues[phase])


def _contended(queue: RunQueue) -> bool:
    return (
        queue.taken_ratio >= MIN_TAKEN_RATIO
        and queue.taken_cores >= MIN_TAKEN_CORES
        and queue.others_cores >= MIN_OTHERS_CORES
    )


def _lost_s(case: Case, phase: Phase, queue: RunQueue) -> float:
    """Estimate what the waits cost, from the share r of the time that a thread had its core.

    Prefill works long between barriers and loses at least 1 - r. Decode does too; at most its n
    threads run together for r to the power of n, as if their waits were independent, and somewhat
    less (two threads came near that; what more of them lose was not measured).
    """
    duration_s = need(
        case.phases.decode_s if phase == "decode" else case.phases.prefill_s, f"{phase} time"
    )
    bound_s = duration_s * min(queue.taken_cores, 1.0)
    if phase == "prefill":
        return min(duration_s * queue.taken_ratio, bound_s)
    # Sample by sample: others that took the cores for a part of the time cost only that part.
    samples = [s for s in case.host_during(phase) if _is_whole(s)]
    most_ratio = mean(samples, lambda s: _lost_ratio(run_queue_of([s])))
    most_s = min(duration_s * (_lost_ratio(queue) if most_ratio is None else most_ratio), bound_s)
    return within(case, min(duration_s * queue.taken_ratio, most_s), most_s)


def _lost_ratio(queue: RunQueue) -> float:
    threads = max(queue.wanted_cores, 1.0)
    exponent = threads + REGAIN_EXPONENT * min(threads - 1, 1)
    return float(1 - (1 - queue.taken_ratio) ** exponent)


def _is_whole(sample: HostSample) -> bool:
    """Say whether a sample has all that the run queue needs; many threads are read at 1 Hz only."""
    needed = (sample.server_cpu_cores, sample.server_run_delay_cores, sample.others_cpu_cores)
    return None not in needed


def _finding(case: Case, phase: Phase, queue: RunQueue) -> Finding:
    cores = _cores(case, phase)
    lost_s = _lost_s(case, phase, queue)
    of_cores = "cores" if cores is None else f"of {cores:.0f} cores"
    users = cpu_users(case, phase)
    return Finding(
        phase=phase,
        confidence=CPU_CONFIDENCE if runs_on_cpu(case) else GPU_CONFIDENCE,
        lost_s=lost_s,
        summary=(
            f"The server's threads were ready to run but waited {100 * queue.taken_ratio:.0f} % "
            f"of the time because other processes used {queue.others_cores:.1f} {of_cores}; "
            f"{phase} lost about {{lost}}."
        ),
        remedy=_remedy(case, queue, cores, users),
        evidence=(
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
            *used_by(users),
        ),
    )


def _cores(case: Case, phase: Phase) -> float | None:
    measured = mean(case.host_during(phase), lambda s: s.cpu_cores)
    return case.device.cpu_logical_cores if measured is None else measured


def _remedy(case: Case, queue: RunQueue, cores: float | None, users: tuple[CpuUser, ...]) -> str:
    remedy = stop_them(users)
    left = None if cores is None else max(math.floor(cores - queue.others_cores + 0.25), 1)
    if left is None or not runs_on_cpu(case):
        return f"{remedy}."
    setting = {
        "llama-server": f"start llama-server with --threads {left}",
        "ollama": f"set num_thread to {left} (PARAMETER in the Modelfile, or in options)",
    }.get(case.server.kind, f"give the engine {left} CPU thread{'s' if left > 1 else ''}")
    return f"{remedy}; if they must stay, {setting}, which leaves them their cores."
