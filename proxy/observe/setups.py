"""Facts per setup (engine, model, context size) by which workers judge short requests.

A worker process has no samples, no facts about the engine and no history. The observing process
therefore keeps these of the latest request of each setup and sends them to the worker, which can
then judge the next short request of that setup alone.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from slowtok.detectors.case.case import (
    Baseline,
    Case,
    Envelope,
    History,
    Phases,
    Timeline,
    Tokens,
)
from slowtok.detectors.expectation.envelope import context_of
from slowtok.proxy.history.keys import octave_of
from slowtok.proxy.runtime.bounded_map import BoundedMap

MAX_SETUPS = 256
REFRESH_S = 1.0  # least interval between two updates of a setup's facts. Heuristic

SetupKey = tuple[str, str, str]
"""Engine name, model, and octave of the context length (a power of two)."""

_NO_TIMES = Timeline(request_id="", path="", stream=False, started_unix_s=0.0, accepted_at_s=0.0)
_NO_PHASES = Phases(source="estimate", total_s=0.0)


def setup_key(engine_name: str, model: str | None, tokens: Tokens) -> SetupKey:
    """Return the key of a request's setup."""
    return engine_name, model or "", octave_of(context_of(tokens))


class SetupLog:
    """Keeps the facts of the newest setups; each change gets the next number."""

    def __init__(self) -> None:
        self._facts: BoundedMap[SetupKey, tuple[int, Case | None]] = BoundedMap(MAX_SETUPS)
        self._refreshed_at_s: BoundedMap[SetupKey, float] = BoundedMap(MAX_SETUPS)
        self.number = 0  # of the last change

    def note(
        self,
        engine_name: str,
        case: Case,
        baseline: Callable[[Case], Baseline],
        *,
        has_taught: bool = False,
    ) -> None:
        """Store the facts of a finished request, if they have changed.

        `baseline` gives the setup's baseline with this request in it; where it has taught
        something, it is asked for at once.

        Not for engines whose replies alone do not suffice: an engine behind llama-swap may have had
        to load its model, and Ollama's reports need corrections from samples.
        """
        server, timeline, now_s = case.server, case.timeline, time.monotonic()
        if server.through is not None or server.kind == "ollama":
            return
        key = setup_key(engine_name, timeline.model, timeline.tokens)
        is_fresh = now_s - self._refreshed_at_s.get(key, -REFRESH_S) < REFRESH_S
        if is_fresh and not has_taught:
            return
        self._refreshed_at_s[key] = now_s
        facts = _facts_of(case, baseline(case))
        _, known = self._facts.get(key, (0, None))
        if known is not None and known.model != facts.model:
            self.forget(engine_name)
        if known != facts:
            self._store(key, facts)

    def forget(self, engine_name: str) -> None:
        """Drop the facts of an engine that is another one now, or has another model."""
        for key, (_, facts) in list(self._facts.items()):
            if key[0] == engine_name and facts is not None:
                self._store(key, None)
                self._refreshed_at_s.pop(key, None)

    def _store(self, key: SetupKey, facts: Case | None) -> None:
        self.number += 1
        self._facts[key] = (self.number, facts)

    def since(self, number: int) -> Mapping[SetupKey, Case | None]:
        """Return the facts that changed after the change with that number; None: dropped."""
        return {key: facts for key, (last, facts) in self._facts.items() if last > number}


def _facts_of(case: Case, baseline: Baseline) -> Case:
    """Return the part of a case that also holds for other requests of its setup."""
    history = case.history
    return Case(
        timeline=_NO_TIMES,
        phases=_NO_PHASES,
        server=replace(case.server, uptime_s=None, slept=None),
        model=case.model,
        device=case.device,
        baseline=baseline,
        envelope=Envelope(roofline_tps=case.envelope.roofline_tps),
        history=History(
            other_version=history.other_version,
            other_version_decode_tps=history.other_version_decode_tps,
            other_version_count=history.other_version_count,
        ),
    )
