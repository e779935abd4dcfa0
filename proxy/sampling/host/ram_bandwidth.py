"""Measures how fast this machine reads its memory, which bounds decoding on a CPU.

Strategy: libc's memchr looks for a byte that is not there, in buffers that together are far larger
than the caches, one per core. It only reads, is vectorised in most libraries, and ctypes lets the
threads run at the same time: they fill their buffers together, and read them together. Other work
only ever takes bandwidth away, so the most of several short windows is the nearest to what the
memory can do, and even that may be less: never a ceiling.

Run as a process of its own, `python -m slowtok.proxy.sampling.host.ram_bandwidth`: it prints one
JSON line for each window as soon as it has it, `{"bytes_per_s": ...}`, so that nothing is lost
where it is ended early; or one with `failure` where nothing can be measured.
"""

import ctypes
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

BUFFER_BYTES = 64 << 20
"""Per thread; read from end to end, so that a cache of its size keeps nothing of it."""

CACHES = 2
"""How many times the last-level caches the buffers are together, at the least."""

USUAL_CACHE_BYTES = 64 << 20  # where its size is not told: most desktop processors have less
MAX_THREADS = 16
"""Some threads saturate desktop memory; on a large server this reads low, which errs towards
expecting too little, until a decode shows more. Heuristic."""

MEMORY_DIVISOR = 4  # at most a quarter of the available memory is touched
WINDOW_S = 0.1
WINDOWS = 5
STRIDE_BYTES = 4 << 20
"""One call of memchr: under a millisecond, so that the threads of a window end together."""

FILL, ABSENT = 0x55, 0x01

WINDOWS_LIBRARIES = ("vcruntime140", "ucrtbase", "msvcrt")
"""Those of Windows that have memchr; the first comes with Python and is the fastest."""

CPU_FOLDER = Path("/sys/devices/system/cpu")
CGROUP_FOLDER = Path("/sys/fs/cgroup")

Memchr = Callable[[int, int, int], int | None]


class CannotMeasure(Exception):
    """Nothing can be measured now. The text says why."""


class Plan(NamedTuple):
    """How many threads read how much each."""

    threads: int
    buffer_bytes: int


def make_plan(cores: int | None, available_bytes: int, cache_bytes: int | None) -> Plan | None:
    """Choose threads and buffers for a machine; None when its free memory is too small.

    `cache_bytes` are the last-level caches that this many cores have together.
    """
    threads = min(cores or 1, MAX_THREADS)
    least_bytes = CACHES * (cache_bytes or USUAL_CACHE_BYTES)
    total_bytes = min(available_bytes // MEMORY_DIVISOR, max(threads * BUFFER_BYTES, least_bytes))
    buffer_bytes = -(-total_bytes // threads // STRIDE_BYTES) * STRIDE_BYTES
    if total_bytes < least_bytes or buffer_bytes < STRIDE_BYTES:
        return None
    return Plan(threads, buffer_bytes)


def find_memchr() -> Memchr | None:
    """Return the C library's memchr, or None where the running program does not carry one."""
    for name in WINDOWS_LIBRARIES if sys.platform == "win32" else (None,):
        try:
            memchr = ctypes.CDLL(name).memchr
        except (OSError, TypeError, AttributeError):
            continue
        memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
        memchr.restype = ctypes.c_void_p
        found: Memchr = memchr
        return found
    return None


def cache_bytes(folder: Path = CPU_FOLDER) -> int | None:
    """Return the size of all last-level caches together, each counted once; None if not told."""
    sizes: dict[str, int] = {}
    for cpu in folder.glob("cpu[0-9]*"):
        levels = {_word(index / "level"): index for index in (cpu / "cache").glob("index*")}
        last = levels.get(max(levels, default=""))
        size = _word(last / "size") if last else ""
        if last and size.endswith("K") and size[:-1].isdigit():
            sizes[_word(last / "shared_cpu_list")] = int(size[:-1]) << 10
    return sum(sizes.values()) or None


def available_bytes(folder: Path = CGROUP_FOLDER) -> int:
    """Return the memory that may be taken, a container's limit included."""
    # psutil's available memory counts page cache that can be dropped, so a model may be evicted
    # only if it fills more than the other three quarters
    free = int(psutil.virtual_memory().available)
    limit, used = _word(folder / "memory.max"), _word(folder / "memory.current")
    if limit.isdigit() and used.isdigit():
        free = min(free, max(int(limit) - int(used), 0))
    return free


def _word(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def own_cores() -> int | None:
    """Return how many cores this process may use; threads of one core share its reads."""
    physical = psutil.cpu_count(logical=False)
    if not hasattr(os, "sched_getaffinity"):
        return physical
    allowed = len(os.sched_getaffinity(0))
    return min(physical or allowed, allowed)


def measure(windows: int = WINDOWS) -> Iterator[float]:
    """Yield the memory's read rate in bytes per second, once for each window.

    Raises:
        CannotMeasure: no memchr, or too little free memory.
    """
    memchr = find_memchr()
    if memchr is None:
        raise CannotMeasure("the C library's memchr was not found")
    plan = make_plan(own_cores(), available_bytes(), cache_bytes())
    if plan is None:
        raise CannotMeasure("too little free memory")
    maps = [mmap.mmap(-1, plan.buffer_bytes) for _ in range(plan.threads)]
    addresses = [0] * plan.threads

    def fill(number: int) -> None:
        addresses[number] = _fill(maps[number], plan.buffer_bytes)

    _together(fill, plan.threads)
    for _ in range(windows):
        yield _read_window(memchr, addresses, plan.buffer_bytes)


def _together(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


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

    _together(read, len(addresses))
    return sum(done) / (time.perf_counter() - begun_s)


def main() -> None:
    """Print a line for each window."""
    try:
        for rate in measure():
            _tell({"bytes_per_s": rate})
    except CannotMeasure as reason:
        _tell({"failure": str(reason)})


def _tell(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
