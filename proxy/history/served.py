"""Shapes of requests that each engine process has served: the first of a shape may wait for code.

Nothing of it outlives this process of slowtok, or the engine's.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from slowtok.detectors.analysis.phase_loss import is_error
from slowtok.detectors.case.case import Case
from slowtok.proxy.history.keys import model_of, octave_of
from slowtok.proxy.runtime.bounded_map import BoundedMap

MAX_PROCESSES = 64

_Process = tuple[object, ...]


class Before(NamedTuple):
    """How many requests a process has served, and how many of them with a prompt as long."""

    requests: int
    alike: int


@dataclass(slots=True)
class _Life:
    """One process's life: what it served, and when it was last seen to."""

    at_s: float
    by_octave: Counter[str] = field(default_factory=Counter)


class Served:
    """Counts by process and by the length of the prompt that was computed."""

    def __init__(self) -> None:
        self._lives: BoundedMap[_Process, _Life] = BoundedMap(MAX_PROCESSES)

    def before(self, case: Case) -> Before | None:
        """Return what the process of a case had served; None of one never seen at work."""
        life = self._life(case)
        if life is None:
            return None
        alike = life.by_octave[octave_of(case.timeline.tokens.processed)]
        return Before(sum(life.by_octave.values()), alike)

    def note(self, case: Case) -> None:
        """Count a request whose first token came."""
        if is_error(case) or case.timeline.tokens.completion is None:
            return
        life = self._life(case) or _Life(case.timeline.accepted_at_s)
        life.at_s = case.timeline.accepted_at_s
        life.by_octave[octave_of(case.timeline.tokens.processed)] += 1
        self._lives[_process(case)] = life

    def _life(self, case: Case) -> _Life | None:
        """Return a process's life; None where it was found anew since it was last seen at work."""
        life, uptime_s = self._lives.get(_process(case)), case.server.uptime_s
        if life is None or uptime_s is None or case.server.pid is not None:
            return life
        return life if case.timeline.accepted_at_s - life.at_s < uptime_s else None


def _process(case: Case) -> _Process:
    server = case.server
    return server.url, server.pid, server.started_unix_s, server.version, model_of(case)
