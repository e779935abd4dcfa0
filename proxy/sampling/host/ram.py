"""The bandwidth of this machine's RAM: as the user gave it, or measured and kept.

The measurement takes the cores for half a second, so it waits for a moment without requests, gives
way as soon as one comes, and goes on in the next such moment: what it had found by then counts. It
prefers idle cores, because other work takes bandwidth away. So whatever is measured is the least
that the RAM can do: the most of all that was seen counts, a decode that read faster too.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import orjson

from slowtok.detectors.case.value import frozen_dataclass
from slowtok.proxy.runtime.state_dir import replace_file
from slowtok.proxy.sampling.host.redaction import keyless

COMMAND = (sys.executable, "-P", "-m", "slowtok.proxy.sampling.host.ram_bandwidth")
FILE = "ram.json"
ENOUGH_WINDOWS = 5  # of 0.1 s on idle cores; then nothing more is to be expected
QUIET_CHECK_S = 0.2
GIVE_WAY_S = 0.02  # a request that comes meanwhile shares the cores no longer than this
MAX_PAUSE_S = 10.0  # where requests come again and again before anything was found
FAILED_PAUSE_S = 60.0  # memory may be free by then
LIMIT_S = 20.0
MAX_AGE_S = 90 * 86400.0  # memory gets exchanged
PATIENCE_S = 5.0  # how long idle cores are waited for where nothing is known yet
NOTABLE_RATIO = 1.02  # a decode that was faster by less is not worth a write

BESIDE_OTHERS = "measured while other programs used the cores"

Source = Literal["given", "measured"]


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept: the most that was seen, and in how many windows on idle cores."""

    bytes_per_s: float
    measured_unix_s: float
    windows: int = ENOUGH_WINDOWS


