"""Host samples of one phase: means, the run queue, and whether the CPU decodes.

Invariant: a reading that no sample holds is None here too; nothing is filled in.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.engine import SPINNING_PROCESSES
from slowtok.detectors.case.finding import Missing, need
from slowtok.detectors.case.machine import GpuSample, HostSample
from slowtok.detectors.case.memo import cached_for_last_case, cached_for_last_case_by_args

# How fast a decode has read the RAM: a lower bound of the RAM's bandwidth.
#
# Each token of a decode on the CPU needs the active weights and the cache read once. Whatever else
# went on, the RAM gave as much as that.

CACHED_BYTES = 512 * 1024 * 1024
"""No last-level cache in common use holds a model of this size."""

MIN_TOKENS = 16  # fewer are few reads, and the first may come from a cache. Heuristic


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


def others_cores(samples: Iterable[HostSample]) -> float | None:
    """Return the cores that other processes kept busy on average, None if that is not known.

    The machine's CPU time and the server's are read at two moments: what that adds to one sample
    it takes from another, so what is below zero counts, too.
    """
    told = [s for s in samples if s.others_cpu_cores is not None]
    busy, mine = mean(told, lambda s: s.cpu_busy_cores), mean(told, lambda s: s.server_cpu_cores)
    if busy is None or mine is None:
        return None
    return max(busy - mine - (mean(told, lambda s: s.cpu_steal_cores or 0.0) or 0.0), 0.0)


def seconds(samples: Iterable[HostSample]) -> float:
    """Return how many seconds the samples cover together."""
    return sum([s.span_s for s in samples])


CPU_DECODES_CORES = 1.5
"""An engine that wants more of the CPU than this computes on it: waiting for a GPU keeps one thread
busy at most (vllm-project/vllm#3384). The half is heuristic."""

GPU_DECODES_CORES = 0.5
"""Decoding on a CPU keeps at least one thread busy. The half is heuristic."""


@cached_for_last_case
def runs_on_cpu(case: Case) -> bool:
    """Return True if the CPU decodes: the engine was told so, or uses no GPU that is seen here.

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


@cached_for_last_case
def computes_on_cpu(case: Case) -> bool:
    """Return True if a team of CPU threads computes a part of each token, or all of it.

    Beside a GPU they are the threads of layers or experts in RAM; waiting for the GPU keeps one
    thread busy at most, save in engines whose processes spin. Where the engine was told to keep a
    part in RAM, threads that wait for a core count too.
    """
    if runs_on_cpu(case):
        return True
    server, layers = case.server, case.model.layers
    if server.local is False or server.kind in SPINNING_PROCESSES:
        return False
    asked = server.gpu_layers
    is_told = bool(server.cpu_moe_layers) or (
        asked is not None and layers is not None and 0 <= asked < layers
    )
    wanted = _wanted_cores if is_told else _used_cores
    cores = mean(case.host_during("decode"), wanted)
    return cores is not None and cores > CPU_DECODES_CORES


def _used_cores(sample: HostSample) -> float | None:
    return sample.server_cpu_cores


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
    1.34 cores used by others. The hypervisor's part is apart: a core that it takes looks to the
    machine as if it ran, and `stolen_ratio` is its share of the time that all cores wanted to run.
    `worst_ratio` is the wait of the one busy thread that waited longest: a team of threads that
    meet at barriers moves on no sooner.
    """

    server_cores: float
    waiting_cores: float
    others_cores: float
    throttled_cores: float
    stolen_ratio: float = 0.0
    worst_ratio: float = 0.0

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

    @property
    def lost_ratio(self) -> float:
        """Share of the wanted time that went to other processes or to the hypervisor."""
        return 1 - (1 - self.taken_ratio) * (1 - self.stolen_ratio)

    @property
    def lost_cores(self) -> float:
        """The same as threads that stood still, on average."""
        return self.taken_cores + self.stolen_ratio * self.server_cores / (1 - self.stolen_ratio)

    @property
    def proven_ratio(self) -> float:
        """Share of the time that others and the hypervisor held up a team of threads, at least."""
        waited = self.taken_cores / self.waiting_cores if self.waiting_cores else 0.0
        taken_ratio = max(self.taken_ratio, self.worst_ratio * waited)
        return 1 - (1 - min(taken_ratio, 1.0)) * (1 - self.stolen_ratio)

    @property
    def proven_own_ratio(self) -> float:
        """Share of the time that the server's threads held each other up, at least."""
        waited = self.own_cores / self.waiting_cores if self.waiting_cores else 0.0
        return max(self.own_ratio, self.worst_ratio * waited)

    def _ratio(self, cores: float) -> float:
        return cores / self.wanted_cores if self.wanted_cores else 0.0


@cached_for_last_case_by_args
def run_queue(case: Case, phase: Phase) -> RunQueue:
    """Return the run queue of a phase.

    Raises:
        Missing: the server's CPU time, its wait for a core or the machine's load is not known.
    """
    return run_queue_of(need(case.host_during(phase) or None, f"host samples during {phase}"))


MAX_STOLEN_RATIO = 0.99
"""Keeps 1 - stolen_ratio above zero: what ran had a part of the time."""


def run_queue_of(samples: Sequence[HostSample]) -> RunQueue:
    """Return the run queue of some samples; raises as `run_queue` does."""
    return RunQueue(
        server_cores=need(mean(samples, lambda s: s.server_cpu_cores), "CPU time of the server"),
        waiting_cores=need(
            mean(samples, lambda s: s.server_run_delay_cores),
            "time the server's threads waited for a core",
        ),
        others_cores=need(others_cores(samples), "CPU time of the other processes"),
        throttled_cores=mean(samples, lambda s: s.server_throttled_s_per_s) or 0.0,
        stolen_ratio=min(mean(samples, lambda s: s.stolen_ratio) or 0.0, MAX_STOLEN_RATIO),
        worst_ratio=mean(samples, lambda s: s.server_worst_delay_ratio) or 0.0,
    )


def run_queue_in(sample: HostSample, *, steals: bool) -> RunQueue | None:
    """Return the run queue of one sample, None where it lacks a part; `steals` counts steal."""
    server, waiting = sample.server_cpu_cores, sample.server_run_delay_cores
    others, stolen = sample.others_cpu_cores, sample.stolen_ratio
    if server is None or waiting is None or others is None:
        return None
    return RunQueue(
        server_cores=server,
        waiting_cores=waiting,
        others_cores=others,
        throttled_cores=sample.server_throttled_s_per_s or 0.0,
        stolen_ratio=min(stolen, MAX_STOLEN_RATIO) if steals and stolen else 0.0,
        worst_ratio=sample.server_worst_delay_ratio or 0.0,
    )


MAX_UNSEEN_RATIO = 0.5
"""Of a phase before or after its samples; with more, what they lack is no proof. No source."""


def need_samples(case: Case, phase: Phase) -> tuple[HostSample, ...]:
    """Return the host samples of a phase, or stop the detector where most of it has none.

    Raises:
        Missing: there are none, or they cover less than half of the phase.
    """
    samples, window = case.host_during(phase), case.window(phase)
    fact = f"host samples during {phase}"
    if not samples:
        raise Missing(fact)
    if window is not None:
        seen_s = samples[-1].at_s - (samples[0].at_s - samples[0].span_s)
        if seen_s < MAX_UNSEEN_RATIO * (window[1] - window[0]):
            raise Missing(fact)
    return samples


def ram_read_bytes_per_s(case: Case) -> float | None:
    """Return the bytes per second that a decode read from RAM; None where that is not sure.

    Not sure: drafts give several tokens for one read, caches hold small models, and a GPU that is
    not visible here may have read them. Then the CPU does next to nothing.
    """
    rate, weights = case.phases.decode_tps, case.envelope.read_bytes
    if rate is None or weights is None or weights <= CACHED_BYTES or case.server.speculative:
        return None
    if (case.timeline.tokens.completion or 0) < MIN_TOKENS or not runs_on_cpu(case):
        return None
    busy_cores = mean(case.host_during("decode"), lambda s: s.server_cpu_cores)
    if case.server.local is False or (busy_cores or 0.0) <= CPU_DECODES_CORES:
        return None
    return rate * (weights + (case.envelope.kv_bytes or 0.0))
