"""Others at an engine while a request waited, while its prompt was read, while it decoded. Pure.

Two witnesses: the proxy's own requests, whose times are known, and the engine's slots or gauges,
which show those that went past the proxy, too.
"""

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from slowtok.detectors.case.case import Concurrency, Neighbours, Phases
from slowtok.proxy.engines.counters.activity import BEGIN_SLACK_S, Scrape
from slowtok.proxy.engines.counters.slots import BusySlots
from slowtok.proxy.observe.occupancy import Occupancy

Window = tuple[float, float]

MIN_LOOKS = 2  # at the engine; fewer say little about a mean

FULL_CACHE_RATIO = 0.95
"""A KV cache so full lets nobody in: in vllm-project/vllm#18115 it breaks down at 91 to 96 %."""


class Look(NamedTuple):
    """What an engine was at, at one moment; None is what it does not tell.

    `working` requests had a slot, or were in the running batch; `waiting` ones had not been let in.
    Of the former `reading` were at their prompts, and `unstarted` had nothing computed yet.
    """

    at_s: float
    working: int
    waiting: int | None = None
    reading: int | None = None
    unstarted: int | None = None
    kv_used_ratio: float | None = None


def of_slots(
    looks: Sequence[BusySlots], begun_s: float | None = None, first_s: float | None = None
) -> list[Look]:
    """Return looks at the slots of a llama-server, for a request that was begun at `begun_s`.

    Whoever was computed before that, or answered before its first token, is another: then so it was
    while its first batch was being read and nothing of it was computed yet.
    """
    begun_s, first_s = begun_s or 0.0, first_s or 0.0
    theirs: set[int] = set()
    for look in looks:
        if look.at_s < max(first_s, begun_s):
            theirs |= look.answering or frozenset()
        if look.at_s < begun_s:
            theirs |= look.reading or frozenset()
    return [_of_slots(look, theirs if look.at_s < begun_s else frozenset()) for look in looks]


def _of_slots(look: BusySlots, theirs: Set[int]) -> Look:
    if look.unstarted is None or look.reading is None:
        return Look(look.at_s, look.busy)
    begun = look.unstarted & theirs
    reading, unstarted = len(look.reading) + len(begun), len(look.unstarted) - len(begun)
    return Look(look.at_s, look.busy, reading=reading, unstarted=unstarted)


def of_gauges(scrapes: Iterable[Scrape]) -> list[Look]:
    """Return looks at the gauges of an engine that has both of them."""
    found = []
    for scrape in scrapes:
        running, waiting = scrape.counters.running, scrape.counters.waiting
        if running is not None and waiting is not None:
            kv_used_ratio = scrape.counters.kv_used_ratio
            at_s = scrape.asked_at_s
            found.append(Look(at_s, round(running), round(waiting), kv_used_ratio=kv_used_ratio))
    return found


def count_neighbours(
    in_flight_at_send: int, phases: Phases, others: Sequence[Occupancy]
) -> Neighbours:
    """Count the other generations that a request met at its engine."""
    from_s, to_s = _decode_window(phases)
    if from_s >= to_s:
        return Neighbours(in_flight_at_send=in_flight_at_send)
    throughout, there, partly_s = 0, 0, 0.0
    begins, ends = [], []
    for _, first_s, end_s, _ in others:
        if end_s <= from_s or first_s >= to_s or first_s >= end_s:
            continue
        if first_s > from_s:
            begin_s = first_s
            begins.append(first_s)
        else:
            there += 1
            if end_s >= to_s:
                throughout += 1
                continue
            begin_s = from_s
        if end_s < to_s:
            ends.append(end_s)
            partly_s += end_s - begin_s
        else:
            partly_s += to_s - begin_s
    return Neighbours(
        in_flight_at_send=in_flight_at_send,
        decode_mean=throughout + partly_s / (to_s - from_s),
        decode_max=_most_at_once(there, begins, ends) if begins else there,
    )


