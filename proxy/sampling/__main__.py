"""The sampling process: commands come in on stdin, samples go out on stdout, as JSON lines.

Strategy: a process of its own, because a thread beside a busy event loop waits for the
interpreter at every call. It imports little, holds to fixed rates, measures what it costs itself,
and ends when stdin closes, so that it never outlives the proxy.

Commands: `{"ports": [8080], "active": true}` sets what is watched and how often;
`{"now": true}` asks for one sample at once.
Lines: `host_facts`, `gpus`, `process`, `host`, `gpu`, `overhead`, `failed` (in their `kind`).
Times are `time.monotonic()`, which all processes of a machine share.
"""

import json
import os
import queue
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from slowtok.proxy.sampling.machine import SHORTEST_SPAN_S, Machine, make_machine
from slowtok.proxy.sampling.nvml import Gpus, open_gpus
from slowtok.proxy.sampling.schedule import Every

HOST_S = 0.2
"""Period of host samples while active: a decode of 2 s has ten, each of twenty clock ticks."""
GPU_S = 0.1
DEAR_S = 1.0
IDLE_S = 2.0
OVERHEAD_S = 5.0
LAST_WORD_S = 2.0
"""How long the loop may take to end after stdin closed; a lost GPU can hang a call for good."""

Line = dict[str, Any]
Emit = Callable[[Iterable[Line]], None]


class Overhead:
    """What the sampling itself costs: CPU of this process and time per tick."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()
        self._ticks_s: list[float] = []

    def add(self, tick_s: float) -> None:
        """Note what one tick took."""
        self._ticks_s.append(tick_s)

    def line(self, missed: int) -> Line:
        """Return the line about the time since the last one. `cpu_ratio` is of one core."""
        wall_s, cpu_s = time.monotonic(), time.process_time()
        elapsed_s = max(wall_s - self._wall_s, 1e-9)
        ticks_s, self._ticks_s = self._ticks_s, []
        line = {
            "kind": "overhead",
            "cpu_ratio": (cpu_s - self._cpu_s) / elapsed_s,
            "tick_p50_s": statistics.median(ticks_s) if ticks_s else None,
            "tick_max_s": max(ticks_s, default=None),
            "missed_ticks": missed,
        }
        self._wall_s, self._cpu_s = wall_s, cpu_s
        return line


class Loop:
    """Takes each sample when it is due."""

    def __init__(self, machine: Machine, gpus: Gpus | str, emit: Emit) -> None:
        self._machine = machine
        self._gpus = gpus
        self._emit = emit
        self._active = False
        self._failures: set[str] = set()
        self._overhead = Overhead()
        now_s = time.monotonic()
        self._host, self._gpu = Every(IDLE_S, now_s), Every(IDLE_S, now_s)
        self._dear, self._report = Every(IDLE_S, now_s), Every(OVERHEAD_S, now_s + OVERHEAD_S)
        if isinstance(gpus, str):
            emit([{"kind": "gpus", "gpus": None, "reason": gpus}])

    def next_at_s(self) -> float:
        """Return when the next thing is due."""
        tiers = [self._host, self._dear, self._report]
        if isinstance(self._gpus, Gpus):
            tiers.append(self._gpu)
        return min(tier.next_at_s for tier in tiers)

    def obey(self, command: Line) -> None:
        """Carry out one command; watching or waking up begins with a sample at once."""
        if "ports" in command:
            self._machine.watch([int(port) for port in command["ports"]])
        if "active" in command:
            self._active = bool(command["active"])
        since_last_s = self._machine.since_last_s()
        if command.get("now") and (since_last_s or 0.0) < SHORTEST_SPAN_S:
            return
        if command.get("now"):
            self._tick_host(dear=False)
            return
        now_s = time.monotonic()
        self._host.restart(HOST_S if self._active else IDLE_S, now_s)
        self._gpu.restart(self._gpu_period_s(), now_s)
        self._dear.restart(DEAR_S if self._active else IDLE_S, now_s)

    def tick(self) -> None:
        """Take whatever is due now."""
        begun_s = time.perf_counter()
        now_s = time.monotonic()
        dear = self._dear.due(now_s)
        if self._host.due(now_s) or dear:
            self._tick_host(dear=dear)
        if isinstance(self._gpus, Gpus) and (self._gpu.due(now_s) or dear):
            self._tick_gpus(self._gpus, dear=dear)
        self._overhead.add(time.perf_counter() - begun_s)
        if self._report.due(now_s):
            missed = self._host.missed + self._gpu.missed
            self._emit([self._overhead.line(missed)])

    def _gpu_period_s(self) -> float:
        # without a GPU to look at there is no reason to wake up ten times a second
        fast = self._active and isinstance(self._gpus, Gpus) and len(self._gpus) > 0
        return GPU_S if fast else IDLE_S

    def _tick_host(self, *, dear: bool) -> None:
        try:
            self._emit(self._machine.sample(dear=dear))
        except BrokenPipeError:
            raise
        except Exception as error:  # one sensor's fault must not end the others
            self._fail("host", error)

    def _tick_gpus(self, gpus: Gpus, *, dear: bool) -> None:
        try:
            servers = self._machine.server_pids()
            if self._active:
                lines = gpus.sample(dear=dear, servers=servers)
            else:
                lines = gpus.sample_idle(servers)
            news = gpus.news()
            if news is not None:
                lines = [news, *lines]
                self._gpu.restart(self._gpu_period_s(), time.monotonic() + GPU_S)
            self._emit(lines)
        except BrokenPipeError:
            raise
        except Exception as error:  # one sensor's fault must not end the others
            self._fail("gpu", error)

    def _fail(self, where: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text not in self._failures and len(self._failures) < 100:
            self._failures.add(text)
            self._emit([{"kind": "failed", "where": where, "error": text}])


def make_emit(out: BinaryIO) -> Emit:
    """Return a function that writes lines at once; fields that are not known are left out."""

    def emit(lines: Iterable[Line]) -> None:
        text = "".join(json.dumps(_compact(line), separators=(",", ":")) + "\n" for line in lines)
        if text:
            out.write(text.encode())
            out.flush()

    return emit


def _compact(line: Line) -> Line:
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in line.items()
        if value is not None
    }


def read_commands(source: BinaryIO, commands: "queue.SimpleQueue[Line | None]") -> None:
    """Pass on each command, and None at the end; a line that is not one is skipped."""
    for text in source:
        try:
            command = json.loads(text)
        except ValueError:
            continue
        if isinstance(command, dict):
            commands.put(command)
    commands.put(None)
    time.sleep(LAST_WORD_S)
    os._exit(0)


def run(loop: Loop, commands: "queue.SimpleQueue[Line | None]") -> None:
    """Sample until the commands end. Nothing is sampled before the first one."""
    command = commands.get()
    while command is not None:
        loop.obey(command)
        while command is not None:
            loop.tick()
            wait_s = max(loop.next_at_s() - time.monotonic(), 0.0)
            try:
                command = commands.get(timeout=wait_s)
                break
            except queue.Empty:
                continue


def main() -> None:
    """Run until stdin closes."""
    # Ctrl-C goes to the whole foreground group; the proxy decides when this process ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    commands: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(sys.stdin.buffer, commands), daemon=True).start()
    machine, facts, process_name = make_machine()
    emit = make_emit(sys.stdout.buffer)
    try:
        emit([facts])
        run(Loop(machine, open_gpus(process_name), emit), commands)
    except BrokenPipeError:
        pass  # the proxy has gone
    sys.stdout = None  # type: ignore[assignment]  # nothing to flush into a closed pipe at exit
    os._exit(0)


if __name__ == "__main__":
    main()
