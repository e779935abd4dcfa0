"""The event loop's lateness, on a loop whose time is data."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from slowtok.proxy.runtime.loop_lag import (
    INTERVAL_S,
    KEEP,
    KEEP_PEAKS,
    LoopLag,
)


class Loop:
    """Calls its timers when it is told to, as late as it is told to."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.due: tuple[float, Callable[..., None], tuple[Any, ...]] | None = None

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, call: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
        self.due = (at_s, call, args)
        return asyncio.TimerHandle(at_s, call, args, self)  # type: ignore[arg-type]

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        self.due = None

    def get_debug(self) -> bool:
        return False

    def run(self, late_s: float) -> None:
        assert self.due is not None
        at_s, call, args = self.due
        self.now_s = at_s + late_s
        call(*args)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    made = Loop()
    monkeypatch.setattr("slowtok.proxy.runtime.loop_lag.asyncio.get_running_loop", lambda: made)
    return made


def test_nothing_measured_is_not_zero() -> None:
    assert LoopLag().summary() == {"p50_ms": None, "max_ms": None}


def test_median_and_largest_lateness(loop: Loop) -> None:
    lag = LoopLag()
    lag.start()
    for late_s in (0.0, 0.001, 0.2):
        loop.run(late_s)

    assert lag.summary() == {"p50_ms": 1.0, "max_ms": 200.0}


def test_one_late_call_does_not_make_the_next_one_late(loop: Loop) -> None:
    lag = LoopLag()
    lag.start()
    loop.run(3.0)
    assert loop.due is not None
    assert loop.due[0] == pytest.approx(loop.now_s + INTERVAL_S)
    loop.run(0.0)

    assert lag.summary() == {"p50_ms": 3000.0, "max_ms": 3000.0}


def test_only_the_last_minute_counts(loop: Loop) -> None:
    lag = LoopLag()
    lag.start()
    loop.run(9.0)
    for _ in range(KEEP):
        loop.run(0.0)

    assert lag.summary() == {"p50_ms": 0.0, "max_ms": 0.0}


def test_stop_ends_it(loop: Loop) -> None:
    lag = LoopLag()
    lag.stop()
    lag.start()
    lag.stop()

    assert loop.due is None


def test_largest_lateness_since_a_moment(loop: Loop) -> None:
    lag = LoopLag()
    lag.start()
    at_s = []
    for late_s in (0.5, 0.1, 0.3, 0.2):
        loop.run(late_s)
        at_s.append(loop.now_s)

    assert [lag.most_since(moment) for moment in at_s] == pytest.approx([0.5, 0.3, 0.3, 0.2])
    assert lag.most_since(at_s[0] - 100) == pytest.approx(0.5)
    assert lag.most_since(at_s[-1] + 0.01) is None


def test_largest_lateness_is_kept_in_bounded_memory(loop: Loop) -> None:
    lag = LoopLag()
    lag.start()
    first_s = loop.now_s
    for i in range(2 * KEEP_PEAKS):
        loop.run(1.0 - i / (4 * KEEP_PEAKS))  # each one a little less late

    assert lag.most_since(first_s) == pytest.approx(0.75, abs=0.001)
