"""The present state, for outputs that show more than finished requests. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from slowtok.detectors.analysis.gpu.gpu_window import by_gpu
from slowtok.detectors.case.machine import DeviceFacts, GpuSample, HostSample

WINDOW_S = 5.0
"""How old a reading may be that is shown as what is so now: idle sampling writes every 2 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """One engine; `up` says whether it answers."""

    name: str
    kind: str
    up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU with the newest value of each of its readings."""

    name: str | None
    sample: GpuSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The proxy, its engines and its machine. Counts and `*_s_total` grow since the start."""

    version: str | None = None
    in_flight: int = 0
    engines: tuple[EngineState, ...] = ()
    gpus: tuple[GpuState, ...] = ()
    host: HostSample | None = None
    loop_lag_ms: Mapping[str, float | None] = field(default_factory=dict)
    diagnoses: int = 0
    diagnosis_s_total: float = 0.0
    sampling_up: bool = False
    sampling_cpu_ratio: float | None = None
    sampling_restarts: int = 0
    lines_lost: int = 0
    connections_refused: int = 0
    listeners: int = 0
    events_lost: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)


def gpus_now(device: DeviceFacts, samples: Sequence[GpuSample]) -> tuple[GpuState, ...]:
    """Return each GPU that was sampled; `samples` are of all of them, the oldest first."""
    names = {gpu.index: gpu.name for gpu in device.gpus or ()}
    seen = by_gpu(samples)
    return tuple(GpuState(name=names.get(index), sample=_merged(of)) for index, of in seen.items())


def _merged(samples: Sequence[GpuSample]) -> GpuSample:
    """Return the newest sample, with older values where it lacks one: the tiers differ in rate."""
    newest = samples[-1]
    lacking = [f.name for f in fields(GpuSample) if getattr(newest, f.name) is None]
    found: dict[str, Any] = {}
    for name in lacking:
        values = (getattr(sample, name) for sample in reversed(samples))
        found[name] = next((value for value in values if value is not None), None)
    return replace(newest, **found)
