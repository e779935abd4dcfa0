"""The share of its memory bandwidth that a GPU uses, from NVML's performance monitors (GPM).

Strategy: the driver compares two samples of its counters. Two buffers take turns, so that each
reading spans the time since the one before. Hopper and newer have it; source: nvml.h of CUDA 13.4.
"""

import contextlib
import math
import time
from typing import Any

from slowtok.proxy.sampling.nvidia.calls import UNSUPPORTED, Device, Values

DRAM_BUSY = 10
"""Metric id: percent of the memory's theoretical bandwidth."""

SHORTEST_S = 0.12
"""nvml.h wants more than 0.1 s between two samples."""

LONGEST_S = 2.0
"""Over more the mean says nothing about now: twice the period. Heuristic."""

GPM = "nvmlGpmQueryDeviceSupport"
"""The call that stands for all in what is absent: without any one of them nothing works."""

METRICS, DRAM = "nvmlGpmMetricsGet", f"GPM metric {DRAM_BUSY}"

FEEDS = {"dram_busy_ratio": (GPM,)}


class DramBusy:
    """The monitors of one GPU, or of one MIG slice when its `parent` is given."""

    def __init__(self, device: Device, parent: Device | None = None) -> None:
        self._gpu = (parent or device).handle
        self._instance: int | None = None
        self._is_slice = parent is not None
        self._support: Any = None
        self._buffers: list[Any] = []
        self._at_s = -math.inf

    def read(self, device: Device) -> Values:
        """The share since the reading before; nothing over too short or too long a time."""
        now_s = time.monotonic()
        span_s = now_s - self._at_s
        if span_s < SHORTEST_S or not (self._is_supported(device) and self._take(device)):
            return {}
        self._at_s = now_s
        return {"dram_busy_ratio": self._ratio(device) if span_s <= LONGEST_S else None}

    def close(self, device: Device) -> None:
        """Give the buffers back; call this before NVML is shut down."""
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            with contextlib.suppress(device.nvml.NVMLError):
                device.nvml.nvmlGpmSampleFree(buffer)

    def _is_supported(self, device: Device) -> bool:
        if self._support is None:
            if self._is_slice:
                self._instance = _call(device, "nvmlDeviceGetGpuInstanceId", device.handle)
            self._support = _call(device, GPM, self._gpu)
            if self._support is not None and not self._support.isSupportedDevice:
                device.absent[GPM] = UNSUPPORTED[0]
        return self._support is not None and GPM not in device.absent

    def _take(self, device: Device) -> bool:
        """Sample into the older buffer, which then is the newer; say whether that worked."""
        while len(self._buffers) < 2:
            buffer = _call(device, "nvmlGpmSampleAlloc")
            if buffer is None:
                return False
            self._buffers.append(buffer)
        older, newer = self._buffers
        if self._is_slice:
            taken = _call(device, "nvmlGpmMigSampleGet", self._gpu, self._instance, older)
        else:
            taken = _call(device, "nvmlGpmSampleGet", self._gpu, older)
        if taken is None:
            self._at_s = -math.inf
            return False
        self._buffers = [newer, older]
        return True

    def _ratio(self, device: Device) -> float | None:
        asked = device.nvml.c_nvmlGpmMetricsGet_t()
        asked.version = device.nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = 1
        asked.sample1, asked.sample2 = self._buffers
        asked.metrics[0].metricId = DRAM_BUSY
        if _call(device, METRICS, asked) is None:
            return None
        metric = asked.metrics[0]
        if metric.nvmlReturn:
            device.note(DRAM, metric.nvmlReturn)
            _pass_on(device, DRAM)
            return None
        return metric.value / 100 if math.isfinite(metric.value) else None


def _call(device: Device, name: str, *arguments: Any) -> Any:
    answer = device.call(name, name, *arguments)
    _pass_on(device, name)
    return answer


def _pass_on(device: Device, call: str) -> None:
    if call in device.absent:
        device.absent[GPM] = device.absent[call]
