"""Other requests at an engine during a request's queue, prefill and decode. Pure.

There are two sources: the proxy's own requests, whose times are known, and looks at the engine's
slots or gauges, which also show requests that did not come through the proxy.
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
    """The state of an engine at one moment; None is what the engine does not report.

    `working` requests had a slot, or were in the running batch; `waiting` ones had not been
    admitted. Of the working ones, `reading` were in prefill, and `unstarted` had nothing computed
    yet.
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
    """Return looks at the slots of a llama-server, for a request whose prefill began at `begun_s`.

    A task that computed before `begun_s`, or decoded before the request's first token, belongs to
    another request. While the first batch of such a task was computing, it counts as reading.
    """
    begun_s, first_s = begun_s or 0.0, first_s or 0.0
    other_tasks: set[int] = set()
    for look in looks:
        if look.at_s < max(first_s, begun_s):
            other_tasks |= look.answering or frozenset()
        if look.at_s < begun_s:
            other_tasks |= look.reading or frozenset()
    return [_of_slots(look, other_tasks if look.at_s < begun_s else frozenset()) for look in looks]


def _of_slots(look: BusySlots, other_tasks: Set[int]) -> Look:
    if look.unstarted is None or look.reading is None:
        return Look(look.at_s, look.busy)
    begun = look.unstarted & other_tasks
    reading, unstarted = len(look.reading) + len(begun), len(look.unstarted) - len(begun)
    return Look(look.at_s, look.busy, reading=reading, unstarted=unstarted)


def of_gauges(scrapes: Iterable[Scrape]) -> list[Look]:
    """Return looks at the gauges of an engine that has both running and waiting."""
    looks = []
    for scrape in scrapes:
        running, waiting = scrape.counters.running, scrape.counters.waiting
        if running is not None and waiting is not None:
            kv_used_ratio = scrape.counters.kv_used_ratio
            at_s = scrape.asked_at_s
            looks.append(Look(at_s, round(running), round(waiting), kv_used_ratio=kv_used_ratio))
    return looks


def count_neighbours(
    in_flight_at_send: int, phases: Phases, others: Sequence[Occupancy]
) -> Neighbours:
    """Count the other generations that decoded at the engine while the request did."""
    from_s, to_s = _decode_window(phases)
    if from_s >= to_s:
        return Neighbours(in_flight_at_send=in_flight_at_send)
    whole_window, present_at_start, partly_s = 0, 0, 0.0
    begins, ends = [], []
    for _, first_s, end_s, _ in others:
        if end_s <= from_s or first_s >= to_s or first_s >= end_s:
            continue
        if first_s > from_s:
            begin_s = first_s
            begins.append(first_s)
        else:
            present_at_start += 1
            if end_s >= to_s:
                whole_window += 1
                continue
            begin_s = from_s
        if end_s < to_s:
            ends.append(end_s)
            partly_s += end_s - begin_s
        else:
            partly_s += to_s - begin_s
    return Neighbours(
        in_flight_at_send=in_flight_at_send,
        decode_mean=whole_window + partly_s / (to_s - from_s),
        decode_max=_most_at_once(present_at_start, begins, ends) if begins else present_at_start,
    )


