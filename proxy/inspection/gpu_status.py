"""The GPUs as /slowtok/status shows them, and what of them is not visible. Pure."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slowtok.detectors.analysis.gpu.gpu_window import by_gpu, newest
from slowtok.detectors.case.clocks_event import NAMES
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts, GpuSample
from slowtok.detectors.case.named_facts import PID_HOST, WHO_HAS, label, name_of
from slowtok.proxy.outputs.gpus import memory_entry
from slowtok.proxy.outputs.record import known

Hidden = dict[str, str]

NOW = (
    "busy_ratio",
    "memory_busy_ratio",
    "dram_busy_ratio",
    "power_w",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "pstate",
    "reasons",
)
"""Of `GpuSample`; `reasons` are shown by name."""

NO_GPU = (
    "nothing to do if this machine has no GPU. NVIDIA: install the driver (containers: --gpus "
    "all); Apple: brew install macmon; AMD: Linux with the amdgpu driver"
)
WINDOWS = "Windows manages the memory itself and does not tell the driver which process has it"


def gpu_status(device: DeviceFacts, samples: Sequence[GpuSample]) -> list[dict[str, Any]]:
    """Return each GPU's facts, its limit in force and whose its memory is; samples oldest first."""
    seen = by_gpu(samples)
    return [_one(gpu, seen.get(gpu.index, ())) for gpu in device.gpus or ()]


def gpus_not_visible(device: DeviceFacts, samples: Sequence[GpuSample]) -> list[Hidden]:
    """Return what cannot be seen of the GPUs: `fact`, `why`, and `how_to_enable` where known."""
    gpus = device.gpus or ()
    if not gpus:
        none = "no GPU" if device.gpus is not None else "not looked yet"
        return [_hidden("GPUs", device.gpus_reason or none, NO_GPU)]
    found = [] if device.gpus_reason is None else [_hidden("some GPUs", device.gpus_reason, None)]
    if device.private_pids:
        found.append(_hidden("which processes on the GPUs are the server's", PID_HOST, None))
    return [*found, *_absent(gpus), *_without_bytes(gpus, by_gpu(samples))]


def _one(gpu: GpuFacts, samples: Sequence[GpuSample]) -> dict[str, Any]:
    facts = {name: value for name, value in asdict(gpu).items() if name != "absent"}
    now = {
        "power_limit_w": newest(samples, lambda s: s.power_limit_w),
        "vram": memory_entry(samples),
        "now": _readings(samples),
    }
    shown: dict[str, Any] = known(facts | now)
    return shown


def _readings(samples: Sequence[GpuSample]) -> dict[str, Any] | None:
    """Return the newest value of what changes from moment to moment; None without any."""
    found: dict[str, Any] = {
        name: value
        for name in NOW
        if (value := newest(samples, operator.attrgetter(name))) is not None
    }
    if (mask := found.pop("reasons", None)) is not None:
        found["reasons"] = [name for bit, name in NAMES.items() if int(mask) & bit]
    return found or None


def _absent(gpus: Iterable[GpuFacts]) -> Iterator[Hidden]:
    """Yield one entry for each thing and reason, with all GPUs that it is true of."""
    affected: dict[tuple[str, str], dict[int, str]] = {}
    who: dict[tuple[str, str], str | None] = {}
    for gpu in gpus:
        for field, reason in gpu.absent.items():
            if field == "vgpu_licensed" and not gpu.virtual:
                continue
            affected.setdefault((name_of(field), reason), {})[gpu.index] = label(gpu)
            who.setdefault((name_of(field), reason), WHO_HAS.get(field))
    for (name, reason), labels in affected.items():
        fact = f"{name} of {', '.join(labels.values())}"
        yield _hidden(fact, reason, who[name, reason])


def _without_bytes(
    gpus: Iterable[GpuFacts], samples: Mapping[int, Sequence[GpuSample]]
) -> Iterator[Hidden]:
    for gpu in gpus:
        lists = (s.processes for s in reversed(samples.get(gpu.index, ())))
        processes = next((found for found in lists if found is not None), ())
        if processes and all(p.memory_bytes is None for p in processes):
            yield _hidden(f"memory of each process on {label(gpu)}", WINDOWS, None)


def _hidden(fact: str, why: str, how: str | None) -> Hidden:
    entry = {"fact": fact, "why": why}
    return entry if how is None else entry | {"how_to_enable": how}
