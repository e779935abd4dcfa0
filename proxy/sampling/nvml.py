"""NVIDIA GPUs for the sampling loop, which must not wait for a driver that hangs.

Strategy: all calls into the driver are made by one thread. The loop waits for its answer only
briefly; while a call does not return there are no GPU samples, and everything else goes on. What
comes later is passed on with the next samples.
"""

import queue
import threading
import time
from collections.abc import Callable

from slowtok.proxy.sampling.nvml_calls import Values
from slowtok.proxy.sampling.nvml_devices import Devices
from slowtok.proxy.sampling.nvml_library import is_wsl, load_wsl_library

PATIENCE_S = 0.05
"""A quarter of the period of host samples; all tiers of one GPU take about 5 ms."""

HUNG_S = 1.0
"""A call that takes longer is reported. No published source."""

HUNG = "a call into the NVIDIA driver does not return"

Job = Callable[[], list[Values]]


class Gpus:
    """All NVIDIA GPUs of this machine. Not thread-safe: one caller at a time."""

    def __init__(self, devices: Devices, *, patience_s: float = PATIENCE_S) -> None:
        self._devices = devices
        self._patience_s = patience_s
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[list[Values] | Exception] = queue.SimpleQueue()
        self._waiting_since_s: float | None = None
        self._count = 0
        self._state: Values | None = None
        self._told: Values | None = None
        self._counts: Values = {"gpu_errors": 0, "gpu_samples_stalled": 0}
        self._hung = 0
        threading.Thread(target=self._work, name="nvml", daemon=True).start()

    def __len__(self) -> int:
        return self._count

    def counts(self) -> Values:
        """Return what went wrong so far: failed calls, samples dropped, calls that hung."""
        return {**self._counts, "gpu_hung": self._hung + self._is_hung()}

    def news(self) -> Values | None:
        """Return the line about the GPUs and why there are none, if it changed."""
        state = self._state
        if self._is_hung():
            state = {"kind": "gpus", "gpus": None, **(state or {}), "reason": HUNG}
        if state == self._told:
            return None
        self._told = state
        return state

    def sample(self, *, dear: bool, servers: set[int] | None) -> list[Values]:
        """Return one line for each GPU; `dear` adds the 1 Hz tier and the processes.

        `servers` are the pids of the watched servers, None where pids cannot be matched.
        """
        return self._do(lambda: self._devices.sample(dear=dear, servers=servers))

    def sample_idle(self, servers: set[int] | None) -> list[Values]:
        """Return memory and processes alone: who holds the memory before the next load."""
        return self._do(lambda: self._devices.sample_idle(servers))

    def _do(self, job: Job) -> list[Values]:
        late = self._late()
        if late is None:
            return []
        self._jobs.put(job)
        try:
            answer = self._answers.get(timeout=self._patience_s)
        except queue.Empty:
            self._waiting_since_s = time.monotonic()
            return late
        return [*late, *self._take(answer)]

    def _late(self) -> list[Values] | None:
        """Return what the last job found if it was not waited for; None if it still runs."""
        if self._waiting_since_s is None:
            return []
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            return None
        self._hung += self._is_hung()
        self._waiting_since_s = None
        return self._take(answer)

    def _is_hung(self) -> bool:
        since_s = self._waiting_since_s
        return since_s is not None and time.monotonic() - since_s > HUNG_S

    def _take(self, answer: list[Values] | Exception) -> list[Values]:
        # only now has the thread no job: it changes what is read here
        self._count = len(self._devices)
        self._counts = self._devices.counts()
        self._state = {
            "kind": "gpus",
            "gpus": self._devices.facts,
            "reason": self._devices.reason,
        }
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _work(self) -> None:
        while True:
            answer: list[Values] | Exception
            try:
                answer = self._next_job()()
            except Exception as error:  # noqa: BLE001  the loop reports it
                answer = error
            self._answers.put(answer)

    def _next_job(self) -> Job:
        while True:
            try:
                return self._jobs.get(timeout=self._devices.look_s())
            except queue.Empty:
                pass
            try:
                self._devices.look()
            except Exception:
                self._jobs.get()  # the next job is answered with this
                raise


def open_gpus(process_name: Callable[[int], str | None]) -> Gpus | str:
    """Return the GPUs, or why this installation cannot look at any."""
    try:
        import pynvml  # noqa: PLC0415  costs 4 MiB, and need not be installed
    except ImportError:
        return "Python package nvidia-ml-py is not installed"
    load_wsl_library()
    return Gpus(Devices(pynvml, process_name, is_wsl=is_wsl()))
