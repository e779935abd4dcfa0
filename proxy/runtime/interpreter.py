"""Tuning of Python's interpreter and heap for a process that relays tokens."""

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable

SWITCH_S = 0.0005  # beside prompts of 1 MB the slowest tokens came 3 times sooner (measured)
COLLECT_AFTER = (20_000, 20, 50)  # for 700, 10, 10


def shorten_switch_interval() -> None:
    """Let the event loop interrupt a thread sooner than after Python's 5 ms.

    Large prompts are fingerprinted in a thread, while other streams go on.
    """
    sys.setswitchinterval(SWITCH_S)


def collect_rarely() -> None:
    """Exclude existing objects from Python's garbage collector, and run it rarely.

    Objects of a request are freed by reference counting; with 16 whole replies at a time, 1.13
    times as many a second are relayed with this (measured).
    """
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


# The heap: what was freed in it goes back to the system.
#
# glibc keeps what lies between other allocations for later: after a hundred slow readers had left,
# 500 MiB stayed (measured). Others give it back by themselves, or cannot be told.

TRIM_AFTER_BYTES = 32 * 1024 * 1024  # takes 3 to 7 ms, 0.1 to 0.2 ms per MiB (measured)
SETTLE_S = 1.0  # what was counted is freed a moment later, and others leave, too


class Heap:
    """Returns freed memory to the system, once enough of it was freed.

    That is done in a thread: the loop waits for it only if it allocates a large block meanwhile.
    """

    def __init__(self, trim: Callable[[], object] | None) -> None:
        self._trim = trim
        self._freed_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def freed(self, size_bytes: int) -> None:
        """Count bytes that are, or will shortly be, free."""
        self._freed_bytes += size_bytes
        is_much = self._freed_bytes >= TRIM_AFTER_BYTES
        if is_much and self._timer is None and self._trim is not None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._give_back)

    def _give_back(self) -> None:
        self._timer = None
        self._freed_bytes = 0
        if self._trim is not None:
            asyncio.get_running_loop().run_in_executor(None, self._trim)


def find_trim() -> Callable[[], object] | None:
    """Return the C library's function that returns freed memory; None if it has none."""
    if sys.platform != "linux":
        return None
    try:
        trim = ctypes.CDLL(None).malloc_trim  # glibc alone has it
    except (OSError, AttributeError):
        return None
    trim.argtypes, trim.restype = (ctypes.c_size_t,), ctypes.c_int
    return lambda: trim(0)
