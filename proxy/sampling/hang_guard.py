"""A reader of GPUs in a thread of its own: the sampling loop must not wait for a driver that hangs.

Strategy: the loop waits for an answer only briefly. While a reading does not return there are no
samples of these GPUs, and everything else goes on; what comes later is passed on with the next.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from slowtok.proxy.sampling.schedule import ALL, Extras

Values = dict[str, Any]
Job = Callable[[], list[Values]]

PATIENCE_S = 0.05
"""A quarter of the period of host samples."""

HUNG_S = 1.0
"""A reading that takes longer is reported. Heuristic."""


class GuardedDevices(Protocol):
    """GPUs that are read at once, however long it takes."""

    reason: str | None

    @property
    def facts(self) -> Sequence[Values] | None:
        """The facts of each GPU; None where nothing answers."""

    def __len__(self) -> int:
        """Return how many GPUs there are."""

    def sample(
        self, *, slow_tier: bool, servers: set[int] | None, extras: Extras = ALL
    ) -> list[Values]:
        """Return one line for each GPU."""

    def sample_idle(self, servers: set[int] | None) -> list[Values]:
        """Return one line for each GPU with what matters on an idle machine."""

    def counts(self) -> Values:
        """Return how many readings failed."""

    def look_s(self) -> float | None:
        """Return how soon `look` should be called after a reading; None where it need not be."""

    def look(self) -> None:
        """Look at what must not wait for the next reading."""


class PatientGpus:
    """Reads `devices`; `hung` is the reason that is given while a reading does not return.

    Not thread-safe: one caller at a time.
    """

    def __init__(
        self, devices: GuardedDevices, hung: str, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._devices = devices
        self._hung_reason = hung
        self._hung = 0
        self._patience_s = patience_s
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[list[Values] | Exception] = queue.SimpleQueue()
        self._waiting_since_s: float | None = None
        self._count = 0
        self._counts = devices.counts()
        self._facts: Sequence[Values] | None = None
        self._state: Values | None = None
        self._told: Values | None = None
        threading.Thread(target=self._work, name="gpus", daemon=True).start()

    def __len__(self) -> int:
        return self._count

    def changes(self) -> Values | None:
        """Return the line about the GPUs and why there are none, if it changed."""
        state = self._state
        if self._is_hung():
            state = {"kind": "gpus", "gpus": None, **(state or {}), "reason": self._hung_reason}
        if state is self._told or state == self._told:
            return None
        self._told = state
        return state

    def counts(self) -> Values:
        """Return how many readings failed, and how many did not return in time."""
        return {**self._counts, "gpu_hung": self._hung + self._is_hung()}

    def sample(
        self, *, slow_tier: bool, servers: set[int] | None, extras: Extras = ALL
    ) -> list[Values]:
        """Return one line for each GPU; `slow_tier` adds the 1 Hz tier and the processes."""
        return self._do(
            lambda: self._devices.sample(slow_tier=slow_tier, servers=servers, extras=extras)
        )

    def sample_idle(self, servers: set[int] | None) -> list[Values]:
        """Return memory and processes alone."""
        return self._do(lambda: self._devices.sample_idle(servers))

    def _is_hung(self) -> bool:
        since_s = self._waiting_since_s
        return since_s is not None and time.monotonic() - since_s > HUNG_S

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

    def _take(self, answer: list[Values] | Exception) -> list[Values]:
        # only now has the thread no job: it changes what is read here
        self._count, self._counts = len(self._devices), self._devices.counts()
        facts, reason = self._devices.facts, self._devices.reason
        if self._state is None or facts is not self._facts or reason != self._state["reason"]:
            self._facts = facts
            gpus = None if facts is None else list(facts)
            self._state = {"kind": "gpus", "gpus": gpus, "reason": reason}
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
