"""NVIDIA GPUs for the sampling loop, through NVIDIA's own Python binding."""

import contextlib
import ctypes
from collections.abc import Callable
from pathlib import Path

from slowtok.proxy.sampling.hang_guard import PatientGpus
from slowtok.proxy.sampling.nvidia.devices import NvidiaDevices

HUNG = "a call into the NVIDIA driver does not return"

WSL_LIBRARY = Path("/usr/lib/wsl/lib/libnvidia-ml.so.1")
"""Where Windows puts it into a WSL2 machine; not every distribution's loader looks there."""


def open_gpus(process_name: Callable[[int], str | None]) -> PatientGpus | str:
    """Return the GPUs, or why this installation cannot look at any."""
    try:
        import pynvml  # noqa: PLC0415  costs 4 MiB, and need not be installed
    except ImportError:
        return "Python package nvidia-ml-py is not installed"
    load_wsl_library()
    return PatientGpus(NvidiaDevices(pynvml, process_name, is_wsl=is_wsl()), HUNG)


def is_wsl() -> bool:
    """Say whether this is WSL2 with a GPU of the Windows machine."""
    return WSL_LIBRARY.exists()


def load_wsl_library() -> None:
    """Load it, so that `pynvml` finds it by its name afterwards; it reports what is missing."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(WSL_LIBRARY), mode=ctypes.RTLD_GLOBAL)
