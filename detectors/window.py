"""Arithmetic on the samples of one phase, shared by detectors.

Invariant: a reading that no sample holds is None here too; nothing is filled in.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slowtok.detectors.case import Case, Phase
from slowtok.detectors.finding import need
from slowtok.detectors.machine import GpuSample, HostSample
from slowtok.detectors.once import once, once_each


def mean(samples: Iterable[HostSample], read: Callable[[HostSample], float | None]) -> float | None:
    """Return the time-weighted mean of the readings that are known, None if there are none."""
    total, total_s = 0.0, 0.0
    for sample in samples:
        value = read(sample)
        if value is not None:
            total += value * sample.span_s
            total_s += sample.span_s
    return total / total_s if total_s else None


def gpu_mean(
    samples: Iterable[GpuSample], read: Callable[[GpuSample], float | None]
) -> float | None:
    """Return the mean of the GPU readings that are known, None if there are none."""
    values = [value for s in samples if (value := read(s)) is not None]
    return sum(values) / len(values) if values else None


def seconds(samples: Iterable[HostSample]) -> float:
    """Return how many seconds the samples cover together."""
    return sum([s.span_s for s in samples])


CPU_DECODES_CORES = 1.5
"""An engine that wants more of the CPU than this computes on it: waiting for a GPU keeps one thread
busy at most (vllm-project/vllm#3384). No published source for the half."""

GPU_DECODES_CORES = 0.5
"""Decoding on a CPU keeps at least one thread busy. No published source for the half."""


@once
def runs_on_cpu(case: Case) -> bool:
    """Say whether the CPU decodes: the engine was told so, or uses no GPU that is seen here.

    A GPU may be there that no library here can see (another maker's, another program's). So what
    the CPU did decides then, before what the engine says: it may speak of a GPU and use none
    (ollama/ollama#8623). Where neither is known, it is the CPU.
    """
    server = case.server
    if server.gpu_layers == 0:
        return True
    if server.local is False or (case.device.gpus and server.gpu_indices != ()):
        return False
    wanted_cores = mean(case.host_during("decode"), _wanted_cores)
    if wanted_cores is None or GPU_DECODES_CORES <= wanted_cores <= CPU_DECODES_CORES:
        return not server.loaded_gpu_bytes
    return wanted_cores > CPU_DECODES_CORES


def _wanted_cores(sample: HostSample) -> float | None:
    """Return the cores that the server's threads used or waited for."""
    if sample.server_cpu_cores is None or sample.server_run_delay_cores is None:
        return sample.server_cpu_cores
    return sample.server_cpu_cores + sample.server_run_delay_cores


def decode_tps(case: Case) -> float:
    """Return the decode rate, or stop the detector."""
    return need(case.phases.decode_tps, "decode rate")


def decode_s(case: Case) -> float:
    """Return the decode time, or stop the detector."""
    return need(case.phases.decode_s, "decode time")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQueue:
    """Who had the cores while the server's threads wanted them, in cores (core-seconds per second).

    A core that others use while a server thread waits is a core that they took from it, so the
    wait that others explain is at most what they used. Measured on two cores with 1, 2 and 4 busy
    loops beside a two-thread llama-server: waits of 0.68, 1.01 and 1.34 cores for 0.66, 1.00 and
    1.34 cores used by others.
    """

    server_cores: float
    waiting_cores: float
    others_cores: float
    throttled_cores: float

    @property
    def wanted_cores(self) -> float:
        """Threads that were running or ready to run, on average."""
        return self.server_cores + self.waiting_cores

    @property
    def taken_cores(self) -> float:
        """Waiting threads whose cores other processes had, on average.

        No more than this share of the time can have been lost to them, however many threads wait
        for the one that waits for its core.
        """
        return min(max(self.waiting_cores - self.throttled_cores, 0.0), self.others_cores)

    @property
    def own_cores(self) -> float:
        """Waiting threads whose cores the server's other threads had, on average."""
        return max(self.waiting_cores - self.others_cores - self.throttled_cores, 0.0)

    @property
    def taken_ratio(self) -> float:
        """Share of the wanted time that went to other processes."""
        return self._ratio(self.taken_cores)

    @property
    def own_ratio(self) -> float:
        """Share of the wanted time that the server's threads took from each other."""
        return self._ratio(self.own_cores)

    def _ratio(self, cores: float) -> float:
        return cores / self.wanted_cores if self.wanted_cores else 0.0


@once_each
def run_queue(case: Case, phase: Phase) -> RunQueue:
    """Return the run queue of a phase.

    Raises:
        Missing: the server's CPU time, its wait for a core or the machine's load is not known.
    """
    return run_queue_of(need(case.host_during(phase) or None, f"host samples during {phase}"))


def run_queue_of(samples: Sequence[HostSample]) -> RunQueue:
    """Return the run queue of some samples; raises as `run_queue` does."""
    return RunQueue(
        server_cores=need(mean(samples, lambda s: s.server_cpu_cores), "CPU time of the server"),
        waiting_cores=need(
            mean(samples, lambda s: s.server_run_delay_cores),
            "time the server's threads waited for a core",
        ),
        others_cores=need(
            mean(samples, lambda s: s.others_cpu_cores), "CPU time of the other processes"
        ),
        throttled_cores=mean(samples, lambda s: s.server_throttled_s_per_s) or 0.0,
    )
