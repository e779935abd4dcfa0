"""What the last request of each setup was held against, for workers that judge short ones.

The relaying processes have no samples, no engine's facts and no history. With these of the last
request they can judge the next one of its setup, where that takes no samples.
"""

import time
from collections.abc import Mapping
from dataclasses import replace

from slowtok.detectors.case.case import Case, History, Phases, Timeline, Tokens
from slowtok.detectors.expectation.envelope import context_of
from slowtok.proxy.history.keys import octave_of
from slowtok.proxy.runtime.bounded_map import BoundedMap

MAX_SETUPS = 256
REFRESH_S = 1.0  # a setup's facts are looked at again so often, at most. Heuristic

SetupKey = tuple[str, str, str]
"""The name of the engine, the model, and the octave of the context."""

_NO_TIMES = Timeline(request_id="", path="", stream=False, started_unix_s=0.0, accepted_at_s=0.0)
_NO_PHASES = Phases(source="estimate", total_s=0.0)


def setup_key(engine_name: str, model: str | None, tokens: Tokens) -> SetupKey:
    """Return the key of the setup that a request belongs to."""
    return engine_name, model or "", octave_of(context_of(tokens))


class SetupLog:
    """Keeps the facts of the newest setups, numbered as they change."""

    def __init__(self) -> None:
        self._known: BoundedMap[SetupKey, tuple[int, Case]] = BoundedMap(MAX_SETUPS)
        self._looked_at_s: BoundedMap[SetupKey, float] = BoundedMap(MAX_SETUPS)
        self.number = 0  # of the last change

    def note(self, engine_name: str, case: Case) -> None:
        """Take note of what a finished request was held against.

        Nothing is kept of engines whose replies alone do not tell all: what is behind llama-swap
        may have had to load its model, and what Ollama tells is corrected by what else is seen.
        """
        server, line, now_s = case.server, case.timeline, time.monotonic()
        if server.through is not None or server.kind == "ollama":
            return
        key = setup_key(engine_name, line.model, line.tokens)
        if now_s - self._looked_at_s.get(key, -REFRESH_S) < REFRESH_S:
            return
        self._looked_at_s[key] = now_s
        facts, before = _facts_of(case), self._known.get(key)
        if before is None or before[1] != facts:
            self.number += 1
            self._known[key] = (self.number, facts)

    def since(self, number: int) -> Mapping[SetupKey, Case]:
        """Return the facts that changed after a number."""
        return {key: facts for key, (last, facts) in self._known.items() if last > number}


def _facts_of(case: Case) -> Case:
    """Return what of a case holds for other requests of its setup, too."""
    history = case.history
    return Case(
        timeline=_NO_TIMES,
        phases=_NO_PHASES,
        server=replace(case.server, uptime_s=None, slept=None),
        model=case.model,
        device=case.device,
        baseline=case.baseline,
        history=History(
            other_version=history.other_version,
            other_version_decode_tps=history.other_version_decode_tps,
            other_version_count=history.other_version_count,
        ),
    )
