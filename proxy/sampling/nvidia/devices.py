"""The NVIDIA GPUs of this machine, for as long as NVML works, through NVIDIA's own Python binding.

Strategy: when a GPU is lost everything is shut down, reported, and tried again after a pause that
doubles from 5 to 60 s; a GPU that fails alone is left out while the others go on. A GPU is known
by its UUID: it keeps its index through all of this, wherever NVML lists it afterwards. While NVML
does not answer, the kernel's driver says which GPUs there are: after an update of the driver NVML
refuses until the machine was restarted, and so does CUDA to engines that start then.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slowtok.proxy.sampling.hang_guard import PatientGpus
from slowtok.proxy.sampling.nvidia.calls import LOST, Device, GpuLost, Values
from slowtok.proxy.sampling.nvidia.counters import LOOK_S
from slowtok.proxy.sampling.nvidia.events import Xids
from slowtok.proxy.sampling.nvidia.facts import read_facts
from slowtok.proxy.sampling.nvidia.watched import Naming, WatchedNvidiaGpu, make_parts
from slowtok.proxy.sampling.schedule import ALL, Extras

STALL_S = 0.1
"""A sample that took longer is of no one moment, and dropped: the period of the fast tier."""

PAUSE_S = (5.0, 60.0)
HEALTHY_S = 60.0
"""After this long without a loss the next pause is the shortest again. Heuristic."""

LIBRARY_NOT_FOUND = 12

KERNEL_FOLDER = "proc/driver/nvidia/gpus"

HUNG = "a call into the NVIDIA driver does not return"

WSL_LIBRARY = Path("/usr/lib/wsl/lib/libnvidia-ml.so.1")
"""Where Windows puts it into a WSL2 machine; not every distribution's loader looks there."""


class NvidiaDevices:
    """All NVIDIA GPUs, through a module with the functions of `pynvml`."""

    def __init__(
        self, nvml: Any, process_name: Callable[[int], str | None], *, is_wsl: bool = False
    ) -> None:
        self._nvml = nvml
        self._is_wsl = is_wsl
        self._naming = Naming(process_name=process_name, is_hidden=is_wsl)
        self._watched: list[WatchedNvidiaGpu] = []
        self._indices = Indices()
        self._xids = Xids()
        self._pause_s = PAUSE_S[0]
        self._opened_at_s = 0.0
        self._retry_at_s: float | None = 0.0
        self.facts: list[Values] | None = None
        self.reason: str | None = None
        """Why there are no GPUs, or not all of them."""
        self._stalled, self._past_errors = 0, 0
        self._is_active = False

    def __len__(self) -> int:
        return sum(len(gpu.parts) for gpu in self._watched)

    def counts(self) -> Values:
        """Return what went wrong so far.

        `gpu_errors` are calls that failed in a way that is neither absence nor loss.
        """
        errors = self._past_errors + sum(gpu.errors() for gpu in self._watched)
        return {"gpu_errors": errors, "gpu_samples_stalled": self._stalled}

    def sample(
        self, *, slow_tier: bool, servers: set[int] | None, extras: Extras = ALL
    ) -> list[Values]:
        """Return one line for each GPU or slice; `slow_tier` adds the 1 Hz tier and the processes.

        `servers` are the pids of the watched servers; None where pids cannot be matched.
        """
        self._is_active = True
        lines = self._each(
            lambda gpu: gpu.sample(slow_tier=slow_tier, servers=servers, extras=extras)
        )
        if slow_tier:
            self._tell_facts()
        return lines

    def sample_idle(self, servers: set[int] | None) -> list[Values]:
        """Return memory and processes alone: who holds the memory before the next load."""
        self._is_active = False
        return self._each(lambda gpu: gpu.sample_idle(servers))

    def look_s(self) -> float | None:
        """Return how soon `look` should be called after a sample; None where it need not be."""
        fast_links = self._is_active and any(gpu.needs_look for gpu in self._watched)
        return LOOK_S if fast_links else None

    def look(self) -> None:
        """Look at the counters that wrap faster than samples are taken."""
        for gpu in self._watched:
            gpu.look()

    def _each(self, sample: Callable[[WatchedNvidiaGpu], list[Values]]) -> list[Values]:
        now_s = time.monotonic()
        if self._retry_at_s is not None and now_s >= self._retry_at_s:
            self._open(now_s)
        lines = []
        for gpu in self._watched:
            begun_s = time.monotonic()
            try:
                found = sample(gpu)
            except GpuLost as lost:
                self._lose(f"GPU {gpu.device.index}: {lost}")
                break
            if time.monotonic() - begun_s > STALL_S:
                self._stalled += len(found)
            else:
                lines += found
        return lines

    def _open(self, now_s: float) -> None:
        if self._watched:
            self._close()
        self._retry_at_s, self.reason = None, None
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            self.facts = listed_gpus()
            self.reason = _why(error)
            if error.value != LIBRARY_NOT_FOUND:  # a library does not appear by itself
                self._pause(now_s)
            return
        self._opened_at_s = now_s
        self._indices.expect(count)
        for position in range(count):
            self._add(position)
        self._xids.listen(self._nvml, [gpu.device for gpu in self._watched])
        self.facts = []
        self._tell_facts()
        self._miss()
        if self.reason is not None:
            self._pause(now_s)

    def _add(self, position: int) -> None:
        try:
            device = Device(self._nvml, position)
            facts = read_facts(device, self._driver())
            device.index = facts["index"] = self._indices.of_gpu(facts["uuid"], position)
            parts = make_parts(device, facts, self._indices.of_slice, self._naming)
            self._watched.append(
                WatchedNvidiaGpu(device, facts, parts, self._xids, is_wsl=self._is_wsl),
            )
        except (GpuLost, self._nvml.NVMLError) as error:
            self.reason = f"GPU {position}: {error}"

    def _tell_facts(self) -> None:
        """Renew the facts, unless all GPUs are lost: then the last ones stand."""
        for gpu in self._watched:
            gpu.refresh_absent()
        facts = [part.facts for gpu in self._watched for part in gpu.parts]
        if facts and list(map(id, facts)) != list(map(id, self.facts or ())):
            self.facts = facts  # another list only where something changed

    def _miss(self) -> None:
        missing = self._indices.missing({gpu.device.index for gpu in self._watched})
        if missing and self.reason is None:
            self.reason = f"GPU {missing[0]}: not listed by the driver any more"

    def _driver(self) -> str | None:
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return None

    def _lose(self, reason: str) -> None:
        now_s = time.monotonic()
        self._close()
        self.reason = reason
        if now_s - self._opened_at_s > HEALTHY_S:
            self._pause_s = PAUSE_S[0]
        self._pause(now_s)

    def _close(self) -> None:
        self._xids.stop()
        for gpu in self._watched:
            self._past_errors += gpu.errors()
            gpu.close()
        self._watched = []
        # a failure means it was not initialised or is lost: nothing is left to give back
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _pause(self, now_s: float) -> None:
        self._retry_at_s = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSE_S[1])


