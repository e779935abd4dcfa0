"""The register of runs: which run a request belongs to, its turn and parent; bounded, in memory.

Ids that clients sent are kept as keyed hashes only. The key lies in the state directory, so that a
run that a client names goes on under the same id after a restart; what is known of its turns then
is what the log tells.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from slowtok.proxy.http.run_clues import By, Clues, shown_name
from slowtok.proxy.runs.chain import Chain, Continuation, EarlierRequest, How, Messages
from slowtok.proxy.runtime.bounded_map import BoundedMap
from slowtok.proxy.runtime.state_dir import replace_file

KEEP_RUNS = 1024
KEEP_ALIASES = 8192  # foreign ids, as hashes, that lead to a run
KEEP_AGENTS = 256  # of one run
KEEP_OPEN = 4096  # requests that are on their way, or ended just now
MAX_IDLE_S = 3600.0
"""After so long the same name begins another run: an agent that is started every night has the same
one each time. Heuristic."""

KEY_BYTES = 32
_NAMED: frozenset[By] = frozenset({"header", "url"})

KEY_FILE = "runs.key"


class RunPosition(NamedTuple):
    """Where a request belongs: its run, what named that, and its turn there.

    `parent` is the turn that it goes on from, or that started its agent; `how` says what its prompt
    has of that one, where the prompt told it.
    """

    id: str
    by: By
    turn: int
    parent: int | None = None
    how: How | None = None
    name: str | None = None


@dataclass(slots=True, eq=False)
class _Turn:
    """One request of a run."""

    number: int
    agent: str
    began_s: float
    ended_s: float | None = None


@dataclass(slots=True, eq=False)
class _Run:
    """One run. `last_of` has the last turns of each agent that have ended."""

    id: str
    by: By
    name: str | None
    seen_s: float
    turns: int = 0
    last_ended: _Turn | None = None
    last_of: BoundedMap[str, _Turn] = field(default_factory=partial(BoundedMap, KEEP_AGENTS))


@dataclass(slots=True, eq=False)
class _Open:
    """A request that was placed: its run and turn, the one it goes on from, and its link."""

    run: _Run
    turn: _Turn
    by: By
    trace: str | None
    parent: _Turn | None = None
    found: Continuation | None = None
    link: EarlierRequest | None = None

    @property
    def place(self) -> RunPosition:
        """Return it as others see it."""
        parent = None if self.parent is None else self.parent.number
        how = None if self.found is None else self.found.how
        return RunPosition(self.run.id, self.by, self.turn.number, parent, how, self.run.name)


class RunRegister:
    """Places requests in runs. Times are on one clock, that of the caller."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._runs: BoundedMap[str, _Run] = BoundedMap(KEEP_RUNS)
        self._aliases: BoundedMap[str, str] = BoundedMap(
            KEEP_ALIASES
        )  # hash of a foreign id -> run
        self._open: BoundedMap[str, _Open] = BoundedMap(KEEP_OPEN)
        self._traces: BoundedMap[str, int] = BoundedMap(KEEP_ALIASES)  # requests of each trace
        self._chain = Chain()

    def place(
        self, request: str, clues: Clues | None, at_s: float, unix_s: float
    ) -> RunPosition | None:
        """Place a request by what it says itself; None where only its prompt can tell.

        A trace waits for the prompt, too: some clients begin a new one with each request.
        """
        if (known := self._open.get(request)) is not None:
            return known.place
        if clues is None or not clues.ids or clues.ids[0][0] == "trace":
            return None
        run = self._by_ids(clues, at_s, unix_s)
        return self._enter(request, run, clues.ids[0][0], clues, None, at_s).place

    def place_by_prompt(
        self,
        request: str,
        clues: Clues | None,
        prompt: Messages | None,
        at_s: float,
        unix_s: float,
    ) -> RunPosition:
        """Place a request whose prompt is known, or that has none that could tell.

        One that was placed already learns which turn it goes on from.
        """
        clues = clues or Clues()
        found = None if prompt is None else self._chain.find(prompt, at_s)
        known = self._open.get(request)
        if known is None:
            run, by = self._run_of(request, clues, found, at_s, unix_s)
            known = self._enter(request, run, by, clues, found, at_s)
        elif found is not None:
            known.parent = self._parent(known.run, known.turn, clues, found)
        if prompt is not None and known.link is None:
            if found is not None:
                found.link.continued = True
                known.found = found
            known.link = EarlierRequest(request, at_s, prompt, seen_s=at_s)
            self._chain.add(known.link)
        return known.place

    def end(
        self, request: str, at_s: float, *, failed: bool = False, response: str | None = None
    ) -> None:
        """A request is over. `response` is the id under which a next one may name its reply."""
        known = self._open.get(request)
        if known is None:
            return
        if known.turn.ended_s is None:
            known.turn.ended_s = at_s
            known.run.seen_s = max(known.run.seen_s, at_s)
            known.run.last_ended = known.turn
        known.run.last_of[known.turn.agent] = known.turn
        if known.link is not None:
            known.link.ended, known.link.failed, known.link.seen_s = True, failed, at_s
        if response:
            self._alias(self._hash("response", response), known.run)

    def earlier_messages(self, request: str) -> Messages | None:
        """Return the messages of the request that this one goes on from, by its prompt."""
        known = self._open.get(request)
        return None if known is None or known.found is None else known.found.link.prompt

    def since_previous_s(self, request: str) -> float | None:
        """Return how long the run's client took between the turn before and this one."""
        known = self._open.get(request)
        if known is None or known.parent is None or known.parent.ended_s is None:
            return None
        return max(known.turn.began_s - known.parent.ended_s, 0.0)

    def restore(
        self, records: Iterable[Mapping[str, Any]], now_s: float, now_unix_s: float
    ) -> None:
        """Take up the runs that the log tells of, the oldest first."""
        for record in records:
            told = record.get("run")
            if not isinstance(told, dict) or not isinstance(told.get("id"), str):
                continue
            try:
                began_unix_s = datetime.fromisoformat(record["ts"]).timestamp()
                total_s = float(record["timing"]["total_ms"]) / 1000
                number, by = int(told["turn"]), told["by"]
            except (KeyError, TypeError, ValueError):
                continue
            age_s = now_unix_s - began_unix_s
            turn = _Turn(number, "", now_s - age_s, now_s - age_s + total_s)
            name = told.get("name")
            run = self._runs.get(told["id"]) or self._new(told["id"], by, name, turn.began_s)
            run.turns = max(run.turns, number)
            run.seen_s = max(run.seen_s, turn.ended_s or 0.0)
            run.last_ended = turn

    def _run_of(
        self, request: str, clues: Clues, found: Continuation | None, at_s: float, unix_s: float
    ) -> tuple[_Run, By]:
        """Return the run of a request that was not placed yet, and what told it."""
        if clues.ids and not (clues.ids[0][0] == "trace" and self._is_per_request(clues, found)):
            return self._by_ids(clues, at_s, unix_s), clues.ids[0][0]
        if found is not None and (earlier := self._open.get(found.link.request)) is not None:
            return earlier.run, "prompt"
        return self._new(self._hash("prompt", request), "prompt", None, at_s), "prompt"

    def _is_per_request(self, clues: Clues, found: Continuation | None) -> bool:
        """Return True if a client seems to begin a trace with each request: then it says nothing.

        The request goes on from one that was alone in its trace, and is the first in its own.
        """
        trace = _trace_of(clues)
        earlier = None if found is None else self._open.get(found.link.request)
        if trace is None or earlier is None or earlier.trace in (None, trace):
            return False
        return not self._traces.get(trace) and self._traces.get(earlier.trace or "") == 1

    def _by_ids(self, clues: Clues, at_s: float, unix_s: float) -> _Run:
        """Return the run that a request's ids name: a known one, or a new one."""
        by, said = clues.ids[0]
        name = self._hash("response" if by == "previous_response_id" else by, said)
        roots = [name]
        if by == "session":
            roots += self._hash_each("session", clues.parent_session)
            roots += self._hash_each("agent", clues.parent_agent)
        run = next((run for root in roots if (run := self._known(root, at_s))), None)
        if run is None:
            root = roots[1] if clues.parent_session and by == "session" else name
            is_taken = root in self._runs  # the same name began a run that is long over
            run_id = self._hash(root, str(round(unix_s))) if is_taken else root
            shown = (shown_name(said) or None) if by in _NAMED else None
            run = self._new(run_id, by, shown, at_s)
            self._alias(root, run)
        self._alias(name, run)
        if by == "session" and clues.agent:
            self._alias(self._hash("agent", clues.agent), run)
        return run

    def _known(self, name: str, at_s: float) -> _Run | None:
        run = self._runs.get(self._aliases.get(name, name))
        return None if run is None or at_s - run.seen_s > MAX_IDLE_S else run

    def _new(self, run_id: str, by: By, name: str | None, at_s: float) -> _Run:
        run = _Run(run_id, by, name, at_s)
        self._runs[run_id] = run
        return run

    def _alias(self, name: str, run: _Run) -> None:
        self._aliases[name] = run.id

    def _enter(
        self, request: str, run: _Run, by: By, clues: Clues, found: Continuation | None, at_s: float
    ) -> _Open:
        run.turns += 1
        run.seen_s = max(run.seen_s, at_s)
        self._runs[run.id] = run
        turn = _Turn(run.turns, self._agent(clues), at_s)
        trace = _trace_of(clues)
        if trace is not None:
            self._traces[trace] = self._traces.get(trace, 0) + 1
        known = _Open(run, turn, by, trace, self._parent(run, turn, clues, found))
        self._open[request] = known
        return known

    def _parent(
        self, run: _Run, turn: _Turn, clues: Clues, found: Continuation | None
    ) -> _Turn | None:
        """Return the turn that this one goes on from: by the prompt, its agent, or the time."""
        earlier = None if found is None else self._open.get(found.link.request)
        if found is not None and earlier is not None and earlier.run is run:
            return earlier.parent if found.how == "repeated" else earlier.turn
        before = run.last_of.get(turn.agent)
        if before is None and (clues.agent or clues.parent_session):
            before = run.last_of.get(self._starter(clues))
        before = before or run.last_ended
        return None if before is None or before.began_s > turn.began_s else before

    def _agent(self, clues: Clues) -> str:
        """Return which agent of its run a request is from; empty for the one that began it."""
        if clues.agent:
            return self._hash("agent", clues.agent)
        if clues.parent_session and clues.ids:
            return self._hash(*clues.ids[0])
        return ""

    def _starter(self, clues: Clues) -> str:
        return self._hash("agent", clues.parent_agent) if clues.parent_agent else ""

    def _hash_each(self, kind: str, said: str | None) -> list[str]:
        return [self._hash(kind, said)] if said else []

    def _hash(self, kind: str, said: str) -> str:
        told = f"{kind}\0{said}".encode("utf-8", "surrogateescape")
        return hashlib.blake2b(told, digest_size=8, key=self._key).hexdigest()


def _trace_of(clues: Clues) -> str | None:
    return next((said for by, said in clues.ids if by == "trace"), None)


def run_key(state_dir: Path) -> bytes:
    """Return the key of a state directory, drawn at the first call.

    One that cannot be kept holds for this process alone: runs begin anew after a restart.
    """
    path = state_dir / KEY_FILE
    with contextlib.suppress(OSError):
        kept = path.read_bytes()
        if len(kept) == KEY_BYTES:
            return kept
    drawn = os.urandom(KEY_BYTES)
    with contextlib.suppress(OSError):
        replace_file(path, drawn)
    return drawn
