"""One run as a JSON object: where its time went, what was lost, what to fix first. Pure.

Short steps count together: a step of two seconds is too short to be judged alone, ten of them are
not. Times in milliseconds; the parts of `split_ms` add up to `wall_ms`. Each
moment is counted once: requests at the same time share it equally, and one at which there is none
is the client's own: its tools, its thinking.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from slowtok.detectors.analysis.phase_loss import MIN_WAIT_RATIO, MIN_WAIT_S
from slowtok.proxy.runs.turn import CACHE_CAUSE, CACHE_CAUSES, Turn
from slowtok.proxy.runtime.utc import utc_text

MIN_POOLED_S = 2.0
MIN_POOLED_TOKENS = 64
"""Decode of short steps is judged together from so much on. Heuristic: as much as lets a
single request be judged."""

MIN_NAMED_S = 0.05  # a smaller loss is not worth a line
UNEXPLAINED = "unexplained"
PREFILL, DECODE = "prefill", "decode"
_HINTS = {
    CACHE_CAUSE: (
        "Keep the beginning of the prompt identical from call to call: move whatever changes to "
        "its end."
    ),
}
_WHAT = {
    "client": "was spent outside the model (by tools and the client itself)",
    "decode": "went into generating tokens",
    "prefill": "went into reading the prompt",
    "prefill_again": "went into reading known parts of the prompt again",
    "queue": "was spent waiting for the engine",
    "load": "went into loading the model",
    "delivery": "was spent waiting for the client to take the reply",
    "slowtok": "was taken by slowtok itself",
}
_HAS_ALL = frozenset({"continued", "changed", "branched"})
_READS = {"tool": "tool output", "user": "user messages", "assistant": "earlier answers"}

Json = dict[str, Any]

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
    tokens were made (the end of a stream, or all of a whole reply without timings), else time that
    the engine was waited for: queue.
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
        rest = "decode" if turn.parts_s.get("decode") or turn.tokens.get("completion") else "queue"
        took_s = [(p, s + (turn.total_s - told_s if p == rest else 0.0)) for p, s in took_s]
    factor = turn.total_s / told_s if told_s > turn.total_s else 1.0
    found, at_s = [], turn.started_s
    for part, seconds in took_s:
        if seconds * factor > LEAST_S:
            found.append(Segment(part, at_s, at_s + seconds * factor))
            at_s += seconds * factor
    return found


def split_run_time(turns: Sequence[Turn]) -> Split:
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


class _Sums(defaultdict[str, float]):
    """Sums by name."""

    def __init__(self) -> None:
        super().__init__(float)

    def ranked(self) -> list[tuple[str, float]]:
        """Return them, the largest first."""
        return sorted(self.items(), key=lambda item: -item[1])

    def most(self) -> tuple[str | None, float]:
        """Return the largest; no name where there is none."""
        return next(iter(self.ranked()), (None, 0.0))


def account(turns: Sequence[Turn]) -> Json:
    """Return the whole account of one run; `turns` are its requests, at least one."""
    ordered = _with_known(sorted(turns, key=lambda turn: (turn.started_s, turn.turn)))
    whole = split_run_time(ordered)
    lost_s = _lost_s(ordered)
    won = won_s(ordered, whole, lost_s)
    first = _fix_first(ordered, whole, lost_s, won)
    run = _head(ordered, whole, lost_s)
    run["won_ms"] = {cause: _ms(s) for cause, s in won.ranked() if s >= MIN_NAMED_S}
    if first is not None:
        run["fix_first"] = first
    run["went_into"] = _went_into(ordered, whole)
    run["turns"] = [_turn(turn, whole) for turn in ordered]
    return run


def summary(turns: Sequence[Turn]) -> Json:
    """Return the same without its turns, for a list of runs."""
    found = account(turns)
    del found["turns"]
    return found


def _with_known(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with what was read again counted in tokens, where their parents tell it.

    A record knows characters only. A prompt that has all of its parent's, and of which something
    was computed again, would have had as many tokens from the cache as its parent had in all.
    """
    by_number = {turn.turn: turn for turn in turns}
    found = []
    for turn in turns:
        parent = by_number.get(turn.parent or 0)
        prompt, cached = turn.tokens.get("prompt", 0), turn.tokens.get("cached", 0)
        known = 0 if parent is None else parent.tokens.get("prompt", 0)
        if turn.again_s and turn.how in _HAS_ALL and known <= prompt and prompt > cached:
            again_s = turn.parts_s["prefill"] * max(known - cached, 0) / (prompt - cached)
            found.append(replace(turn, again_s=max(again_s, turn.again_s)))
        else:
            found.append(turn)
    return found


