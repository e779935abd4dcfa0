"""The proxy's side of sampling: keeps the sampling process alive and keeps what it says.

Strategy: one task runs one process after the other. Nothing that happens to the process reaches a
caller: it costs its samples, is counted, and a new one is started after a pause.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import orjson

from slowtok.detectors.case.machine import DeviceFacts, GpuSample, HostSample
from slowtok.proxy.sampling.host.redaction import keyless
from slowtok.proxy.sampling.protocol import EdgeLine, HostLine, ProcessFacts
from slowtok.proxy.sampling.readings import Readings

COMMAND = (sys.executable, "-P", "-m", "slowtok.proxy.sampling")
"""-P: a json.py in the folder that the proxy was started in must not become ours."""

LINGER_S = 1.0
"""Sampling stays fast this long after the last request: what follows a request is evidence too."""

SILENCE_S = 5.0
"""A process that writes nothing for this long hangs: even an idle one writes every 2 s."""

SILENT_TICKS = 5
"""The silence is waited for in so many parts: where this machine slept meanwhile, or all of slowtok
was stopped, only one of them is over at once."""

START_S = 20.0
"""The first line may take longer: starting Python on a machine that swaps does."""

PAUSE_S = (0.5, 10.0)
HEALTHY_S = 30.0
"""After a life this long the next pause is the shortest again. Heuristic."""

SHORT_LIVES = 2
"""So many in a row are told: one that was killed and is there again costs nothing to speak of."""

STOP_S = 1.0
LINE_LIMIT_BYTES = 1 << 20

FRESH_S = 0.05
"""The sampling process takes no two samples closer than this: one this new is new enough."""


class Sampler:
    """Samples of this machine, of its GPUs and of the servers behind some ports.

    `own_pid` is slowtok's first process, where that is another than this one.
    `on_failure` is called once, with the reason, when a process ends again and again.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = COMMAND,
        own_pid: int | None = None,
        silence_s: float = SILENCE_S,
        start_s: float = START_S,
        pause_s: tuple[float, float] = PAUSE_S,
        linger_s: float = LINGER_S,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._command = tuple(command) if own_pid is None else (*command, str(own_pid))
        self._silence_s, self._start_s = silence_s, start_s
        self._shortest_pause_s, self._longest_pause_s = pause_s
        self._linger_s = linger_s
        self._on_failure = on_failure
        self._readings = Readings()
        self._ports: tuple[int, ...] = ()
        self._active = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._asked_at_s = self._edge_at_s = 0.0
        self._waiting: list[tuple[float, asyncio.Future[None]]] = []
        self._restarts = self._short_lives = 0
        self._last_end: str | None = None
        self._last_words: str | None = None
        self._is_sampling = False

    async def start(self) -> None:
        """Begin; returns at once, samples follow when the process is up."""
        if self._task is None:
            self._task = asyncio.create_task(self._keep_running(), name="sampler")

    async def stop(self) -> None:
        """End the process and leave none behind."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def watch(self, ports: Sequence[int]) -> None:
        """Follow the servers behind these local ports, and no others."""
        if tuple(ports) != self._ports:
            self._ports = tuple(ports)
            self._readings.forget_other_ports(self._ports)
            self._send_state()

    def set_active(self, active: bool, *, edge: bool = True) -> None:
        """Say that a request begins, or that none is in flight any more.

        Samples are dense while any is, and for a while after. A beginning has its own sample, with
        the counters as they are then, unless it is no `edge`, one of many.
        """
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if active and not self._active:
            self._active = True
            self._send_state()
        elif active:
            if edge:
                self._ask()
        elif self._active:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._linger_s, self._go_idle)

    async def wait_for_fresh_sample(self, timeout_s: float = 0.1) -> bool:
        """Ask for a sample of this moment; False when none came in time.

        For the end of a request: the last regular sample may be up to 0.2 s old, what is counted
        on a GPU up to 1 s.
        """
        wanted_at_s = time.monotonic() - FRESH_S
        if self._edge_at_s >= wanted_at_s:
            return True
        arrival = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted_at_s, arrival))
        self._ask()
        try:
            async with asyncio.timeout(timeout_s):
                await arrival
        except TimeoutError:
            return False
        finally:
            self._waiting = [wait for wait in self._waiting if wait[1] is not arrival]
        return True

    def host_window(self, port: int | None, from_s: float, to_s: float) -> tuple[HostSample, ...]:
        """Return the host samples whose span touches the window, oldest first.

        `port` must be watched; None gives what was sampled while no port was.
        """
        return self._readings.host_window(port, from_s, to_s)

    def gpu_window(self, from_s: float, to_s: float) -> tuple[GpuSample, ...]:
        """Return the samples of all GPUs taken inside the window, oldest first."""
        return self._readings.gpus.window(from_s, to_s)

    def device(self) -> DeviceFacts:
        """Return the machine's facts as far as they are known; without RAM bandwidth."""
        return self._readings.device

    @property
    def gpus_reason(self) -> str | None:
        """Why there are no samples of GPUs, or not of all; None where there are."""
        return self._readings.gpus_reason

    def process(self, port: int) -> ProcessFacts | None:
        """Return what is known about the process behind a port; None before the first look."""
        return self._readings.processes.get(port)

    @property
    def failure(self) -> str | None:
        """Why nothing is read, in words; None where samples come or may still be coming."""
        if self._is_sampling or self._last_end is None:
            return None
        words = self._last_words  # the one that is starting now has said nothing yet
        said = self._last_end if words is None else f"{self._last_end}: {words}"
        return f"the sampling process does not run ({said})"

    def not_visible(self) -> list[dict[str, str]]:
        """Return what sampling that had to be slowed or does not run leaves unseen, and why."""
        hidden = self._readings.not_visible()
        if (why := self.failure) is not None:
            hidden.append({"fact": "this machine, its GPUs and the engines' processes", "why": why})
        return hidden

    def status(self) -> dict[str, Any]:
        """Return how sampling itself fares: alive, restarts, cost, unreadable lines, no-GPU."""
        return {
            "alive": self._process is not None,
            "pid": None if self._process is None else self._process.pid,
            "active": self._active,
            "restarts": self._restarts,
            "last_end": self._last_end,
            **self._readings.status(),
        }

    def _go_idle(self) -> None:
        self._idle_timer = None
        self._active = False
        self._send_state()

    def _ask(self) -> None:
        now_s = time.monotonic()
        if now_s - self._asked_at_s > FRESH_S:  # else an answer that is new enough is on its way
            self._asked_at_s = now_s
            self._send({"now": True})

    def _send_state(self) -> None:
        self._send({"ports": self._ports, "active": self._active})

    def _send(self, command: dict[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            return  # the next process is told the whole state when it starts
        process.stdin.write(orjson.dumps(command) + b"\n")

    async def _keep_running(self) -> None:
        pause_s = self._shortest_pause_s
        while True:
            began_s = time.monotonic()
            try:
                self._last_end = await self._run_once()
            except Exception as error:  # noqa: BLE001  nothing may end the supervision
                self._last_end = f"{type(error).__name__}: {error}"
            self._note_end(time.monotonic() - began_s)
            if not self._short_lives:
                pause_s = self._shortest_pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._longest_pause_s)
            self._restarts += 1

    def _note_end(self, lived_s: float) -> None:
        self._is_sampling = False
        self._last_words = self._readings.last_words
        self._short_lives = self._short_lives + 1 if lived_s <= HEALTHY_S else 0
        if self._short_lives == SHORT_LIVES:
            self._on_failure(self.failure or "")

    async def _run_once(self) -> str:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=keyless(os.environ),
            stderr=asyncio.subprocess.STDOUT,  # its last words are counted and kept as a bad line
            limit=LINE_LIMIT_BYTES,
        )
        self._process = process
        self._readings.begin()
        try:
            self._send_state()
            return await self._read_lines(process)
        finally:
            self._process = None
            await _end(process)

    async def _read_lines(self, process: asyncio.subprocess.Process) -> str:
        stdout = cast(asyncio.StreamReader, process.stdout)  # a pipe was asked for
        limit_s, silent_ticks = self._start_s, 0
        while True:
            try:
                async with asyncio.timeout(limit_s / SILENT_TICKS):
                    text = await stdout.readline()
            except TimeoutError:
                silent_ticks += 1
                if silent_ticks >= SILENT_TICKS:
                    return f"silent for {limit_s:g} s"
                continue
            except ValueError:  # longer than the limit; the reader has thrown it away
                self._readings.count_bad_line("a line over the size limit")
                continue
            if not text:
                return f"ended with code {await process.wait()}"
            limit_s, silent_ticks = self._silence_s, 0
            self._take(text)

    def _take(self, text: bytes) -> None:
        line = self._readings.take(text)
        self._is_sampling = self._is_sampling or isinstance(line, HostLine)
        if isinstance(line, EdgeLine):
            self._edge_at_s = line.at_s
            for wanted_at_s, arrival in self._waiting:
                if self._edge_at_s >= wanted_at_s and not arrival.done():
                    arrival.set_result(None)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close its stdin, which ends it; kill it when that is not enough."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
