"""The bandwidth of this machine's RAM: measured once, kept in the state directory.

The measurement takes all cores for a second, so it waits for a moment without requests, gives way
as soon as one comes, and prefers idle cores: measured beside other work, the number may be too
low. It is used and told as such, but not kept, and measured again once the cores rest.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import orjson

from slowtok.proxy.sampling.redaction import keyless
from slowtok.proxy.state_file import replace_file

COMMAND = (sys.executable, "-P", "-m", "slowtok.proxy.sampling.ram_bandwidth")
QUIET_CHECK_S = 0.2
GIVE_WAY_S = 0.02  # a request that comes meanwhile shares the cores no longer than this
MAX_PAUSE_S = 60.0  # where requests keep coming each try is in somebody's way. No published source
LIMIT_S = 20.0
MAX_AGE_S = 90 * 86400.0  # memory gets exchanged
PATIENCE_S = 30.0  # how long idle cores are waited for

BESIDE_OTHERS = "measured while other programs used the cores"


class RamBandwidth:
    """Knows the bandwidth, or measures it when nobody is waiting.

    `tell` is told the number where it was measured beside other work.
    """

    def __init__(
        self,
        path: Path,
        *,
        is_quiet: Callable[[], bool],
        is_idle: Callable[[], bool],
        tell: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._is_quiet = is_quiet  # no request is on its way
        self._is_idle = is_idle  # and nothing else keeps the cores busy
        self._tell = tell
        self._task: asyncio.Task[None] | None = None
        self.bytes_per_s = _read(path)
        self.is_beside_others = False  # the number is of a machine that others kept busy
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
        began_s, pause_s = time.monotonic(), QUIET_CHECK_S
        while self.bytes_per_s is None or self.is_beside_others:
            idle = self._is_idle()
            out_of_patience = time.monotonic() - began_s > PATIENCE_S
            if self._is_quiet() and (idle or (out_of_patience and self.bytes_per_s is None)):
                line = await self._try_once()
                if line is None:
                    pause_s = min(2 * pause_s, MAX_PAUSE_S)
                elif not self._take(line, beside_others=not idle):
                    return
            await asyncio.sleep(pause_s)

    async def _try_once(self) -> bytes | None:
        """Run the measurement and return its line; None when a request came in between."""
        try:
            process = await _start()
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
                await asyncio.wait({reading}, timeout=GIVE_WAY_S)
            return reading.result()[0]
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
            await asyncio.gather(reading, return_exceptions=True)

    def _take(self, line: bytes, *, beside_others: bool) -> bool:
        """Use what was measured; False where it is no number."""
        try:
            measured = float(orjson.loads(line).get("bytes_per_s"))
        except (ValueError, TypeError, AttributeError):
            self.failure = "RAM bandwidth could not be measured"
            return False
        self.bytes_per_s, self.is_beside_others = measured, beside_others
        if beside_others:
            self._tell(measured)
        else:
            self._keep(measured)
        return True

    def _keep(self, measured: float) -> None:
        with suppress(OSError):  # measured again at the next start
            kept = {"bytes_per_s": measured, "measured_unix_s": time.time()}
            replace_file(self._path, orjson.dumps(kept))


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


def _read(path: Path) -> float | None:
    try:
        kept = orjson.loads(path.read_bytes())
        fresh = time.time() - float(kept["measured_unix_s"]) < MAX_AGE_S
        return float(kept["bytes_per_s"]) if fresh else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
