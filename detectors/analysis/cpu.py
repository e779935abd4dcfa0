"""The CPU beside an engine: how many threads to ask for, and which other programs used it.

One thread for each physical core that computes at full speed and that the engine may use. Threads
meet at barriers many times per token, so one on an efficiency core, or one that waits for a core,
holds up all of them.

Sources: ggml-org/llama.cpp#842, #767 (8 performance and 8 or 16 efficiency cores: slower with all
of them than with the performance cores alone), #20020 (two threads for each core: 2.5 tokens/s
where 9 are possible).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from slowtok.detectors.analysis.host_window import mean, others_cores
from slowtok.detectors.analysis.placement.remedies import steps
from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.finding import Evidence, need
from slowtok.detectors.case.machine import CpuUser, DeviceFacts

LEAST_CORES = 0.1
"""Heuristic. Less is a desktop's background noise."""

MAX_NAMED = 3


def physical_cores(device: DeviceFacts) -> int | None:
    """Return the cores that compute at full speed; all physical ones where they are alike."""
    return device.cpu_performance_cores or device.cpu_physical_cores


def worth_threads(
    device: DeviceFacts, *, allowed_cores: float | None, quota_cores: float | None
) -> int | None:
    """Return the number of threads to ask for, from 1; None where no core is known.

    `allowed_cores` are those that the engine may run on, `quota_cores` what its cgroup may use.
    """
    limits = (physical_cores(device), allowed_cores, quota_cores)
    known = [limit for limit in limits if limit]
    if not known:
        return device.cpu_logical_cores
    return max(math.floor(min(known)), 1)


def recommended_threads(case: Case) -> int | None:
    """Return the number of threads to ask for on the machine of a case."""
    return worth_threads(
        case.device,
        allowed_cores=mean(case.host, lambda s: s.server_allowed_cores),
        quota_cores=mean(case.host, lambda s: s.server_quota_cores),
    )


def usable_cores(case: Case, physical: int | None) -> float:
    """Return the cores that the engine could use in decode, of so many physical ones."""
    samples = case.host_during("decode")
    limits = (
        logical_cores(case),
        physical,
        mean(samples, lambda s: s.server_quota_cores),
    )
    return min(limit for limit in limits if limit is not None)


def logical_cores(case: Case) -> float:
    """Return the hardware threads that the engine could run on in decode.

    Raises:
        Missing: nothing tells.
    """
    allowed = mean(case.host_during("decode"), lambda s: s.server_allowed_cores)
    return need(allowed or case.device.cpu_logical_cores, "number of cores the server may use")


def in_words(kind: str, threads: int) -> str:
    """Return how an engine is told its number of threads, as the end of a sentence."""
    plural = "s" if threads > 1 else ""
    return {
        "llama-server": f"start llama-server with --threads {threads}",
        "ollama": f"set num_thread to {threads} (PARAMETER in the Modelfile, or in options)",
        "vllm": f"set VLLM_CPU_OMP_THREADS_BIND to {threads} core{plural}",
        "lm-studio": f"set CPU threads to {threads} in the model's load settings in LM Studio",
    }.get(kind, f"give the engine {threads} CPU thread{plural}")


def threads_option(kind: str) -> str:
    """Return what this engine calls its number of threads."""
    return {"ollama": "num_thread", "lm-studio": "CPU threads"}.get(kind, "--threads")


def ask_for(case: Case) -> str:
    """Return the remedy that names the number of threads, as a sentence."""
    return steps(in_words(case.server.kind, recommended_threads(case) or 1))


def cpu_users(case: Case, phase: Phase) -> tuple[CpuUser, ...]:
    """Return the largest in a phase, else in the request; empty where nobody looked.

    A look tells of the second before it, too, when the engine may have left the cores to others: no
    program is said to have used more than all of them did in the phase.
    """
    samples = case.host_during(phase)
    looks = [s.others for s in samples if s.others is not None]
    looks = looks or [s.others for s in case.host if s.others is not None]
    most = others_cores(samples)
    users = _mean(looks)
    if most is None:
        return users
    return tuple(replace(user, cpu_cores=min(user.cpu_cores, most)) for user in users)


def _mean(looks: Sequence[Iterable[CpuUser]]) -> tuple[CpuUser, ...]:
    """Return each program's mean over all looks; one that is not in a look used little then."""
    newest: dict[str, CpuUser] = {}
    cores: dict[str, float] = {}
    for user in (user for look in looks for user in look):
        newest[user.name] = user
        cores[user.name] = cores.get(user.name, 0.0) + user.cpu_cores / len(looks)
    users = [replace(newest[name], cpu_cores=cores[name]) for name in newest]
    named = [user for user in users if user.cpu_cores >= LEAST_CORES]
    return tuple(sorted(named, key=lambda user: -user.cpu_cores)[:MAX_NAMED])


def programs(users: Iterable[CpuUser]) -> str:
    """Return who they are and what they used, in words."""
    return ", ".join(f"{user.name} ({_which(user)})" for user in users)


def used_by(users: Iterable[CpuUser]) -> tuple[Evidence, ...]:
    """Return what each of them used."""
    return tuple(
        Evidence(name=f"CPU used by {user.name}", value=user.cpu_cores, unit="cores")
        for user in users
    )


def stop_them(users: Sequence[CpuUser]) -> str:
    """Return what to do about them, without a full stop; by name where they are known."""
    if len(users) == 1 and users[0].processes == 1:
        whose, pid = "its", str(users[0].pid)
    else:
        whose, pid = "their", "PID"
    who = programs(users) or "the other CPU-heavy processes"
    return f"Stop {who} or lower {whose} priority (renice -n 19 -p {pid})"


def _which(user: CpuUser) -> str:
    if user.processes == 1:
        return f"process {user.pid}, {user.cpu_cores:.1f} cores"
    return f"{user.cpu_cores:.1f} cores in {user.processes} processes, the busiest is {user.pid}"
