"""Queue of small background work, one piece per turn of the event loop.

Whatever else is ready, a token or a new connection, is handled between two pieces.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable

Work = Callable[[], object]


class WorkQueue:
    """Does the added work in order: the first piece after `after_s`, then one per turn of the loop.

    Work that raises costs only itself; it is counted in `failures` under `place`.
    """

    def __init__(self, failures: Counter[str], place: str, *, after_s: float = 0.0) -> None:
        self._failures = failures
        self._place = place
        self.after_s = after_s
        self._waiting: deque[Work] = deque()
        self._next: asyncio.Handle | None = None  # the scheduled call of `_do_next`

    def add(self, work: Work) -> None:
        """Schedule work."""
        self._waiting.append(work)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(self.after_s, self._do_next)

    def do_all(self) -> None:
        """Do all waiting work now."""
        while self._waiting:
            self._do(self._waiting.popleft())
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _do_next(self) -> None:
        this_call, work = self._next, self._waiting.popleft()
        if not self._waiting:
            self._next = None  # what the work itself adds waits for `after_s` again
        self._do(work)
        if self._waiting and self._next is this_call:
            self._next = asyncio.get_running_loop().call_soon(self._do_next)

    def _do(self, work: Work) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - the work of other requests follows
            self._failures[self._place] += 1
