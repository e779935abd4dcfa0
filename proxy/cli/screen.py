"""The terminal of a running proxy: one line for each request, and what else happens."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.cli.render.console import is_telling, plain, plain_line, request_line
from slowtok.proxy.cli.render.units import counted
from slowtok.proxy.outputs.log import Log
from slowtok.proxy.runtime.background_writer import to_stdout

PACE_S = 1.0
MAX_LINES = 30  # in that time on a terminal, and as many of slow or failed ones. No source

Facts = Mapping[str, Any]


class Screen:
    """Standard output, through a thread: readable lines, or the JSON lines of the log."""

    def __init__(self, *, json: bool) -> None:
        self.writer = to_stdout()
        self._log = Log(self.writer) if json else None
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._is_terminal = self._console.is_terminal
        self._came: Counter[bool] = Counter()  # in this second; slow and failed ones apart
        self._broke: set[tuple[str, ...]] = set()  # events of ONCE that were shown, by their line
        self.greeted = False  # until then the greeting tells of engines

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Show a finished request; what merely passed through is shown only when it failed."""
        if self._log is not None:
            self._log(case, diagnosis, record)
        elif is_telling(record):
            if self._is_terminal:
                self._show(record)
            else:
                self.writer.write(plain_line(record))

    def event(self, event: str, **facts: Any) -> None:
        """Show what else happened; of that, people want to see engines that went away."""
        if self._log is not None:
            self._log.event(event, **facts)
        elif event in _WORDS and (self.greeted or event != "engine-found"):
            lines = _WORDS[event](facts)
            if event in ONCE and not self._is_new(lines):
                return
            for line in lines:
                self.say(plain(line))

    def _is_new(self, lines: tuple[str, ...]) -> bool:
        """Return True if an event of `ONCE` is the first of its place; the log has all of them."""
        if lines in self._broke or len(self._broke) >= MAX_LINES:
            return False
        self._broke.add(lines)
        return True

    def say(self, text: str) -> None:
        """Show a plain line, or put it on standard error where lines are JSON."""
        if self._log is not None:
            sys.stderr.write(text + "\n")
        else:
            self.writer.write(text)

    def close(self) -> None:
        """Show what is still to be shown."""
        self._next_second()
        self.writer.close()

    def _show(self, record: dict[str, Any]) -> None:
        failed = (record.get("status") or 0) >= 400
        if not self._can_be_read(matters=failed or record.get("verdict") == "slow"):
            return
        with self._console.capture() as captured:
            self._console.print(request_line(record, self._console.width), end="")
        self.writer.write(captured.get())

    def _can_be_read(self, *, matters: bool) -> bool:
        """Return True if there is room for one more line on a terminal in this second."""
        if not self._came:
            asyncio.get_running_loop().call_later(PACE_S, self._next_second)
        self._came[matters] += 1
        return self._came[matters] <= MAX_LINES

    def _next_second(self) -> None:
        left_out = sum(max(came - MAX_LINES, 0) for came in self._came.values())
        if left_out:
            self.writer.write(f"          +{left_out} more: see /slowtok/requests")
        self._came.clear()


def _engine_found(facts: Facts) -> tuple[str, ...]:
    version = f" {facts['version']}" if facts.get("version") else ""
    return (f"engine    {facts.get('url')} ({facts.get('kind')}{version}) found",)


def _engine_lost(facts: Facts) -> tuple[str, ...]:
    return (f"engine    {facts.get('url')} does not answer any more",)


def _engine_look_failed(facts: Facts) -> tuple[str, ...]:
    return (
        f"warning   looking at {facts['engine']} broke ({facts['error']}): a bug in slowtok;",
        "          slowtok keeps what it knew of the engine",
    )


def _internal_error(facts: Facts) -> tuple[str, ...]:
    error, at = facts.get("error") or "an error", facts.get("at")
    where = f" at {at}" if at else ""
    return (
        f"warning   something broke: {error}{where} ({facts['logger']});",
        "          a client that does not speak HTTP causes this, too;",
        "          otherwise it is a bug in slowtok",
    )


def _warning(facts: Facts) -> tuple[str, ...]:
    return (f"warning   {facts['said']}",)


def _export_failed(facts: Facts) -> tuple[str, ...]:
    kind = "metrics" if "metric" in facts["logger"] else "traces"
    return (
        f"warning   {kind} do not reach otlp_endpoint: look whether its receiver is up;",
        "          requests go on, and what is sent later arrives",
    )


def _engine_is_slowtok(facts: Facts) -> tuple[str, ...]:
    return (
        f"warning   {facts['url']} is another slowtok: name its engine instead, or",
        "          each request is timed twice, and kept in two logs",
    )


def _state_shared(facts: Facts) -> tuple[str, ...]:
    return (
        f"warning   {facts['state_dir']} is in use by another slowtok",
        f"          ({facts['by']}): lines of the log may get lost, and",
        "          neither learns from the other; --state-dir DIR keeps them apart",
    )


def _sampling_down(facts: Facts) -> tuple[str, ...]:
    return (
        "warning   readings of the machine are missing: diagnoses lack their evidence",
        f"          {facts['why']}",
    )


def _fast_path_off(facts: Facts) -> tuple[str, ...]:
    return (
        f"warning   {facts['library']} {facts['why']}:",
        "          streams are relayed the plain way, which costs more CPU time",
    )


def _ram_measured_busy(facts: Facts) -> tuple[str, ...]:
    rate = f"{facts['bytes_per_s'] / 1e9:.3g} GB/s"
    return (
        f"warning   RAM bandwidth {rate}, measured while other programs used the cores:",
        "          it may be too low; it is measured again once they rest",
    )


def _worker_died(facts: Facts) -> tuple[str, ...]:
    lost = counted(facts["requests"], "request")
    return (f"warning   a worker process died, and {lost} with it",)


def _stopping(facts: Facts) -> tuple[str, ...]:
    requests = counted(facts["requests"], "request")
    return (f"stopping  waiting for {requests}; press Ctrl-C again to stop at once",)


ONCE = frozenset({"internal-error", "export-failed"})
"""Events that repeat themselves: shown once for each place."""

_WORDS: Mapping[str, Callable[[Facts], tuple[str, ...]]] = {
    "engine-found": _engine_found,
    "engine-lost": _engine_lost,
    "engine-look-failed": _engine_look_failed,
    "internal-error": _internal_error,
    "warning": _warning,
    "export-failed": _export_failed,
    "engine-is-slowtok": _engine_is_slowtok,
    "state-shared": _state_shared,
    "sampling-down": _sampling_down,
    "fast-path-off": _fast_path_off,
    "ram-measured-busy": _ram_measured_busy,
    "worker-died": _worker_died,
    "stopping": _stopping,
}
"""What people want to see of what else happens, line by line."""