def _head(turns: Sequence[Turn], whole: Split, lost_s: Mapping[str, Mapping[str, float]]) -> Json:
    first = turns[0]
    by_cause = _by_cause(lost_s)
    head: Json = {
        "id": first.run,
        "by": first.by,
        "started": utc_text(whole.started_s),
        "wall_ms": _ms(whole.wall_s),
        "requests": len(turns),
        "verdict": _verdict(turns, by_cause),
        "split_ms": {part: _ms(s) for part, s in whole.parts_s.items()},
        "lost_ms": {cause: _ms(s) for cause, s in by_cause.ranked() if s >= MIN_NAMED_S},
        "tokens": _tokens(turns),
        "models": sorted({turn.model for turn in turns if turn.model}),
        "clients": sorted({turn.client for turn in turns if turn.client}),
        "live": any(turn.live for turn in turns),
    }
    if name := next((turn.name for turn in turns if turn.name), None):
        head["name"] = name
    return head


def _lost_s(turns: Sequence[Turn]) -> dict[str, dict[str, float]]:
    """Return what each request lost, by cause: what its findings say, and what only the run tells.

    That is known tokens that were read again where no finding names them, and the decode of
    short steps that together are slow.
    """
    found = {turn.request: dict(turn.lost_s) for turn in turns}
    cache_cause = _costliest(turns, lambda turn, cause: cause in CACHE_CAUSES) or CACHE_CAUSE
    for turn in turns:
        named = next((c for c in turn.lost_s if c in CACHE_CAUSES), cache_cause)
        if turn.again_s > found[turn.request].get(named, 0.0):
            found[turn.request][named] = turn.again_s
    decode_cause = _costliest(turns, lambda turn, cause: turn.phases.get(cause) == DECODE)
    for turn in _short_and_slow(turns):
        usual_s = turn.usual_decode_s[0] if turn.usual_decode_s else 0.0
        if (excess_s := turn.parts_s[DECODE] - usual_s) > 0:
            found[turn.request][decode_cause or UNEXPLAINED] = excess_s
    return found


def _costliest(turns: Iterable[Turn], is_meant: Callable[[Turn, str], bool]) -> str | None:
    """Return the cause that most was lost to of those that are meant.

    Nothing is guessed: a cause that no request of the run was charged with is not named.
    """
    lost_s = _Sums()
    for turn in turns:
        for cause, s in turn.lost_s.items():
            if is_meant(turn, cause):
                lost_s[cause] += s
    return lost_s.most()[0]


def _short_and_slow(turns: Sequence[Turn]) -> list[Turn]:
    """Return the steps too short to be judged alone whose decode together is slow."""
    short = [
        turn
        for turn in turns
        if turn.verdict == "unknown" and turn.usual_decode_s and turn.parts_s.get(DECODE)
    ]
    took_s = sum(turn.parts_s[DECODE] for turn in short)
    most_s = sum(turn.usual_decode_s[1] for turn in short if turn.usual_decode_s)
    tokens = sum(turn.tokens.get("completion", 0) for turn in short)
    if took_s < MIN_POOLED_S or tokens < MIN_POOLED_TOKENS or took_s <= most_s:
        return []
    return short


