"""The GPU as slowtok's own reader and as nvidia-smi see it, and what each call to NVML costs."""

import contextlib
import re
import statistics
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from gpu_check.comparison import asked_for, compare
from slowtok.proxy.sampling.nvidia.devices import NvidiaDevices, is_wsl, load_wsl_library

SMI = "nvidia-smi"
SMI_S = 30.0
TICK_S = 0.1
LARGEST_ID = 1000  # a larger argument is a time or an address, and another one in each call
WAITS = "EventSetWait"  # blocks until something happens: that is no cost


class TimedNvml:
    """The module `pynvml`, with what each call took in `ms`, by its name and numbers."""

    def __init__(self) -> None:
        self.ms: defaultdict[str, list[float]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        found = getattr(pynvml, name)
        return self._timed(name, found) if name.startswith("nvml") and callable(found) else found

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begun_s = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                took_ms = 1000 * (time.perf_counter() - begun_s)
                self.ms[" ".join((name.removeprefix("nvml"), *_numbers(arguments)))].append(took_ms)

        return call


def _numbers(arguments: tuple[Any, ...]) -> Iterator[str]:
    for argument in arguments:
        if isinstance(argument, list):  # fields, each with its scope
            yield from (str(field) for field, _ in argument)
        elif isinstance(argument, int) and argument <= LARGEST_ID:
            yield str(argument)


class Gpu:
    """One GPU, read by slowtok's reader; `facts` is empty where there is none, for `reason`."""

    def __init__(self, index: int) -> None:
        load_wsl_library()
        self.index = index
        self._nvml = TimedNvml()
        self._devices = NvidiaDevices(self._nvml, lambda pid: None, is_wsl=is_wsl())
        self.read()
        known = [facts for facts in self._devices.facts or () if facts["index"] == index]
        self.facts: dict[str, Any] = known[0] if known and len(self._devices) else {}
        self.reason = self._devices.reason or f"the driver lists no GPU {index}"

    def read(self) -> dict[str, Any]:
        """Return all readings of this moment; none where the driver stood still meanwhile."""
        lines = self._devices.sample(slow_tier=True, servers=set())
        return next((line for line in lines if line["index"] == self.index), {})

    def compared(self) -> dict[str, Any]:
        """Return all readings beside nvidia-smi's.

        Raises:
            OSError: there is no nvidia-smi.
            subprocess.SubprocessError: it failed.
        """
        names = asked_for(set(re.findall(r'"([\w.]+)"', _smi("--help-query-gpu"))))
        query = f"--query-gpu={','.join(names.values())}"
        readings = [self.read()]
        with self.watched() as meanwhile:
            said = _smi(query, "--format=csv,noheader,nounits", f"--id={self.index}")
        readings += [*meanwhile, self.read()]
        texts = (text.strip() for text in said.splitlines()[0].split(","))
        asked = dict(zip(names, texts, strict=True))
        lines = compare([self.facts | reading for reading in readings if reading], asked)
        return {"compared": lines, "differ": [line["field"] for line in lines if not line["same"]]}

    def costs(self, seconds: float) -> dict[str, dict[str, float]]:
        """Return what each call takes while everything is read over and over."""
        self._nvml.ms.clear()
        with self.watched():
            time.sleep(seconds)
        return {
            call: {
                "calls": len(ms),
                "median_ms": round(statistics.median(ms), 4),
                "worst_ms": round(max(ms), 4),
            }
            for call, ms in sorted(self._nvml.ms.items())
            if call != WAITS
        }

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[dict[str, Any]]]:
        """Gather readings, ten a second, until the block ends."""
        lines: list[dict[str, Any]] = []
        over = threading.Event()

        def watch() -> None:
            while not over.wait(TICK_S):
                lines.append(self.read())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield lines
        finally:
            over.set()
            thread.join()


def _smi(*arguments: str) -> str:
    done = subprocess.run(
        [SMI, *arguments], capture_output=True, text=True, timeout=SMI_S, check=True
    )
    return done.stdout
