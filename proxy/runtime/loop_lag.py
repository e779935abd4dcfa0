"""Measures the event loop's lag, which is the proxy's own share in a delay."""

import asyncio
from collections import deque

INTERVAL_S = 0.25
KEEP = 240  # one minute
KEEP_PEAKS = 1024


class LoopLag:
    """Measures how late a timer of the loop fires; costs a call every `INTERVAL_S`."""

    def __init__(self) -> None:
        self._late_s: deque[float] = deque(maxlen=KEEP)
        self._peaks: deque[tuple[float, float]] = deque(maxlen=KEEP_PEAKS)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start measuring in the running loop."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(loop.time() + INTERVAL_S, self._tick, loop.time() + INTERVAL_S)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def summary(self) -> dict[str, float | None]:
        """Return median and maximum lag of the last minute, in milliseconds."""
        late = sorted(self._late_s)
        if not late:
            return {"p50_ms": None, "max_ms": None}
        return {
            "p50_ms": round(late[len(late) // 2] * 1000, 3),
            "max_ms": round(late[-1] * 1000, 3),
        }

    def most_since(self, from_s: float) -> float | None:
        """Return the maximum lag since a moment of the loop's clock; None without a reading."""
        return next((late_s for at_s, late_s in self._peaks if at_s >= from_s), None)

    def _tick(self, due_s: float) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        late_s = max(now_s - due_s, 0.0)
        self._late_s.append(late_s)
        while self._peaks and self._peaks[-1][1] <= late_s:
            self._peaks.pop()  # whoever asks for the most since then gets this one instead
        self._peaks.append((now_s, late_s))
        self._timer = loop.call_at(now_s + INTERVAL_S, self._tick, now_s + INTERVAL_S)