def with_looks(
    guessed: Neighbours, phases: Phases, looks: Sequence[Look], *, slots: int | None, own_slots: int
) -> Neighbours:
    """Replace the count of decoding neighbours by the engine's own, which has foreign requests.

    Args:
        guessed: the count from the proxy's own requests, some of which may only have waited.
        phases: when the request decoded.
        looks: looks at the engine's slots or gauges.
        slots: how many slots the engine has; a guess beyond the other slots is reduced.
        own_slots: slots that the request itself took (n > 1 takes several).
    """
    from_s, to_s = _decode_window(phases)
    others = [max(look.working - own_slots, 0) for look in looks if from_s <= look.at_s <= to_s]
    if from_s < to_s and len(others) >= MIN_LOOKS:
        mean = statistics.fmean(others)
        return replace(guessed, decode_mean=mean, decode_max=max(others), counted=True)
    if slots is None:
        return guessed
    most = max(slots - own_slots, 0)
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
    """Return which requests were at the engine while a request waited for its prefill.

    Args:
        window: the time from the request's sending to the begin of its prefill.
        others: the proxy's own requests there.
        looks: looks at the engine in that time; of gauges also the last one before it.
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
    own_slots: int,
) -> Concurrency:
    """Return which other prompts the engine prefilled during this request's prefill.

    `own_slots` is how many slots the request took itself. The proxy's other requests count only if
    the engine has a slot for each of them: otherwise they may have been waiting.
    """
    looks_with_reading = [
        look for look in looks if look.reading is not None and window[0] <= look.at_s
    ]
    counts = [max(look.working - own_slots, 0) for look in looks_with_reading]
    reading = [
        (look.reading or 0) + (look.unstarted or 0) > own_slots for look in looks_with_reading
    ]
    present = sum(1 for other in others if other.sent_s < window[1] and other.end_s > window[0])
    reading_s, reading_id = 0.0, None
    if slots is not None and present + own_slots <= slots:
        reading_s, reading_id = _read_meanwhile(window, others)
    return Concurrency(
        reading_s=reading_s,
        reading_id=reading_id,
        others_mean=statistics.fmean(counts) if counts else None,
        others_reading_ratio=statistics.fmean(reading) if reading else None,
    )


def queue_bounds(sent_s: float, first_s: float, looks: Sequence[Look]) -> Window | None:
    """Return lower and upper bound of the time until admission, from gauges; None if not queued.

    For an engine that reports how many requests wait, but not which. The request was queued as long
    as each look shows another request that was there before it and at least one that waits: whoever
    begins to wait later waits behind it. `looks` are those until its first token, with the last one
    before it was sent.
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
    """Return lower and upper bound of the queue time, from slots; None if it may have had a slot.

    It was queued for certain while every slot decoded for another request: tasks that were there
    before it was sent, or that were gone when it decoded itself. Any other task may be its own,
    decoding tokens that do not show yet (hidden reasoning, a buffered tool call). `looks` are those
    until its end, with some from before it was sent.
    """
    earlier_tasks, later_tasks = frozenset[int](), frozenset[int]()
    for look in looks:
        if look.at_s < sent_s:
            earlier_tasks |= look.answering or frozenset()
        elif look.at_s > first_s:
            later_tasks |= look.answering or frozenset()
    full = [
        look.at_s
        for look in looks
        if sent_s < look.at_s < first_s
        and _is_full(look)
        and _are_others(look, earlier_tasks, later_tasks)
    ]
    return (full[-1] - sent_s, first_s - sent_s) if full else None


def _are_others(look: BusySlots, earlier_tasks: Set[int], later_tasks: Set[int]) -> bool:
    tasks = look.answering or frozenset()
    return tasks <= earlier_tasks or (bool(later_tasks) and not tasks & later_tasks)


def _is_full(look: BusySlots) -> bool:
    """Return True if all slots are decoding."""
    return bool(look.slots) and len(look.answering or ()) == look.slots


def _has_room(look: Look, slots: int | None) -> bool | None:
    """Return True if a waiting request had a free slot, or one that it had taken already."""
    if look.waiting is not None:
        return _admits(look, slots)
    if slots is None:
        return None
    if look.working < slots:
        return True
    return False if look.unstarted == 0 else None  # one with nothing computed may be its own


def _admits(look: Look, slots: int | None) -> bool | None:
    if not _others_while_waiting(look):
        return True
    if slots is not None and look.working >= slots:
        return False
    if look.waiting == 0:
        return None  # it has not come yet, or it was let in
    return slots is not None and (look.kv_used_ratio or 0.0) < FULL_CACHE_RATIO


def _others_while_waiting(look: Look) -> int | None:
    """Count the other requests at the engine; of those that wait, one is the request itself."""
    if look.waiting is not None:
        return look.working + max(look.waiting - 1, 0)
    return None if look.unstarted is None else look.working - min(look.unstarted, 1)


def _reads_another(look: Look, slots: int | None) -> bool | None:
    """Return True if the engine was in prefill of another request while this one waited.

    An engine with room that admits nobody has filled its batches, and prompts do that: a decode
    takes one token per step.
    """
    if look.waiting is None:
        return None if look.reading is None else look.reading > 0 or (look.unstarted or 0) > 1
    if look.waiting == 0:
        return None
    return bool(_others_while_waiting(look)) and _has_room(look, slots) is True


def _served_first(window: Window, others: Iterable[Occupancy]) -> int:
    """Return the most requests served at one moment before the request's own turn.

    One sent at the same moment counts if its first token came before that turn.
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
    """Return how long other prompts were in prefill in a window, and the request of the longest."""
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
    """Return begin and end of decode; an empty window if one of them is not known."""
    begin_s, end_s = phases.decode_from_at_s, phases.decode_to_at_s
    return (0.0, 0.0) if begin_s is None or end_s is None else (begin_s, end_s)


def _most_at_once(present_at_start: int, begins: list[float], ends: list[float]) -> int:
    """Return the maximum overlap: at the start, or when one of them begins."""
    highest, ends_in_order = present_at_start, sorted(ends)
    for begun, begin_s in enumerate(sorted(begins), present_at_start + 1):
        highest = max(highest, begun - bisect_right(ends_in_order, begin_s))
    return highest