def _verdict(turns: Sequence[Turn], by_cause: "_Sums") -> str:
    """Return the verdict on all of it: by what was lost, else by what was judged.

    A run is slow when it lost so much of the time that it spent at the engine as makes the queue of
    a single request slow.
    """
    lost_s = sum(by_cause.values())
    if lost_s >= max(MIN_WAIT_S, MIN_WAIT_RATIO * sum(turn.total_s for turn in turns)):
        return "slow"
    judged = [turn for turn in turns if turn.verdict in ("normal", "slow")]
    nameless_s = sum(turn.total_s for turn in judged if turn.verdict == "slow" and not turn.lost_s)
    if nameless_s > 0.5 * sum(turn.total_s for turn in judged):
        return "slow"  # and nobody can say why
    return "normal" if judged else "unknown"


def _by_cause(lost_s: Mapping[str, Mapping[str, float]]) -> "_Sums":
    found = _Sums()
    for by_cause in lost_s.values():
        for cause, s in by_cause.items():
            found[cause] += s
    return found


def won_s(turns: Iterable[Turn], whole: Split, lost_s: Mapping[str, Mapping[str, float]]) -> _Sums:
    """Return what wall time each cause would give back.

    What a request lost while others ran beside it gives back its share of that moment.
    """
    found = _Sums()
    for turn in turns:
        for cause, s in lost_s[turn.request].items():
            found[cause] += s * whole.shares[turn.request]
    found.pop(UNEXPLAINED, None)
    return found


def _fix_first(
    turns: Sequence[Turn], whole: Split, lost_s: Mapping[str, Mapping[str, float]], won: _Sums
) -> Json | None:
    """Return the cause that gives most wall time back, and what the run would then take."""
    best, s = won.most()
    if best is None or s < MIN_NAMED_S:
        return None
    hints = _Sums()
    for turn in turns:
        hints[turn.remedies.get(best) or _HINTS.get(best, "")] += lost_s[turn.request].get(best, 0)
    return {
        "cause": best,
        "hint": hints.most()[0] or "",
        "lost_ms": _ms(sum(by_cause.get(best, 0.0) for by_cause in lost_s.values())),
        "requests": sum(best in by_cause for by_cause in lost_s.values()),
        "wall_then_ms": _ms(max(whole.wall_s - s, 0.0)),
    }


def _went_into(turns: Sequence[Turn], whole: Split) -> str:
    """Return in words what most of the time went into, whatever was lost."""
    part, s = max(whole.parts_s.items(), key=lambda item: item[1])
    what = _WHAT[part]
    if part == PREFILL and (of := _read_most(turns)):
        what = f"went into reading {of}"
    return f"{s:.1f} of {whole.wall_s:.1f} s {what}"


def _read_most(turns: Sequence[Turn]) -> str | None:
    """Return what most of the new prompt was, where it is most."""
    read_s = _Sums()
    for turn in turns:
        needed_s = turn.parts_s.get(PREFILL, 0.0) - turn.again_s
        for role, share in turn.reads.items():
            read_s[role] += needed_s * share
    most, s = read_s.most()
    return _READS.get(most or "") if s > 0.5 * sum(read_s.values()) else None


def _tokens(turns: Iterable[Turn]) -> dict[str, int]:
    names = ("prompt", "cached", "recomputed", "completion")
    return {name: sum(turn.tokens.get(name, 0) for turn in turns) for name in names}


def _turn(turn: Turn, whole: Split) -> Json:
    told: Json = {
        "turn": turn.turn,
        "parent": turn.parent,
        "request": turn.request,
        "started_ms": _ms(turn.started_s - whole.started_s),
        "total_ms": _ms(turn.total_s),
        "client_ms": None if turn.client_s is None else _ms(turn.client_s),
        "split_ms": {
            part: _ms(s) for part in PARTS if (s := _parts_s(turn).get(part, 0.0)) >= 0.0005
        },
        "tokens": dict(turn.tokens),
        "verdict": turn.verdict,
        "causes": list(turn.causes),
        "ended": turn.ended,
        "model": turn.model,
        "live": turn.live or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _parts_s(turn: Turn) -> dict[str, float]:
    return {s.part: s.end_s - s.begin_s for s in segments(turn)}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
