"""Finding NVML's library where the system's loader does not."""

import contextlib
import ctypes
from pathlib import Path

WSL_LIBRARY = Path("/usr/lib/wsl/lib/libnvidia-ml.so.1")
"""Where Windows puts it into a WSL2 machine; not every distribution's loader looks there."""


def is_wsl() -> bool:
    """Say whether this is WSL2 with a GPU of the Windows machine."""
    return WSL_LIBRARY.exists()


def load_wsl_library() -> None:
    """Load it, so that `pynvml` finds it by its name afterwards; it reports what is missing."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(WSL_LIBRARY), mode=ctypes.RTLD_GLOBAL)