def with_looks(
    guessed: Neighbours, phases: Phases, looks: Sequence[Look], *, slots: int | None, mine: int
) -> Neighbours:
    """Let the engine's own word say how many decoded: it knows, too, what did not come by us.

    Args:
        guessed: the count from the proxy's own requests, some of which may only have waited.
        phases: when the request decoded.
        looks: those at the engine's slots or gauges.
        slots: how many the engine has; a guess beyond the others of them is cut.
        mine: slots that the request itself took (n > 1 takes several).
    """
    from_s, to_s = _decode_window(phases)
    others = [max(look.working - mine, 0) for look in looks if from_s <= look.at_s <= to_s]
    if from_s < to_s and len(others) >= MIN_LOOKS:
        mean = statistics.fmean(others)
        return replace(guessed, decode_mean=mean, decode_max=max(others), counted=True)
    if slots is None:
        return guessed
    most = max(slots - mine, 0)
    if guessed.decode_max <= most and guessed.decode_mean <= most:
        return guessed
    return replace(
        guessed,
        decode_mean=min(guessed.decode_mean, float(most)),
        decode_max=min(guessed.decode_max, most),
    )


def while_waiting(
    window: Window, others: Sequence[Occupancy], looks: Sequence[Look], slots: int | None
) -> Concurrency:
    """Return who was at the engine from a request's sending until its prompt was begun.

    Args:
        window: that time.
        others: the proxy's own requests there.
        looks: those at the engine in that time; of gauges also the last one before it.
        slots: how many requests the engine works on at once.
    """
    rooms = [room for look in looks if (room := _has_room(look, slots)) is not None]
    counts = [count for look in looks if (count := _others_while_waiting(look)) is not None]
    reading = [read for look in looks if (read := _reads_another(look, slots)) is not None]
    reading_s, reading_id = _read_meanwhile(window, others)
    return Concurrency(
        served_first=_served_first(window, others),
        reading_s=reading_s,
        reading_id=reading_id,
        looks=len(rooms),
        full_ratio=1 - statistics.fmean(rooms) if rooms else None,
        others_mean=statistics.fmean(counts) if counts else None,
        others_reading_ratio=statistics.fmean(reading) if reading else None,
    )


def while_read(
    window: Window,
    others: Sequence[Occupancy],
    looks: Sequence[Look],
    *,
    slots: int | None,
    mine: int,
) -> Concurrency:
    """Return whose prompts were read beside a request's own; `mine` are the slots it took itself.

    Of the proxy's requests only where the engine has a slot for each: else they may have waited.
    """
    told = [look for look in looks if look.reading is not None and window[0] <= look.at_s]
    counts = [max(look.working - mine, 0) for look in told]
    reading = [(look.reading or 0) + (look.unstarted or 0) > mine for look in told]
    there = sum(1 for other in others if other.sent_s < window[1] and other.end_s > window[0])
    reading_s, reading_id = 0.0, None
    if slots is not None and there + mine <= slots:
        reading_s, reading_id = _read_meanwhile(window, others)
    return Concurrency(
        reading_s=reading_s,
        reading_id=reading_id,
        others_mean=statistics.fmean(counts) if counts else None,
        others_reading_ratio=statistics.fmean(reading) if reading else None,
    )


def queue_bounds(sent_s: float, first_s: float, looks: Sequence[Look]) -> Window | None:
    """Return the least and the most that a request waited to be let in; None where it did not.

    For an engine that tells no queue of each request, only how many wait. Somebody has to have been
    there before it, and to be there, with one at least that waits, in each look until it was let
    in: who begins to wait later waits behind it. `looks` are those until its first token, with the
    last one before it was sent.
    """
    until_s, most_s = None, first_s
    for look in looks:
        is_before = look.at_s <= sent_s + BEGIN_SLACK_S
        if not (is_before or look.waiting) or not _others_while_waiting(look):
            most_s = look.at_s
            break
        until_s = sent_s if is_before else look.at_s
    if until_s is None or until_s <= sent_s:
        return None
    return until_s - sent_s, max(most_s, until_s) - sent_s


def slots_bounds(sent_s: float, first_s: float, looks: Sequence[BusySlots]) -> Window | None:
    """Return the same for an engine whose slots are seen; None where its own task may be there.

    It waited for certain while every slot answered others: tasks that were there before it was
    sent, or that were gone when it was answered itself. Any other may be its own, of a thought or
    a call that is held back. `looks` are those until its end, with some from before it was sent.
    """
    theirs, later = frozenset[int](), frozenset[int]()
    for look in looks:
        if look.at_s < sent_s:
            theirs |= look.answering or frozenset()
        elif look.at_s > first_s:
            later |= look.answering or frozenset()
    full = [
        look.at_s
        for look in looks
        if sent_s < look.at_s < first_s and _is_full(look) and _are_others(look, theirs, later)
    ]
    return (full[-1] - sent_s, first_s - sent_s) if full else None


