"""The sampling process: commands come in on stdin, samples go out on stdout, as JSON lines.

    python -m slowtok.proxy.sampling [PID]

PID is slowtok's first process, from which all its others descend; without it the parent.

Strategy: a process of its own, because a thread beside a busy event loop waits for the
interpreter at every call. It imports little, holds to fixed rates, measures what it costs itself
and slows down when that is too much (`budget`), and ends when stdin closes, so that it never
outlives the proxy.

Commands: `{"ports": [8080], "active": true}` sets what is watched and how often;
`{"now": true}` asks for one sample at once: a request begins or ends.
Lines: `host_facts`, `gpus`, `process`, `host`, `gpu`, `edge`, `overhead`, `failed` (in their
`kind`); `edge` follows the samples that were asked for.
Times are `time.monotonic()`, which all processes of a machine share.
"""

import gc
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

from slowtok.proxy.sampling.budget import Budget, slowed
from slowtok.proxy.sampling.gpus import AllGpus, open_gpus
from slowtok.proxy.sampling.host.machine import SHORTEST_SPAN_S, Machine, make_machine
from slowtok.proxy.sampling.schedule import ALL, NEAR_S, Every, Extras, ExtrasDue

HOST_SLOW_S = 1.0
ACCOUNT_S = 1.0
IDLE_S = 2.0
OVERHEAD_S = 5.0
FACTS_S = 15.0
"""How often it is asked whether the machine's conditions changed: battery, profile, governor."""
EDGE_S = 0.25
"""At a request's edges the counters are read as well, but no more often than this: the slow tier
takes about 5 ms for each GPU, and many short requests have many edges. Heuristic."""
LAST_WORD_S = 2.0
"""How long the loop may take to end after stdin closed; a lost GPU can hang a call for good."""

