"""The installed command, run as a user runs it."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fakes import running

SLOWTOK = (sys.executable, "-m", "slowtok.proxy")
WAIT_S = 30.0
LISTENING = re.compile(r"listening http://(\S+?)  ")


def environment(**more: str) -> dict[str, str]:
    """The environment without settings of whoever runs the tests."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SLOWTOK_")}
    return {**kept, "NO_COLOR": "1", **more}


def run(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return subprocess.run(
        [*SLOWTOK, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env=environment(**(env or {})),
    )


def keep_ram_bandwidth(state_dir: Path) -> None:
    """Let nobody measure it."""
    running.keep_ram_bandwidth(state_dir, 2e10)


@dataclass(slots=True)
class Running:
    """A command that goes on. `out` and `err` are what it has said so far."""

    process: asyncio.subprocess.Process
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)

    async def line(self, *, err: bool = False) -> str:
        """The next line, without its end; empty when there are no more."""
        stream, said = (self.process.stderr, self.err) if err else (self.process.stdout, self.out)
        assert stream is not None
        async with asyncio.timeout(WAIT_S):
            text = (await stream.readline()).decode()
        said.append(text)
        return text.rstrip("\n")

    async def address(self, *, err: bool = False) -> str:
        """Where it says that it listens."""
        while text := await self.line(err=err):
            if found := LISTENING.search(text):
                return found[1]
        raise AssertionError(f"it never listened: {self.out} {self.err}")

    async def end(self, number: int = signal.SIGTERM, *, group: bool = False) -> int:
        """Send a signal, as Ctrl-C does to the whole group, and return the exit code."""
        if group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> int:
        """Read what it still says, and return its exit code."""
        async with asyncio.timeout(WAIT_S):
            out, err = await self.process.communicate()
        self.out.append(out.decode())
        self.err.append(err.decode())
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def started(
    *arguments: str, env: Mapping[str, str] | None = None, within: Sequence[str] = ()
) -> AsyncIterator[Running]:
    """Run a command until the block ends, in a process group of its own.

    `within` is a command that puts what follows it somewhere.
    """
    process = await asyncio.create_subprocess_exec(
        *within,
        *SLOWTOK,
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**(env or {})),
        start_new_session=True,
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def served(
    state_dir: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
) -> AsyncIterator[Running]:
    """Run `slowtok serve` on a free port."""
    keep_ram_bandwidth(state_dir)
    options = ("--listen", "127.0.0.1:0", "--state-dir", str(state_dir))
    async with started("serve", *options, *arguments, env=env, within=within) as running:
        yield running
