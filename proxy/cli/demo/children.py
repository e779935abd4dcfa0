"""The demo's processes: engine, proxy, and the busy ones. None of them outlives the demo."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from slowtok.proxy.cli.demo.engine import LISTENING

STOP_S = 5.0
LAST_WORDS_CHARS = 600

# Each one ends by itself after its time, and with its parent.
BUSY = """
import os, sys, time
parent, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end and os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


class DemoError(Exception):
    """The demo cannot go on. The text says why."""


@asynccontextmanager
async def run_child(
    *arguments: str, log: Path | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run this Python with the arguments, and end it on the way out, whatever happened.

    Away from the terminal's process group, Ctrl-C reaches the demo alone, which then ends its
    children in order.
    """
    with (log or Path(os.devnull)).open("wb") as errors:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=os.name != "nt",
        )
    try:
        yield child
    finally:
        await _stop(child)


async def _stop(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.terminate()
        try:
            await asyncio.wait_for(_drain(child), STOP_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                _kill(child)
    await _drain(child)


def _kill(child: asyncio.subprocess.Process) -> None:
    """End it and all that it has started, whatever they do."""
    if sys.platform == "win32":
        child.kill()
    else:
        os.killpg(child.pid, signal.SIGKILL)  # it leads a session of its own


async def _drain(child: asyncio.subprocess.Process) -> None:
    if child.stdout is not None:
        while await child.stdout.read(1 << 16):
            pass
    await child.wait()


@asynccontextmanager
async def run_engine(
    model: Path, *, alias: str, threads: int, context: int, slots: int, log: Path, limit_s: float
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Run an engine on a free port; yields its URL and its process once it listens.

    Raises:
        DemoError: it did not start within `limit_s`.
    """
    arguments = (
        *("--model", str(model), "--alias", alias, "--port", str(free_port())),
        *("--threads", str(threads), "--ctx-size", str(context), "--parallel", str(slots)),
        *("--n-gpu-layers", "0", "--metrics"),
    )
    async with run_child("-m", "slowtok.proxy.cli.demo.engine", *arguments, log=log) as child:
        line = await _first_line(child, limit_s)
        if not line.startswith(LISTENING):
            raise DemoError(f"the engine did not start: {await last_words(child, log)}")
        yield line.removeprefix(LISTENING), child


@asynccontextmanager
async def run_proxy(
    upstream: str, *, listen: str, state_dir: Path, ram_bandwidth: str | None = None, log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `slowtok serve`, without the screen: its own lines go nowhere, faults into `log`."""
    arguments = (
        *("serve", "--upstream", f"demo={upstream}", "--listen", listen),
        *("--state-dir", str(state_dir)),
        *(("--ram-bandwidth", ram_bandwidth) if ram_bandwidth is not None else ()),
    )
    async with run_child("-m", "slowtok.proxy.cli.demo.leash", *arguments, log=log) as child:
        swallow = asyncio.create_task(_drain(child))
        try:
            yield child
        finally:
            swallow.cancel()
            await asyncio.gather(swallow, return_exceptions=True)


@asynccontextmanager
async def busy_cores(count: int, seconds: float) -> AsyncIterator[None]:
    """Keep `count` processes busy for at most `seconds`."""
    arguments = ("-I", "-S", "-c", BUSY, str(os.getpid()), str(seconds))
    async with AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(run_child(*arguments))
        yield


async def _first_line(child: asyncio.subprocess.Process, limit_s: float) -> str:
    if child.stdout is None:
        return ""
    try:
        line = await asyncio.wait_for(child.stdout.readline(), limit_s)
    except TimeoutError:
        return ""
    return line.decode(errors="replace").strip()


def how_it_ended(code: int) -> str:
    """Return how a process ended, by its exit code."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


async def last_words(child: asyncio.subprocess.Process, log: Path) -> str:
    """End a child that failed, and return what it said."""
    code = child.returncode
    await _stop(child)
    return _tail(log) or ("it gave no answer" if code is None else f"it ended with code {code}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-LAST_WORDS_CHARS:]


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port on which nothing listens."""
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])


def is_free(host: str, port: int) -> bool:
    """Return True if one could listen there."""
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return False
    return True