Line = dict[str, Any]
Emit = Callable[[Iterable[Line]], None]

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


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
    """Takes each sample when it is due, and all of one moment go out together."""

    def __init__(self, machine: Machine, gpus: AllGpus, emit: Emit) -> None:
        self._machine = machine
        self._gpus = gpus
        self._emit = emit
        self._said: list[Line] = []
        self._active = False
        self._failures: set[str] = set()
        self._overhead = Overhead()
        self._budget = Budget()
        now_s = time.monotonic()
        self._accounted = (time.process_time(), now_s)
        self._edge_at_s = self._counted_at_s = 0.0
        self._facts = Every(FACTS_S, now_s + FACTS_S)
        self._report = Every(OVERHEAD_S, now_s + HOST_SLOW_S)
        self._account = Every(ACCOUNT_S, now_s)
        self._host, self._host_slow = Every(IDLE_S, now_s), Every(IDLE_S, now_s)
        self._gpu, self._counters = Every(IDLE_S, now_s), Every(IDLE_S, now_s)
        self._extras = ExtrasDue(self._budget.pace, now_s)

    def next_at_s(self) -> float:
        """Return when the next thing is due; the slow tiers ride along with the cheap ones."""
        return min(self._host.next_at_s, self._gpu.next_at_s, self._report.next_at_s)

    def obey(self, command: Line) -> None:
        """Carry out one command; watching or waking up begins with a sample at once."""
        if command.get("now"):
            self._sample_edge()
            return
        if "ports" in command:
            self._machine.watch([int(port) for port in command["ports"]])
        now_s = time.monotonic()
        if self._spend(now_s):
            self._extras.keep_to(self._budget.pace, now_s)
        self._active = bool(command.get("active", self._active))
        self._extras.begin(now_s)
        self._machine.begin()
        self._restart(now_s)

    def tick(self) -> None:
        """Take whatever is due now."""
        begun_s = time.perf_counter()
        now_s = time.monotonic()
        host_due, gpu_due = self._host.due(now_s), self._gpu.due(now_s)
        if host_due:
            slow_tier = self._host_slow.due(now_s + NEAR_S)
            self._attempt("host", lambda: self._sample_host(slow_tier=slow_tier))
        if gpu_due:
            counters = self._counters.due(now_s + NEAR_S)
            extras = self._extras.take(now_s, slow_tier=counters) if self._active else ALL
            self._attempt("gpu", lambda: self._sample_gpus(counters, extras))
        if self._facts.due(now_s):
            self._attempt("facts", self._tell_facts)
        if host_due or gpu_due:
            self._overhead.add(time.perf_counter() - begun_s)
        if self._report.due(now_s):
            self._said.append(self._cost())
        if self._account.due(now_s) and self._spend(now_s):
            self._extras.keep_to(self._budget.pace, now_s)
            self._restart(now_s)
        self._tell()

    def _cost(self) -> Line:
        line = self._overhead.line(self._host.missed + self._gpu.missed) | self._gpus.counts()
        return line | {"slowed": slowed(self._budget.pace)}

    def _spend(self, now_s: float) -> bool:
        """Account for the time since the last call; say whether the pace has changed."""
        cpu_s, (cpu_before_s, before_s) = time.process_time(), self._accounted
        self._accounted = (cpu_s, now_s)
        return self._active and self._budget.spend(cpu_s - cpu_before_s, now_s - before_s)

    def _restart(self, now_s: float) -> None:
        pace = self._budget.pace
        self._host.restart(pace.host_s if self._active else IDLE_S, now_s)
        self._host_slow.restart(HOST_SLOW_S if self._active else IDLE_S, now_s)
        self._gpu.restart(self._gpu_period_s(), now_s)
        self._counters.restart(pace.counters_s if self._active else IDLE_S, now_s)

    def _sample_edge(self) -> None:
        now_s = time.monotonic()
        if now_s - self._edge_at_s > SHORTEST_SPAN_S:
            self._edge_at_s = now_s
            counters = now_s - self._counted_at_s > EDGE_S
            extras = (
                self._extras.at_edge(now_s)
                if counters
                else self._extras.take(now_s, slow_tier=False)
            )
            self._attempt("gpu", lambda: self._sample_gpus(counters, extras))
            since_last_s = self._machine.since_last_s()
            if since_last_s is None or since_last_s > SHORTEST_SPAN_S:
                self._attempt("host", lambda: self._sample_host(slow_tier=False))
        self._said.append({"kind": "edge", "at_s": self._edge_at_s})
        self._tell()

    def _gpu_period_s(self) -> float:
        # without a GPU to look at there is no reason to wake up ten times a second
        return self._budget.pace.gpu_s if self._active and len(self._gpus) > 0 else IDLE_S

    def _tell_facts(self) -> None:
        changes = self._machine.changes()
        if changes is not None:
            self._said.append(changes)

    def _sample_host(self, *, slow_tier: bool) -> None:
        others_s = self._budget.pace.others_s if self._active else None
        self._said += self._machine.sample(slow_tier=slow_tier, others_s=others_s)

    def _sample_gpus(self, counters: bool, extras: Extras) -> None:
        servers = self._machine.server_pids()
        if self._active:
            self._counted_at_s = time.monotonic() if counters else self._counted_at_s
            lines = self._gpus.sample(slow_tier=counters, servers=servers, extras=extras)
        else:
            lines = self._gpus.sample_idle(servers)
        self._machine.doubt(lines)
        changes = self._gpus.changes()
        if changes is not None:  # there may be GPUs now that there were not, or the other way round
            lines = [changes, *lines]
            now_s = time.monotonic()
            self._gpu.restart(self._gpu_period_s(), now_s + self._budget.pace.gpu_s)
            self._accounted = (
                time.process_time(),
                now_s,
            )  # opening them is expensive, and done once
        self._said += lines

    def _attempt(self, where: str, sample: Callable[[], None]) -> None:
        try:
            sample()
        except Exception as error:  # noqa: BLE001  one sensor's fault must not end the others
            self._fail(where, error)

    def _fail(self, where: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text not in self._failures and len(self._failures) < 100:
            self._failures.add(text)
            self._said.append({"kind": "failed", "where": where, "error": text})

    def _tell(self) -> None:
        lines, self._said = self._said, []
        self._emit(lines)


def make_emit(out: BinaryIO) -> Emit:
    """Return a function that writes lines at once; fields that are not known are left out."""

    def emit(lines: Iterable[Line]) -> None:
        text = "".join(_encode(_compact(line)) + "\n" for line in lines)
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


def next_command(commands: "queue.SimpleQueue[Line | None]", until_s: float) -> Line | None:
    """Wait for a command; an empty one says that it is time for the next tick."""
    try:
        return commands.get(timeout=max(until_s - time.monotonic(), 0.0))
    except queue.Empty:
        return {}


def run(loop: Loop, commands: "queue.SimpleQueue[Line | None]") -> None:
    """Sample until the commands end. Nothing is sampled before the first one."""
    command = commands.get()
    while command is not None:
        if command:
            loop.obey(command)
        loop.tick()
        command = next_command(commands, loop.next_at_s())


def main() -> None:
    """Run until stdin closes."""
    # What a terminal sends goes to all in it; the proxy decides when this process ends.
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    commands: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(sys.stdin.buffer, commands), daemon=True).start()
    emit = make_emit(sys.stdout.buffer)
    try:
        machine, process_name = make_machine(int(sys.argv[1]) if sys.argv[1:] else os.getppid())
        facts = machine.changes() or {}
        emit([facts])
        gpus = open_gpus(process_name, private_pids=facts.get("private_pids"))
        gc.freeze()  # what is there now stays: not to be looked through again and again
        run(Loop(machine, gpus, emit), commands)
    except BrokenPipeError:
        pass  # the proxy has gone
    except Exception:  # noqa: BLE001  its last words are the proxy's to tell
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)  # an orderly end would wait for the lock of stdin, which the thread holds


if __name__ == "__main__":
    main()
