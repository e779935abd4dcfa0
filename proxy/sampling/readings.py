"""The readings of the sampling process, kept for whoever asks about a window of time."""

import re
from dataclasses import replace
from typing import Any

from slowtok.detectors.case.machine import DeviceFacts, GpuSample, HostSample
from slowtok.proxy.sampling.budget import WHY, hidden
from slowtok.proxy.sampling.protocol import (
    BadLine,
    FailedLine,
    GpusLine,
    HostLine,
    Line,
    OverheadLine,
    ProcessFacts,
    parse_line,
)
from slowtok.proxy.sampling.ring import Ring

LONGEST_SPAN_S = 2.5
"""A little over the idle period: how far a sample's span can reach back over a window's end."""

TELLING = (re.compile(r"Fatal Python error: "), re.compile(r"[\w.]*(Error|Exception)\b"))
"""Beginnings of lines that say what happened, the more telling ones last: an interpreter that ends,
an exception. What stands around them says where."""


class Readings:
    """Samples by time and the latest facts; a line that cannot be read is counted."""

    def __init__(self) -> None:
        self._hosts: dict[int | None, Ring[HostSample]] = {}
        self.gpus: Ring[GpuSample] = Ring()
        """The samples of all GPUs."""
        self.processes: dict[int, ProcessFacts] = {}
        """What is known about the process behind each port that was looked at."""
        self.device = DeviceFacts()
        """The machine's facts as far as they are known; without RAM bandwidth."""
        self.gpus_reason: str | None = "not looked at yet"
        """Why there are no samples of GPUs, or not of all; None where there are."""
        self._overhead: OverheadLine | None = None
        self._failures: dict[str, str] = {}
        self._bad_lines = 0
        self._last_bad_line: str | None = None
        self._telling = 0

    def begin(self) -> None:
        """Another sampling process speaks from now on."""
        self._telling = 0

    def take(self, text: bytes) -> Line | None:
        """Keep one line and return its value, or None when it was not one."""
        try:
            line = parse_line(text)
        except BadLine:
            self.count_bad_line(text.decode(errors="replace").rstrip())
            return None
        self._keep(line)
        return line

    def count_bad_line(self, text: str) -> None:
        """Count a line that could not be read; the beginning of one is kept for the status.

        That is the last one, but of a process that ends in disorder the one that says why.
        """
        self._bad_lines += 1
        telling = max((n for n, said in enumerate(TELLING, 1) if said.match(text)), default=0)
        if telling >= self._telling:
            self._telling, self._last_bad_line = telling, text[:200]

    @property
    def last_words(self) -> str | None:
        """What the process that spoke last said of why it ends; None where it did not."""
        return self._last_bad_line if self._telling else None

    def _keep(self, line: Line) -> None:
        match line:
            case HostLine():
                self._hosts.setdefault(line.port, Ring()).add(line.sample)
            case GpuSample():
                self.gpus.add(line)
            case ProcessFacts():
                self.processes[line.port] = line
            case DeviceFacts():
                said = self.device
                self.device = replace(line, gpus=said.gpus, gpus_reason=said.gpus_reason)
            case GpusLine():
                self.device = replace(self.device, gpus=line.gpus, gpus_reason=line.reason)
                self.gpus_reason = line.reason
            case OverheadLine():
                self._overhead = line
            case FailedLine():
                self._failures[line.where] = line.error

    def forget_other_ports(self, ports: tuple[int, ...]) -> None:
        """Drop what was kept about ports that are no longer watched."""
        for port in self.processes.keys() - set(ports):
            del self.processes[port]
        for watched in self._hosts.keys() - {None, *ports}:
            del self._hosts[watched]

    def host_window(self, port: int | None, from_s: float, to_s: float) -> tuple[HostSample, ...]:
        """Return the samples whose span touches the window, oldest first."""
        ring = self._hosts.get(port)
        if ring is None:
            return ()
        found = ring.window(from_s, to_s + LONGEST_SPAN_S)
        if not found or found[-1].at_s < to_s:
            return found
        return tuple([sample for sample in found if sample.at_s - sample.span_s < to_s])

    def not_visible(self) -> list[dict[str, str]]:
        """Return what sampling that had to be slowed does not see, and why."""
        facts = hidden(self._overhead.slowed) if self._overhead else []
        return [{"fact": fact, "why": WHY} for fact in facts]

    def status(self) -> dict[str, Any]:
        """Return what the user should know about the sampling itself."""
        overhead = self._overhead
        return {
            "gpu_unavailable": self.gpus_reason,
            "cpu_ratio": overhead.cpu_ratio if overhead else None,
            "tick_p50_s": overhead.tick_p50_s if overhead else None,
            "tick_max_s": overhead.tick_max_s if overhead else None,
            "missed_ticks": overhead.missed_ticks if overhead else None,
            "gpu_errors": overhead.gpu_errors if overhead else None,
            "gpu_samples_stalled": overhead.gpu_samples_stalled if overhead else None,
            "gpu_hung": overhead.gpu_hung if overhead else None,
            "slowed": dict(overhead.slowed) if overhead else {},
            "failed": dict(self._failures),
            "unreadable_lines": self._bad_lines,
            "last_unreadable": self._last_bad_line,
        }
