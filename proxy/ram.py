"""The bandwidth of this machine's RAM: measured once, kept in the state directory.

The measurement takes all cores for a second, so it waits for a moment without requests, gives way
as soon as one comes, and prefers idle cores: measured beside other work, the number is used but
measured again at the next start.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import orjson

from slowtok.proxy.state_file import replace_file

COMMAND = (sys.executable, "-P", "-m", "slowtok.proxy.sampling.ram_bandwidth")
QUIET_CHECK_S = 0.2
LIMIT_S = 20.0
MAX_AGE_S = 90 * 86400.0  # memory gets exchanged
PATIENCE_S = 30.0  # how long idle cores are waited for


class RamBandwidth:
    """Knows the bandwidth, or measures it when nobody is waiting."""

    def __init__(
        self, path: Path, *, is_quiet: Callable[[], bool], is_idle: Callable[[], bool]
    ) -> None:
        self._path = path
        self._is_quiet = is_quiet  # no request is on its way
        self._is_idle = is_idle  # and nothing else keeps the cores busy
        self._task: asyncio.Task[None] | None = None
        self.bytes_per_s = _read(path)
        self.failure: str | None = None

    def start(self) -> None:
        """Begin to measure unless the number is known."""
        if self.bytes_per_s is None:
            self._task = asyncio.create_task(self._measure())

    async def stop(self) -> None:
        """Stop, without a process left behind."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _measure(self) -> None:
        began_s = time.monotonic()
        while True:
            idle = self._is_idle()
            if self._is_quiet() and (idle or time.monotonic() - began_s > PATIENCE_S):
                line = await self._try_once()
                if line is not None:
                    self._take(line, keep=idle)
                    return
            await asyncio.sleep(QUIET_CHECK_S)

    async def _try_once(self) -> bytes | None:
        """Run the measurement and return its line; None when a request came in between."""
        try:
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the proxy, which ends the measurement
            )
        except OSError:
            return b""
        reading = asyncio.ensure_future(process.communicate())
        began_s = time.monotonic()
        try:
            while not reading.done():
                if not self._is_quiet():
                    return None
                if time.monotonic() - began_s > LIMIT_S:
                    return b""
                await asyncio.wait({reading}, timeout=QUIET_CHECK_S)
            return reading.result()[0]
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
            await asyncio.gather(reading, return_exceptions=True)

    def _take(self, line: bytes, *, keep: bool) -> None:
        try:
            measured = orjson.loads(line).get("bytes_per_s")
            self.bytes_per_s = float(measured)
        except (ValueError, TypeError, AttributeError):
            self.failure = "RAM bandwidth could not be measured"
            return
        if not keep:
            return
        with suppress(OSError):  # measured again at the next start
            kept = {"bytes_per_s": self.bytes_per_s, "measured_unix_s": time.time()}
            replace_file(self._path, orjson.dumps(kept))


def _read(path: Path) -> float | None:
    try:
        kept = orjson.loads(path.read_bytes())
        fresh = time.time() - float(kept["measured_unix_s"]) < MAX_AGE_S
        return float(kept["bytes_per_s"]) if fresh else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
