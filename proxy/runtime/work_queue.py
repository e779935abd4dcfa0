"""Small work beside the relaying, done piece by piece: one in each turn of the event loop.

Whatever else is ready, a token or a new connection, has its turn between two pieces.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable

Work = Callable[[], object]


class WorkQueue:
    """Does what was added, in its order, `after_s` later.

    Work that raises costs only itself; it is counted in `failures` under `place`.
    """

    def __init__(self, failures: Counter[str], place: str, *, after_s: float = 0.0) -> None:
        self._failures = failures
        self._place = place
        self.after_s = after_s
        self._waiting: deque[Work] = deque()

    def add(self, work: Work) -> None:
        """Let it be done soon."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(self.after_s, self._do_next)
        self._waiting.append(work)

    def do_all(self) -> None:
        """Do at once what still waits."""
        while self._waiting:
            self._do(self._waiting.popleft())

    def _do_next(self) -> None:
        if not self._waiting:  # it was done at once
            return
        self._do(self._waiting.popleft())
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._do_next)

    def _do(self, work: Work) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - the work of other requests follows
            self._failures[self._place] += 1
