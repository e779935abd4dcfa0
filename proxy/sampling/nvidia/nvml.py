"""NVIDIA GPUs for the sampling loop, through NVIDIA's own Python binding."""

from collections.abc import Callable

from slowtok.proxy.sampling.hang_guard import PatientGpus
from slowtok.proxy.sampling.nvidia.devices import NvidiaDevices
from slowtok.proxy.sampling.nvidia.library import is_wsl, load_wsl_library

HUNG = "a call into the NVIDIA driver does not return"


def open_gpus(process_name: Callable[[int], str | None]) -> PatientGpus | str:
    """Return the GPUs, or why this installation cannot look at any."""
    try:
        import pynvml  # noqa: PLC0415  costs 4 MiB, and need not be installed
    except ImportError:
        return "Python package nvidia-ml-py is not installed"
    load_wsl_library()
    return PatientGpus(NvidiaDevices(pynvml, process_name, is_wsl=is_wsl()), HUNG)