def _are_others(look: BusySlots, theirs: Set[int], later: Set[int]) -> bool:
    tasks = look.answering or frozenset()
    return tasks <= theirs or (bool(later) and not tasks & later)


def _is_full(look: BusySlots) -> bool:
    """Return True if all slots are at answers."""
    return bool(look.slots) and len(look.answering or ()) == look.slots


def _has_room(look: Look, slots: int | None) -> bool | None:
    """Return True if a request that waits had a slot to go to, or one that it had already."""
    if look.waiting is not None:
        return _lets_in(look, slots)
    if slots is None:
        return None
    if look.working < slots:
        return True
    return False if look.unstarted == 0 else None  # one with nothing computed may be its own


def _lets_in(look: Look, slots: int | None) -> bool | None:
    if not _others_while_waiting(look):
        return True
    if slots is not None and look.working >= slots:
        return False
    if look.waiting == 0:
        return None  # it has not come yet, or it was let in
    return slots is not None and (look.kv_used_ratio or 0.0) < FULL_CACHE_RATIO


def _others_while_waiting(look: Look) -> int | None:
    """Count the others at the engine: of those that wait, one is the request itself."""
    if look.waiting is not None:
        return look.working + max(look.waiting - 1, 0)
    return None if look.unstarted is None else look.working - min(look.unstarted, 1)


def _reads_another(look: Look, slots: int | None) -> bool | None:
    """Return True if the engine read the prompt of another while a request waited.

    One that has room and lets nobody in fills its steps with what it has: with prompts, because
    answers take a token each.
    """
    if look.waiting is None:
        return None if look.reading is None else look.reading > 0 or (look.unstarted or 0) > 1
    if look.waiting == 0:
        return None
    return bool(_others_while_waiting(look)) and _has_room(look, slots) is True


def _served_first(window: Window, others: Iterable[Occupancy]) -> int:
    """Return how many were being served at one moment before a request's own turn came, at most.

    Who came in the same moment counts, too, where its first token came before that turn.
    """
    from_s, to_s = window
    steps = []
    for other in others:
        if other.first_s < to_s and other.end_s > from_s and other.sent_s < to_s:
            steps += [(max(other.sent_s, from_s), 1), (other.end_s, -1)]
    most = now = 0
    for at_s, step in sorted(steps):
        now += step
        if at_s < to_s:
            most = max(most, now)
    return most


def _read_meanwhile(window: Window, others: Iterable[Occupancy]) -> tuple[float, str | None]:
    """Return for how long others' prompts were read in a window, and whose was read longest."""
    from_s, to_s = window
    parts = []
    for other in others:
        part = (max(other.sent_s, from_s), min(other.first_s, to_s))
        if part[1] > part[0]:
            parts.append((part, other.request_id))
    if not parts:
        return 0.0, None
    covered_s, reached_s = 0.0, from_s
    for begin_s, end_s in sorted(part for part, _ in parts):
        covered_s += max(end_s - max(begin_s, reached_s), 0.0)
        reached_s = max(reached_s, end_s)
    longest = max(parts, key=lambda part: part[0][1] - part[0][0])
    return covered_s, longest[1] or None


def _decode_window(phases: Phases) -> Window:
    """Return both ends of the decode, or an empty window where one of them is not known."""
    begin_s, end_s = phases.decode_from_at_s, phases.decode_to_at_s
    return (0.0, 0.0) if begin_s is None or end_s is None else (begin_s, end_s)


def _most_at_once(there: int, begins: list[float], ends: list[float]) -> int:
    """Return how many are there at one moment at most: at the start, or when one of them begins."""
    most, ends_in_order = there, sorted(ends)
    for begun, begin_s in enumerate(sorted(begins), there + 1):
        most = max(most, begun - bisect_right(ends_in_order, begin_s))
    return most
