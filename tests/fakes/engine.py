"""A real llama-server for tests: started on a free port, ready when it is yielded, then ended."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
import pytest

from fakes.running import wait_until_healthy
from slowtok.proxy.cli.demo.children import free_port
from slowtok.proxy.cli.demo.model import fetch_model

START_S = 60.0
SLEEP_S = 30.0
STOP_S = 15.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that listens at `url`; `pid` is its only process."""

    url: str
    pid: int

    def wait_until_asleep(self) -> None:
        """Wait until an engine with `sleep_idle_s` has put its model away."""
        deadline_s = time.monotonic() + SLEEP_S
        while not httpx.get(f"{self.url}/props", timeout=5).json()["is_sleeping"]:
            assert time.monotonic() < deadline_s, "the engine does not fall asleep"
            time.sleep(POLL_S)


@contextlib.contextmanager
def real_engine(
    *,
    threads: int | None = 2,
    slots: int = 2,
    context: int = 4096,
    gpu_layers: int | None = 0,
    sleep_idle_s: int = -1,
    alias: str | None = None,
    metrics: bool = True,
    model: Path | None = None,
    within: Sequence[str] = (),
    more: Sequence[str] = (),
    program: Sequence[str] = (sys.executable, "-m", "slowtok.proxy.cli.demo.engine"),
    errors: IO[bytes] | None = None,
) -> Iterator[RunningEngine]:
    """Run a llama-server until the block ends.

    `model` is the demo's unless given; `threads` and `gpu_layers` are its choice where None;
    `within` is a command that puts what follows it somewhere, `more` are further options; `errors`
    gets what it says.
    """
    port = free_port()
    options: dict[str, object] = {
        "--model": model or fetch_model(),
        "--port": port,
        "--parallel": slots,
        "--ctx-size": context,
    }
    if threads is not None:
        options["--threads"] = threads
    if gpu_layers is not None:
        options["--n-gpu-layers"] = gpu_layers
    if sleep_idle_s >= 0:  # older builds do not know it
        options["--sleep-idle-seconds"] = sleep_idle_s
    command = [*within, *program, *(str(part) for option in options.items() for part in option)]
    command += ["--metrics"] * metrics + (["--alias", alias] if alias else []) + [*more]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_healthy(f"{url}/health", process, START_S)  # 503 while it loads
            yield RunningEngine(url, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:  # stopped or starved by the test
                process.kill()


@pytest.fixture(scope="session")
def engine() -> Iterator[RunningEngine]:
    """One engine with two slots, for tests that only send requests to it."""
    with real_engine() as running:
        yield running