def _why(error: Any) -> str:
    if error.value == LIBRARY_NOT_FOUND:
        return "NVML library not found"
    return LOST.get(error.value, str(error))


class Indices:
    """By uuid. A whole GPU gets NVML's number where it is free; slices come after all GPUs."""

    def __init__(self) -> None:
        self._gpus: dict[str, int] = {}
        self._slices: dict[str, int] = {}
        self._listed = 0

    def expect(self, listed: int) -> None:
        """Note how many whole GPUs the driver lists."""
        self._listed = max(self._listed, listed)

    def of_gpu(self, uuid: str | None, position: int) -> int:
        """Return the number of a whole GPU; without a uuid it is known by its position."""
        taken = {*self._gpus.values(), *self._slices.values()}
        free = position if position not in taken else self._next()
        return self._gpus.setdefault(uuid or f"at {position}", free)

    def of_slice(self, uuid: str) -> int:
        """Return the number of a MIG slice."""
        return self._slices.setdefault(uuid, self._next())

    def missing(self, present: set[int]) -> list[int]:
        """Return the whole GPUs that were there once and are not among these."""
        return sorted(set(self._gpus.values()) - present)

    def _next(self) -> int:
        return max(self._listed - 1, *self._gpus.values(), *self._slices.values(), -1) + 1


def listed_gpus(root: str = "/") -> list[Values] | None:
    """Return names and addresses by the names of the `GpuFacts` fields; None where none is listed.

    NVML numbers GPUs by their PCI addresses, and so do these.
    """
    folder = Path(root, KERNEL_FOLDER)
    try:
        addresses = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return None
    gpus = []
    for index, address in enumerate(addresses):
        said = _read_information(folder / address / "information")
        gpus.append(
            {
                "index": index,
                "uuid": said.get("GPU UUID"),
                "name": said.get("Model"),
                "vendor": "nvidia",
                "pci_bus_id": address,
            }
        )
    return gpus or None


def _read_information(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs if value.strip()}


def open_gpus(process_name: Callable[[int], str | None]) -> PatientGpus | str:
    """Return the GPUs, or why this installation cannot look at any."""
    try:
        import pynvml  # noqa: PLC0415  costs 4 MiB, and need not be installed
    except ImportError:
        return "Python package nvidia-ml-py is not installed"
    load_wsl_library()
    return PatientGpus(NvidiaDevices(pynvml, process_name, is_wsl=is_wsl()), HUNG)


def is_wsl() -> bool:
    """Return True if this is WSL2 with a GPU of the Windows machine."""
    return WSL_LIBRARY.exists()


def load_wsl_library() -> None:
    """Load it, so that `pynvml` finds it by its name afterwards; it reports what is missing."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(WSL_LIBRARY), mode=ctypes.RTLD_GLOBAL)
