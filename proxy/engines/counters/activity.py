"""The gain of an engine's counters around a request. Pure: the scrapes are passed in."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from slowtok.detectors.case.engine import EngineActivity
from slowtok.proxy.engines.counters.metrics import Counters, gain

BEGIN_SLACK_S = 0.1
"""The scrape of a request's begin may be asked just after it was sent, on a busy machine later. It
holds nothing of that request as long as it is answered before the first token. Heuristic."""
BUSY_SLACK_S = 0.01  # so soon after a request was sent its engine does not yet count it; heuristic
KEEP = 1200  # four a second at most, for five minutes; one a second for twenty


class Scrape(NamedTuple):
    """An engine's counters, read at some moment between the two times (monotonic clock)."""

    asked_at_s: float
    answered_at_s: float
    counters: Counters


class ActivityLog:
    """The scrapes of one engine's last minutes."""

    def __init__(self) -> None:
        self._scrapes: deque[Scrape] = deque(maxlen=KEEP)

    def note(self, scrape: Scrape) -> None:
        """Store one scrape; they arrive in the order in which they were requested."""
        self._scrapes.append(scrape)

    def window(self, from_s: float, to_s: float) -> list[Scrape]:
        """Return the scrapes requested in a window, and the last one before it, oldest first."""
        first = bisect_right(
            self._scrapes, from_s + BEGIN_SLACK_S, key=lambda scrape: scrape.asked_at_s
        )
        past = bisect_right(self._scrapes, to_s, key=lambda scrape: scrape.asked_at_s)
        return list(islice(self._scrapes, max(first - 1, 0), past))

    def between(
        self, begin_s: float, end_s: float, first_token_s: float | None = None
    ) -> EngineActivity | None:
        """Return the gain from `begin_s` to `end_s`; None if no scrapes enclose them.

        It runs from the last scrape requested by `begin_s` to the first requested from `end_s` on.
        The former must have been answered before the first token (if that is not known, before the
        end): a later answer may include some of this request's own counts.
        """
        by_s = end_s if first_token_s is None else first_token_s
        last = bisect_left(self._scrapes, end_s, key=lambda scrape: scrape.asked_at_s)
        if last == len(self._scrapes):
            return None
        for first in range(last, -1, -1):
            scrape = self._scrapes[first]
            if scrape.asked_at_s <= begin_s + BEGIN_SLACK_S and scrape.answered_at_s <= by_s:
                return activity(list(islice(self._scrapes, first, last + 1)), begin_s)
        return None


def activity(scrapes: Sequence[Scrape], begin_s: float | None = None) -> EngineActivity | None:
    """Return the gain from the first to the last scrape; None if the engine restarted between them.

    `begin_s` is when the request was sent.
    """
    first, last = scrapes[0].counters, scrapes[-1].counters
    gains = gain(first, last)
    if gains is None:
        return None
    running_max = _highest(scrape.counters.running for scrape in scrapes)
    return EngineActivity(
        span_s=scrapes[-1].asked_at_s - scrapes[0].asked_at_s,
        alone=_alone(gains, last, running_max, was_busy=_was_busy_before(scrapes[0], begin_s)),
        running_max=_count(running_max),
        kv_used_max_ratio=_highest(scrape.counters.kv_used_ratio for scrape in scrapes),
        preemptions=_count(gains["preemptions"]),
        prompt_tokens=_count(gains["prompt_tokens"]),
        cached_tokens=_count(gains["cached_tokens"]),
        queue_s=gains["queue_s"],
        prefill_s=gains["prefill_s"],
        decode_s=gains["decode_s"],
        drafted=_count(gains["drafted"]),
        accepted=_count(gains["accepted"]),
    )


def _alone(
    gains: dict[str, float | None], last: Counters, running_max: float | None, *, was_busy: bool
) -> bool | None:
    """Return True if a single request was at the engine, False if not, None if not known.

    `was_busy`: others were there before it. Every request has either finished or is still there. So
    one finished request, and an engine that is empty at the end, prove that it was alone. An engine
    that is not empty may have been given the next request meanwhile.
    """
    requests = gains["finished"] if gains["requests"] is None else gains["requests"]
    if (requests or 0) > 1:
        return False
    finished = gains["finished"]  # a request for n answers runs n times
    if running_max is not None and running_max > max(finished or 0, 1):
        return False
    if requests == 1 and last.running == 0 and last.waiting == 0:
        return True
    return False if was_busy else None


def _was_busy_before(first: Scrape, begin_s: float | None) -> bool:
    """Return True if the engine was busy just before the request was sent."""
    if begin_s is None or first.answered_at_s > begin_s + BUSY_SLACK_S:
        return False
    return bool(first.counters.running or first.counters.waiting)


def _highest(readings: Iterable[float | None]) -> float | None:
    return max((reading for reading in readings if reading is not None), default=None)


def _count(value: float | None) -> int | None:
    return None if value is None else round(value)
