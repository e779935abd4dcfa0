"""The past of one engine, for the case of the request that comes now.

Loads and verdicts are of this run of the proxy; rates and best readings outlive it
(`LearnedStore`).
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slowtok.detectors.analysis.measured_loss import was_throttled
from slowtok.detectors.analysis.phase_loss import is_error
from slowtok.detectors.case.case import Case, History
from slowtok.detectors.case.finding import Diagnosis
from slowtok.detectors.case.machine import GpuSample
from slowtok.proxy.history.baselines import NO_EARLIER, Baselines
from slowtok.proxy.history.keys import model_of, octave_of
from slowtok.proxy.history.learned_store import LearnedStore
from slowtok.proxy.history.loads import Loads
from slowtok.proxy.history.peak_readings import Best, seen_in
from slowtok.proxy.runtime.bounded_map import BoundedMap

RECENT = 5  # judged requests
RECENT_S = 6 * 3600.0  # heuristic: what was so this morning may be over
MAX_CONFIGURATIONS = 256
NO_HISTORY = History()
_NO_BEST = Best(gpu="", day=0)

_Configuration = tuple[object, ...]

MAX_PROCESSES = 64

_Process = tuple[object, ...]


class _Judged(NamedTuple):
    at_s: float
    causes: tuple[str, ...]


class EngineHistory:
    """Remembers finished requests, and gives each new one its history."""

    def __init__(self, kept: LearnedStore, baselines: Baselines) -> None:
        self._kept = kept
        self._baselines = baselines
        self._loads = Loads()
        self._served = Served()
        self._judged: BoundedMap[_Configuration, deque[_Judged]] = BoundedMap(MAX_CONFIGURATIONS)

    def of(self, case: Case, idle: Sequence[GpuSample] = ()) -> History:
        """Return what went before; for a case that has its expectation and its samples.

        `idle` are samples of all GPUs from before the request, from `since_s` on. Called once for
        each request, before it is judged: a load that the case shows is remembered here.
        """
        best = self._kept.bests.of(case) or _NO_BEST
        earlier = self._baselines.earlier(case)
        recent = self._recent(case) if self._judged else ()
        loads = self._loads.of(case, idle) if case.server.local is not False else ()
        served = self._served.before(case)
        if not (recent or loads or served) and best is _NO_BEST and earlier is NO_EARLIER:
            return NO_HISTORY
        return History(
            loads=loads,
            best_sm_clock_mhz=best.sm_clock_mhz,
            best_memory_clock_mhz=best.memory_clock_mhz,
            best_power_w=best.power_w,
            judged_recently=len(recent),
            causes_recently=tuple([cause for judged in recent for cause in judged.causes]),
            best_decode_tps=earlier.best_decode_tps,
            best_prefill_tps=earlier.best_prefill_tps,
            week_ago_decode_tps=earlier.week_ago_decode_tps,
            other_version=earlier.other_version,
            other_version_decode_tps=earlier.other_version_decode_tps,
            other_version_count=earlier.other_version_count,
            served_before=None if served is None else served.requests,
            served_alike=None if served is None else served.alike,
        )

    def since_s(self, case: Case) -> float:
        """Return from when on `of` wants idle samples, on the case's clock."""
        return self._loads.since_s(case)

    def note(self, case: Case, diagnosis: Diagnosis) -> None:
        """Remember a request that was judged."""
        self._served.note(case)
        # a GPU that was always held back shows no best, and one that was hot or braked neither
        if diagnosis.verdict == "normal" and case.gpu and not was_throttled(case):
            for best in seen_in(case):
                self._kept.add_best(best)
        if diagnosis.verdict == "unknown":
            return
        named = diagnosis.findings.items()
        causes = tuple([cause for cause, finding in named if not finding.informational])
        judged = _Judged(case.timeline.accepted_at_s, causes)
        key = _configuration(case)
        recent = self._judged.get(key) or deque(maxlen=RECENT)
        recent.appendleft(judged)
        self._judged[key] = recent

    def _recent(self, case: Case) -> list[_Judged]:
        """Return the newest judged requests of this configuration, the newest first."""
        oldest_s = case.timeline.accepted_at_s - RECENT_S
        found = self._judged.get(_configuration(case), ())
        return [judged for judged in found if judged.at_s >= oldest_s]


def _configuration(case: Case) -> _Configuration:
    """Return what lasting causes come with: an engine that was started otherwise begins anew."""
    server = case.server
    return (
        server.url or server.name,
        server.pid,
        model_of(case),
        server.context_tokens,
        server.gpu_layers,
    )


class ServedBefore(NamedTuple):
    """How many requests a process has served, and how many of them with a prompt as long."""

    requests: int
    alike: int


@dataclass(slots=True)
class _ProcessLife:
    """One process's life: what it served, and when it was last seen to."""

    at_s: float
    by_octave: Counter[str] = field(default_factory=Counter)


class Served:
    """Counts by process and by the length of the prompt that was computed."""

    def __init__(self) -> None:
        self._lives: BoundedMap[_Process, _ProcessLife] = BoundedMap(MAX_PROCESSES)

    def before(self, case: Case) -> ServedBefore | None:
        """Return what the process of a case had served; None of one never seen at work."""
        life = self._life(case)
        if life is None:
            return None
        alike = life.by_octave[octave_of(case.timeline.tokens.processed)]
        return ServedBefore(sum(life.by_octave.values()), alike)

    def note(self, case: Case) -> None:
        """Count a request whose first token came."""
        if is_error(case) or case.timeline.tokens.completion is None:
            return
        life = self._life(case) or _ProcessLife(case.timeline.accepted_at_s)
        life.at_s = case.timeline.accepted_at_s
        life.by_octave[octave_of(case.timeline.tokens.processed)] += 1
        self._lives[_process(case)] = life

    def _life(self, case: Case) -> _ProcessLife | None:
        """Return a process's life; None where it was found anew since it was last seen at work."""
        life, uptime_s = self._lives.get(_process(case)), case.server.uptime_s
        if life is None or uptime_s is None or case.server.pid is not None:
            return life
        return life if case.timeline.accepted_at_s - life.at_s < uptime_s else None


def _process(case: Case) -> _Process:
    server = case.server
    return server.url, server.pid, server.started_unix_s, server.version, model_of(case)
