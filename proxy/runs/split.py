"""Splits the wall time of a run into parts; each moment is counted once. Pure.

Where several requests run at the same time they share the moment equally. Where none does, the
moment is the client's own: its tools, its thinking.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from slowtok.proxy.runs.turn import Turn

PARTS = ("queue", "load", "prefill", "prefill_again", "decode", "delivery", "slowtok", "client")


LEAST_S = 1e-6  # what a clock in seconds since 1970 can tell apart


class Split(NamedTuple):
    """`parts_s` add up to `wall_s`. `shares` has, by request, the share of its time that counts."""

    started_s: float
    wall_s: float
    parts_s: dict[str, float]
    shares: dict[str, float]


class Segment(NamedTuple):
    """One phase of one request, on the clock of the wall."""

    part: str
    begin_s: float
    end_s: float


def segments(turn: Turn) -> list[Segment]:
    """Return a request's phases one after the other; together they are as long as it took.

    What an engine says beyond that is cut in proportion. What nothing explains is decode where
    tokens were made (the end of a stream), else time that the engine was waited for: queue.
    """
    prefill_s = turn.parts_s.get("prefill", 0.0)
    again_s = min(turn.again_s, prefill_s)
    took_s = [
        ("slowtok", turn.slowtok_s),
        ("queue", turn.parts_s.get("queue", 0.0)),
        ("load", turn.parts_s.get("load", 0.0)),
        ("prefill_again", again_s),
        ("prefill", prefill_s - again_s),
        ("decode", turn.parts_s.get("decode", 0.0)),
        ("delivery", turn.parts_s.get("delivery", 0.0)),
    ]
    told_s = sum(s for _, s in took_s)
    if told_s < turn.total_s:
        rest = "decode" if turn.parts_s.get("decode") else "queue"
        took_s = [(p, s + (turn.total_s - told_s if p == rest else 0.0)) for p, s in took_s]
    factor = turn.total_s / told_s if told_s > turn.total_s else 1.0
    found, at_s = [], turn.started_s
    for part, seconds in took_s:
        if seconds * factor > LEAST_S:
            found.append(Segment(part, at_s, at_s + seconds * factor))
            at_s += seconds * factor
    return found


def split(turns: Sequence[Turn]) -> Split:
    """Split the wall time from the first request's begin to the last one's end."""
    began_s = min(turn.started_s for turn in turns)
    ended_s = max(turn.ends_s for turn in turns)
    parts_s: defaultdict[str, float] = defaultdict(float)
    counted_s: defaultdict[str, float] = defaultdict(float)
    for begin_s, end_s, active in _moments(turns):
        length_s = end_s - begin_s
        for request, part in active.items():
            parts_s[part] += length_s / len(active)
            counted_s[request] += length_s / len(active)
    wall_s = ended_s - began_s
    parts_s["client"] = max(wall_s - sum(parts_s.values()), 0.0)
    shares = {  # seconds since 1970 hold a quarter of a microsecond: of a tiny turn that is much
        t.request: min(counted_s[t.request] / t.total_s, 1.0) if t.total_s else 0.0 for t in turns
    }
    return Split(began_s, wall_s, {p: parts_s[p] for p in PARTS}, shares)


def _moments(turns: Sequence[Turn]) -> Iterator[tuple[float, float, dict[str, str]]]:
    """Yield the stretches between two changes, with the phase that each request is in."""
    changes: list[tuple[float, int, str, str]] = []
    for turn in turns:
        for part, begin_s, end_s in segments(turn):
            changes.append((begin_s, 1, turn.request, part))
            changes.append((end_s, 0, turn.request, part))
    changes.sort()
    active: dict[str, str] = {}
    last_s = changes[0][0] if changes else 0.0
    for at_s, begins, request, part in changes:
        if at_s > last_s:
            yield last_s, at_s, active
            last_s = at_s
        if begins:
            active[request] = part
        elif active.get(request) == part:
            del active[request]
