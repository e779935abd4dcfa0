"""Small work of several requests, done in a row.

Observing a request takes thousands of short steps. Right after the same steps of another request
their code and data are still at hand: in a row they cost a third less than with relaying in
between (measured with whole replies, 16 at once). So one waits for the next, as long as each turn
of the loop brings one.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable
from time import monotonic

MOST_IN_A_ROW = 16  # then streams go on. No published source
MOST_S = 0.002  # the print of a prompt of 200 kB takes one of them. No published source

Work = Callable[[], object]


class Together:
    """Collects work for `after_s`, or while others are ready to run, and does it in its order.

    Work that raises costs only itself; it is counted in `failures` under `place`.
    """

    def __init__(self, failures: Counter[str], place: str, *, after_s: float = 0.0) -> None:
        self._failures = failures
        self._place = place
        self.after_s = after_s
        self._waiting: deque[Work] = deque()
        self._last_turn = 0  # how many waited then

    def add(self, work: Work) -> None:
        """Let it be done soon."""
        if not self._waiting:
            loop = asyncio.get_running_loop()
            if self.after_s:
                loop.call_later(self.after_s, self._do_some)
            else:
                loop.call_soon(self._do_some)
        self._waiting.append(work)

    def do_all(self) -> None:
        """Do at once what still waits."""
        while self._waiting:
            self._do(1, math.inf)

    def _do_some(self) -> None:
        waiting = len(self._waiting)
        if self._last_turn < waiting < MOST_IN_A_ROW:  # more are coming
            self._last_turn = waiting
        else:
            self._last_turn = 0
            self._do(min(MOST_IN_A_ROW, waiting), monotonic() + MOST_S)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._do_some)

    def _do(self, most: int, until_s: float) -> None:
        for _ in range(most):
            work = self._waiting.popleft()
            try:
                work()
            except Exception:  # noqa: BLE001 - the work of other requests follows
                self._failures[self._place] += 1
            if monotonic() >= until_s:
                break
