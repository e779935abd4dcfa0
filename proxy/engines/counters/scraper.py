"""Scrapes one engine's `/metrics` when a request begins or ends, and at intervals between.

No engine wakes a sleeping model for it. llama-server restarts two averages with each scrape,
whoever makes it, so it is scraped only at the begin and end of requests. An engine that has no
counters, or does not answer, is left alone until it is found again.
"""

import asyncio
import time
from collections import deque

import aiohttp

from slowtok.proxy.engines.counters.activity import ActivityLog, Scrape
from slowtok.proxy.engines.counters.metrics import Counters, read_counters
from slowtok.proxy.engines.probing.reply import get

SCRAPED_KINDS = frozenset({"vllm", "llama-server", "sglang"})
GAUGED = frozenset({"vllm", "sglang"})
"""Engines whose gauges are read while a request is there; a llama-server shows its slots."""

POLL_S = 1.0
TIMEOUT_S = 1.0
# Writing a page takes a vLLM's one event loop some milliseconds: however many requests begin and
# end, it is asked at most so often, and above the least only while its answers take no more than
# this share of its time; heuristic.
LEAST_PER_S, MAX_PER_S = 4, 16
SHARE = 0.05
FRESH_S = 0.2  # a request that begins so soon after a scrape needs no other; heuristic
LARGE_PAGE_BYTES = 256 * 1024  # about five engines on one page, 2 ms: read in a thread
# 400: a router, which wants to be told of which model.
NO_METRICS = frozenset({400, 401, 403, 404, 405, 501})


class Scraper:
    """Scrapes one engine into its log, one scrape at a time. `failures` counts exceptions."""

    def __init__(self, session: aiohttp.ClientSession, url: str, log: ActivityLog) -> None:
        self.failures = 0
        self.refused = False
        self._session = session
        self._url = url
        self._log = log
        self._asked_at_s: deque[float] = deque(maxlen=MAX_PER_S)
        self._answer_s: float | None = None
        self._wanted = 0  # so many were wanted,
        self._serving = 0  # the first so many of them by the scrape in flight,
        self._served = 0  # and these by scrapes that are over
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Scrape, because a request is about to be sent."""
        self.want(FRESH_S)

    def poll(self) -> None:
        """Scrape, because a request is in flight."""
        self.want(POLL_S)

    def want(self, age_s: float = 0.0) -> None:
        """Scrape as soon as possible, unless the last scrape is younger than `age_s`."""
        if self.refused:
            return
        if age_s and self._asked_at_s and time.monotonic() - self._asked_at_s[-1] < age_s:
            return
        self._wanted += 1
        if self._task is None or self._task.done():
            asked_at_s = self._ask() if self._wait_s() == 0 else None
            self._task = asyncio.create_task(self._scrape_all(asked_at_s))

    async def wait_for_answers(self, timeout_s: float) -> bool:
        """Wait until all scrapes wanted so far have been answered; False if that takes too long."""
        wanted = self._wanted
        if self._served >= wanted:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                while self._served < wanted:
                    await self._over.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Cancel the scrape in flight."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _ask(self) -> float:
        """Note that a scrape begins, for all who wanted one by now; return the time."""
        self._asked_at_s.append(time.monotonic())
        self._serving = self._wanted
        return self._asked_at_s[-1]

    async def _scrape_all(self, asked_at_s: float | None) -> None:
        """Scrape until nothing more is wanted; the first scrape may have been noted already."""
        while self._served < self._wanted:
            if asked_at_s is None:
                await asyncio.sleep(self._wait_s())
                asked_at_s = self._ask()
            try:
                await self._scrape(asked_at_s)
            except Exception:  # noqa: BLE001 - it costs the facts, not the request
                self.failures += 1
            asked_at_s = None
            self._served = self._serving
            self._over.set()
            self._over.clear()

    def _wait_s(self) -> float:
        allowed = int(SHARE / self._answer_s) if self._answer_s else LEAST_PER_S
        most = min(max(allowed, LEAST_PER_S), MAX_PER_S)
        if len(self._asked_at_s) < most:
            return 0.0
        return max(self._asked_at_s[-most] + 1.0 - time.monotonic(), 0.0)

    async def _scrape(self, asked_at_s: float) -> None:
        reply = await get(self._session, self._url, "/metrics", timeout_s=TIMEOUT_S)
        answered_at_s = time.monotonic()
        self._answer_s = answered_at_s - asked_at_s
        if reply is None or reply.status != 200:
            self.refused = reply is not None and reply.status in NO_METRICS
            self.failures += not self.refused
            return
        counters = await _read(reply.body)
        if counters is None:
            self.refused = True
        else:
            self._log.note(Scrape(asked_at_s, answered_at_s, counters))


async def _read(page: bytes) -> Counters | None:
    if len(page) > LARGE_PAGE_BYTES:
        return await asyncio.to_thread(read_counters, page)
    return read_counters(page)
