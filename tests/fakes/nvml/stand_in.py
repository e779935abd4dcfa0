"""Builds the stand-in library and scripts what its GPUs say.

What is loaded is the real nvidia-ml-py: in this process as a private copy of `pynvml`, so that a
test leaves nothing behind in the one that others import, and in a sampling process as it is.
"""

import atexit
import ctypes
import functools
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

SOURCES = sorted(str(path) for path in Path(__file__).parent.glob("*.c"))
SONAME = "libnvidia-ml.so.1"
FLAGS = ("-std=gnu11", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")


@functools.cache
def library(*defines: str) -> Path:
    """Return the built library; skips the test where there is no compiler for it."""
    if sys.platform != "linux":
        pytest.skip("the stand-in for NVML is built on Linux only")
    folder = tempfile.TemporaryDirectory(prefix="slowtok-nvml-")
    atexit.register(folder.cleanup)
    path = Path(folder.name) / SONAME
    command = [*compiler(), *FLAGS, *(f"-D{name}" for name in defines)]
    command += [f"-Wl,-soname,{SONAME}", "-o", str(path), *SOURCES]
    subprocess.run(command, check=True, timeout=120)
    return path


def compiler() -> tuple[str, ...]:
    """Return the command of a C compiler: the system's, or the one of the package `ziglang`."""
    if found := shutil.which("cc"):
        return (found,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "cc")
    pytest.skip("neither cc nor the package ziglang is here to build the stand-in for NVML")


def binding(*defines: str) -> Any:
    """Return a private copy of the real `pynvml` with the stand-in as its library."""
    spec = importlib.util.find_spec("pynvml")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, pynvml=module):  # it looks itself up while it loads
        spec.loader.exec_module(module)
    module.nvmlLib = ctypes.CDLL(str(library(*defines)))  # type: ignore[attr-defined]
    return module


class Script:
    """The text file that the stand-in reads at each call; each change takes effect at once."""

    def __init__(self, path: Path, *gpus: dict[str, Any], **driver: Any) -> None:
        self.path = path
        self._values: dict[str, Any] = {
            "epoch": time.monotonic(),
            "DriverVersion": "580.95.05",
            "Count": len(gpus),
            **driver,
        }
        self._later: list[str] = []
        for index, gpu in enumerate(gpus):
            self._values |= {f"gpu{index}.{name}": value for name, value in gpu.items()}
        self._write()

    def set(self, **values: Any) -> None:
        """Change what concerns the driver: `Init`, `DriverVersion`, `Count`, or a GPU, `gpu0`."""
        self._values |= values
        self._write()

    def gpu(self, index: int, values: dict[str, Any]) -> None:
        """Change answers of one GPU; None takes one away, which makes it unsupported."""
        self._values |= {f"gpu{index}.{name}": value for name, value in values.items()}
        self._write()

    def at(self, seconds: float, key: str, value: Any) -> None:
        """Change an answer when so many seconds have passed since now."""
        due_s = time.monotonic() - self._values["epoch"] + seconds
        self._later.append(f"@{due_s:.3f} {key} = {value}")
        self._write()

    def _write(self) -> None:
        lines = [f"{key} = {value}" for key, value in self._values.items() if value is not None]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join([*lines, *self._later]) + "\n", encoding="ascii")
        new.replace(self.path)  # at once: the library must never read half a file
