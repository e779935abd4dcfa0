"""Critical errors of NVIDIA GPUs (Xid), which the driver tells as events, on Linux alone.

Strategy: waiting for events blocks, so a thread of its own does it, a short time at once. It is
stopped before NVML is shut down, but only waited for briefly: nothing may hang on it.
"""

import contextlib
import ctypes
import sys
import threading
import weakref
from typing import Any

from slowtok.proxy.sampling.nvidia.calls import Device, Values

XID = 0x8
"""nvmlEventTypeXidCriticalError."""

WAIT_MS = 500
"""How long one wait lasts: twice a second costs next to nothing. By nvml.h it may end sooner."""

PAUSE_S = 0.05
"""Pause between waits, for a driver whose waits end at once; events are kept meanwhile."""

STOP_S = 1.0
TIMEOUT = 10

EVENTS = "nvmlDeviceRegisterEvents"
FEEDS = {"xid": (EVENTS,), "xids": (EVENTS,)}
LINUX_ONLY = "NVML reports Xid errors on Linux only"

Counts = dict[int, tuple[int | None, int]]
"""By the GPU's index: the last Xid, and how many there were."""


class Xids:
    """The critical errors since sampling began, over all losses and returns of the GPUs."""

    def __init__(self) -> None:
        self._counts: Counts = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._free = contextlib.ExitStack()

    def listen(self, nvml: Any, gpus: list[Device]) -> None:
        """Listen to these GPUs from now on, in place of those before."""
        self.stop()
        if not gpus or not sys.platform.startswith("linux"):
            return
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            for gpu in gpus:
                gpu.absent[EVENTS] = error.value
            return
        self._free.callback(nvml.nvmlEventSetFree, events)
        heard = {_address(gpu.handle): gpu.index for gpu in gpus if _register(gpu, events)}
        for index in heard.values():
            self._counts.setdefault(index, (None, 0))
        self._stopped = threading.Event()
        weakref.finalize(self, self._stopped.set)
        arguments = (nvml, events, heard, self._counts, self._stopped)
        self._thread = threading.Thread(target=_wait, args=arguments, name="xid", daemon=True)
        if heard:
            self._thread.start()

    def stop(self) -> None:
        """Listen no more; a wait that does not end is left behind."""
        self._stopped.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(STOP_S)
        free = self._free.pop_all()
        if self._thread is not None and not self._thread.is_alive():
            with contextlib.suppress(Exception):  # what is lost needs not be freed
                free.close()
        self._thread = None

    def read(self, gpu: Device) -> Values:
        """The last error and how many there were; nothing while nobody listens."""
        if EVENTS in gpu.absent or self._thread is None or not self._thread.is_alive():
            return {}
        xid, xids = self._counts[gpu.index]
        return {"xid": xid, "xids": xids}


def _register(gpu: Device, events: Any) -> bool:
    try:
        gpu.nvml.nvmlDeviceRegisterEvents(gpu.handle, XID, events)
    except gpu.nvml.NVMLError as error:
        gpu.absent[EVENTS] = error.value
        return False
    return True


def _wait(
    nvml: Any, events: Any, heard: dict[int, int], counts: Counts, stopped: threading.Event
) -> None:
    while not stopped.wait(PAUSE_S):
        try:
            event = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except nvml.NVMLError as error:
            if error.value == TIMEOUT:
                continue
            return  # a GPU is lost: the next sample finds that too, and all begins again
        index = heard.get(_address(event.device))
        if index is not None:
            counts[index] = (int(event.eventData), counts[index][1] + 1)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
