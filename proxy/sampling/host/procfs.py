"""Small kernel files read again and again, and their counters turned into rates.

Strategy: opening a file in /proc costs two to eight times as much as reading it, so descriptors
stay open and are read from their beginning each time. A descriptor of a process that ended answers
with an error even when its pid is used again, so an open one never lies.
"""

import os

READ_BYTES = 32 * 1024
"""One read; /proc/stat of 256 cores is 15 KiB up to the end of the lines that are needed."""

MAX_OPEN = 256
"""Descriptors kept; a quarter of the usual limit of 1024. Further files are opened each time."""


class ProcFiles:
    """Reads files through descriptors that stay open; a file that cannot be read is None."""

    def __init__(self, most_open: int = MAX_OPEN) -> None:
        self._most_open = most_open
        self._descriptors: dict[str, int] = {}
        self.failures = 0
        """How many readings failed of a file that could be read before."""

    def read(self, path: str) -> bytes | None:
        """Return the first `READ_BYTES` of the file as it is now, or None."""
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            return self._open_and_read(path)
        try:
            return os.pread(descriptor, READ_BYTES, 0)
        except OSError:
            self.failures += 1
            self.drop(path)
            return None

    def _open_and_read(self, path: str) -> bytes | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            data = os.pread(descriptor, READ_BYTES, 0)
        except OSError:
            os.close(descriptor)
            return None
        if len(self._descriptors) < self._most_open:
            self._descriptors[path] = descriptor
        else:
            os.close(descriptor)
        return data

    def drop(self, path: str) -> None:
        """Close one file, if it is open."""
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def drop_below(self, folder: str) -> None:
        """Close every file below a folder: what a process that ended leaves behind."""
        prefix = folder.rstrip("/") + "/"
        for path in [path for path in self._descriptors if path.startswith(prefix)]:
            self.drop(path)


def read_whole(path: str) -> bytes | None:
    """Return a file of any length, opened for this one reading, or None."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


class CounterRate:
    """One counter's change per second between readings."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def per_s(self, value: float | None, at_s: float) -> float | None:
        """Return the change per second; None at first, after a gap, and when it went backwards."""
        before = self._last
        self._last = None if value is None else (value, at_s)
        if before is None or value is None or at_s <= before[1] or value < before[0]:
            return None
        return (value - before[0]) / (at_s - before[1])


def total(values: list[float | None]) -> float | None:
    """Sum what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
