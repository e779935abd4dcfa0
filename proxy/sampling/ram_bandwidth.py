"""How fast this machine reads its memory: what bounds decoding on a CPU.

Strategy: libc's memchr looks for a byte that is not there, over buffers far larger than any cache,
one per physical core. It only reads, is vectorised everywhere, and ctypes lets the threads run at
the same time. Other work only ever takes bandwidth away, so the best of several short windows is
the nearest to what the memory can do.

Run as a process of its own (`python -m slowtok.proxy.sampling.ram_bandwidth`): it prints one JSON
line, `{"bytes_per_s": ...}`, null where it cannot be measured.
"""

import ctypes
import json
import mmap
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import psutil

BUFFER_BYTES = 256 << 20
"""Per thread; the last-level caches of desktop processors go up to about 128 MiB."""

SMALLEST_BUFFER_BYTES = 64 << 20
MOST_THREADS = 8
"""Some threads saturate desktop memory; on a large server this reads low, which errs towards
expecting too little. No published source."""

MEMORY_DIVISOR = 4  # at most a quarter of the available memory is touched
WINDOW_S = 0.2
STRIDE_BYTES = 16 << 20
"""One call of memchr: about a millisecond, so that the threads of a window end together."""

FILL, ABSENT = 0x55, 0x01

Memchr = Callable[[int, int, int], int | None]


class Plan(NamedTuple):
    """How many threads read how much each."""

    threads: int
    buffer_bytes: int


def make_plan(cores: int | None, available_bytes: int) -> Plan | None:
    """Choose threads and buffers for a machine; None when its free memory is too small."""
    threads = min(cores or 1, MOST_THREADS)
    share_bytes = available_bytes // MEMORY_DIVISOR // threads
    buffer_bytes = min(share_bytes, BUFFER_BYTES) // STRIDE_BYTES * STRIDE_BYTES
    return Plan(threads, buffer_bytes) if buffer_bytes >= SMALLEST_BUFFER_BYTES else None


def find_memchr() -> Memchr | None:
    """Return libc's memchr, or None where the running program does not carry one."""
    try:
        memchr = ctypes.CDLL(None).memchr
    except (OSError, TypeError, AttributeError):  # Windows has no libc to be found this way
        return None
    memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    memchr.restype = ctypes.c_void_p
    found: Memchr = memchr
    return found


def measure(seconds: float = 1.0) -> float | None:
    """Return the memory's read rate in bytes per second, the best window of `seconds`.

    None where it cannot be measured: no memchr, or too little free memory.
    """
    memchr = find_memchr()
    # psutil's available memory counts page cache that can be dropped, so a model may be evicted
    # only if it fills more than the other three quarters
    plan = make_plan(psutil.cpu_count(logical=False), psutil.virtual_memory().available)
    if memchr is None or plan is None:
        return None
    maps = [mmap.mmap(-1, plan.buffer_bytes) for _ in range(plan.threads)]
    addresses = [_fill(buffer, plan.buffer_bytes) for buffer in maps]
    windows = max(round(seconds / WINDOW_S), 1)
    rates = [_read_window(memchr, addresses, plan.buffer_bytes) for _ in range(windows)]
    for buffer in maps:
        buffer.close()
    return max(rates)


def _fill(buffer: mmap.mmap, size: int) -> int:
    view = (ctypes.c_char * size).from_buffer(buffer)
    address = ctypes.addressof(view)
    ctypes.memset(address, FILL, size)  # untouched pages would all be the one page of zeros
    return address


def _read_window(memchr: Memchr, addresses: list[int], size: int) -> float:
    done = [0] * len(addresses)
    begun_s = time.perf_counter()

    def read(number: int) -> None:
        offset = 0
        while time.perf_counter() - begun_s < WINDOW_S:
            memchr(addresses[number] + offset, ABSENT, STRIDE_BYTES)
            done[number] += STRIDE_BYTES
            offset = (offset + STRIDE_BYTES) % size

    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(addresses))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - begun_s)


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"bytes_per_s": measure()}) + "\n")
