"""The records that /slowtok/requests shows, as JSON: a bounded ring with waiters.

A record as bytes takes a quarter of the memory that its objects take.
"""

import asyncio
import itertools
from typing import Any

import orjson

from slowtok.proxy.runtime.bounded_map import BoundedMap


class RecordRing:
    """Keeps the newest records by id, and lets a reader wait for one that is about to come."""

    def __init__(self, keep: int) -> None:
        self._records: BoundedMap[str, bytes] = BoundedMap(keep)
        self._pending: dict[str, asyncio.Event | None] = {}  # an event where somebody waits

    def expect(self, request_id: str) -> None:
        """Announce a record that will come soon."""
        self._pending[request_id] = None

    def add(self, record: dict[str, Any]) -> None:
        """Keep a record; the oldest goes when there are too many."""
        written = memoryview(orjson.dumps(record, default=str))
        self._records[record["id"]] = bytes(written)  # orjson's own holds up to twice as much
        if event := self._pending.pop(record["id"], None):
            event.set()

    def newest_first(self, limit: int | None = None) -> bytes:
        """Return a list of the records, the newest first."""
        return b"[%b]" % b",".join(itertools.islice(reversed(self._records.values()), limit))

    async def get(self, request_id: str, timeout_s: float) -> bytes | None:
        """Return one record, waiting for it only if it was announced."""
        if request_id in self._pending:
            event = self._pending[request_id] or asyncio.Event()
            self._pending[request_id] = event
            try:
                await asyncio.wait_for(event.wait(), timeout_s)
            except TimeoutError:
                return None
        return self._records.get(request_id)

    def forget(self, request_id: str) -> None:
        """Take an announcement back: no record will come."""
        if event := self._pending.pop(request_id, None):
            event.set()