class RamBandwidth:
    """Knows the bandwidth, or measures it when nobody is waiting.

    What is given is not measured. `on_busy` gets the number where it was first measured beside
    other work.
    """

    def __init__(
        self,
        state_path: Path,
        *,
        given_bytes_per_s: float | None = None,
        is_quiet: Callable[[], bool],
        is_idle: Callable[[], bool],
        on_busy: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._path = state_path / FILE
        self._given_bytes_per_s = given_bytes_per_s
        self._is_quiet = is_quiet  # no request is on its way
        self._is_idle = is_idle  # and nothing else keeps the cores busy
        self._on_busy = on_busy
        self._task: asyncio.Task[None] | None = None
        self._reaping: asyncio.Future[Any] | None = None
        self._kept = None if given_bytes_per_s is not None else _read(self._path)
        self.failure: str | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """The bandwidth; None where it is not known yet."""
        if self._given_bytes_per_s is not None:
            return self._given_bytes_per_s
        return None if self._kept is None else self._kept.bytes_per_s

    @property
    def source(self) -> Source | None:
        """Return how it is known: given or measured; None where it is not known yet."""
        if self._given_bytes_per_s is not None:
            return "given"
        return None if self._kept is None else "measured"

    @property
    def is_beside_others(self) -> bool:
        """Return True if all that was measured is of a machine that others kept busy."""
        return self._kept is not None and self._kept.windows == 0

    def start(self) -> None:
        """Begin to measure unless the number is known."""
        if self._given_bytes_per_s is None and not self._is_measured_enough():
            self._task = asyncio.create_task(self._measure())

    async def stop(self) -> None:
        """Stop, without a process left behind."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._reaping is not None:
            await self._reaping

    def note_read(self, bytes_per_s: float) -> None:
        """Raise what was measured: a decode has read this fast."""
        kept = self._kept
        if kept is not None and bytes_per_s > NOTABLE_RATIO * kept.bytes_per_s:
            self._keep(bytes_per_s, windows=kept.windows)

    def _is_measured_enough(self) -> bool:
        return self._kept is not None and self._kept.windows >= ENOUGH_WINDOWS

    async def _measure(self) -> None:
        began_s, pause_s = time.monotonic(), QUIET_CHECK_S
        while not self._is_measured_enough():
            idle = self._is_idle()
            out_of_patience = time.monotonic() - began_s > PATIENCE_S
            if self._is_quiet() and (idle or (out_of_patience and self._kept is None)):
                found = await self._try_once(beside_others=not idle)
                if self.failure:
                    pause_s = FAILED_PAUSE_S
                else:
                    pause_s = QUIET_CHECK_S if found else min(2 * pause_s, MAX_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _try_once(self, *, beside_others: bool) -> bool:
        """Measure until a request comes. Returns True if anything was found."""
        self.failure = None
        try:
            process = await _start()
        except OSError as error:
            self.failure = f"RAM bandwidth could not be measured: {error.strerror}"
            return False
        reading = asyncio.ensure_future(self._take_lines(process, beside_others=beside_others))
        began_s = time.monotonic()
        try:
            while not reading.done():
                if not self._is_quiet():
                    break
                if time.monotonic() - began_s > LIMIT_S:
                    self.failure = "RAM bandwidth could not be measured: it took too long"
                    break
                await asyncio.wait({reading}, timeout=GIVE_WAY_S)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
            ended = reading.done()
            both = asyncio.gather(reading, process.wait(), return_exceptions=True)
            self._reaping = both
            await asyncio.shield(both)
        found = reading.result()
        if ended and not found and self.failure is None:
            self.failure = "RAM bandwidth could not be measured"
        return found > 0

    async def _take_lines(self, process: asyncio.subprocess.Process, *, beside_others: bool) -> int:
        """Use each window as it comes; return how many there were."""
        found = 0
        while process.stdout is not None and (line := await process.stdout.readline()):
            told = _parsed(line)
            if isinstance(rate := told.get("bytes_per_s"), float | int) and rate > 0:
                found += 1
                self._take(float(rate), beside_others=beside_others)
            elif isinstance(why := told.get("failure"), str):
                self.failure = f"RAM bandwidth could not be measured: {why}"
        return found

    def _take(self, measured: float, *, beside_others: bool) -> None:
        """Use what a window showed."""
        kept, first = self._kept, self._kept is None
        most = max(measured, kept.bytes_per_s) if kept else measured
        windows = (kept.windows if kept else 0) + (not beside_others)
        self._keep(most, windows=windows)
        if first and beside_others:
            self._on_busy(measured)

    def _keep(self, bytes_per_s: float, *, windows: int) -> None:
        """Remember it; the file's age is that of the first measurement."""
        since = self._kept.measured_unix_s if self._kept else time.time()
        self._kept = Kept(bytes_per_s=bytes_per_s, measured_unix_s=since, windows=windows)
        with suppress(OSError):  # measured again at the next start
            replace_file(self._path, orjson.dumps(self._kept))


def kept_bytes_per_s(state_path: Path) -> float | None:
    """Return what an earlier slowtok has measured; None where none has."""
    kept = _read(state_path / FILE)
    return None if kept is None else kept.bytes_per_s


async def _start() -> asyncio.subprocess.Process:
    """Start a measurement; one that was given up meanwhile is not left behind."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *COMMAND,
            env=keyless(os.environ),
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the proxy, which ends the measurement
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(OSError):  # it could not be started, or has ended by itself
            process = await starting
            process.kill()
            await process.communicate()
        raise


def _parsed(line: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        told = orjson.loads(line)
        return told if isinstance(told, dict) else {}
    return {}


def _read(path: Path) -> Kept | None:
    try:
        told = orjson.loads(path.read_bytes())
        kept = Kept(
            bytes_per_s=float(told["bytes_per_s"]),
            measured_unix_s=float(told["measured_unix_s"]),
            windows=int(told.get("windows", ENOUGH_WINDOWS)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return kept if time.time() - kept.measured_unix_s < MAX_AGE_S else None
