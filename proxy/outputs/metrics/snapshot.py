"""A snapshot of the present state, and the gauges made from it. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from slowtok.detectors.analysis.gpu.gpu_window import by_gpu
from slowtok.detectors.case.machine import DeviceFacts, GpuSample, HostSample
from slowtok.proxy.outputs.gpus import THROTTLED

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
    """Return the state of each sampled GPU; `samples` are of all GPUs, oldest first."""
    names = {gpu.index: gpu.name for gpu in device.gpus or ()}
    samples_by_gpu = by_gpu(samples)
    return tuple(
        GpuState(name=names.get(index), sample=_merged(of)) for index, of in samples_by_gpu.items()
    )


def _merged(samples: Sequence[GpuSample]) -> GpuSample:
    """Return the newest sample, completed by older ones: fields are sampled at different rates."""
    newest = samples[-1]
    lacking = [f.name for f in fields(GpuSample) if getattr(newest, f.name) is None]
    readings: dict[str, Any] = {}
    for name in lacking:
        values = (getattr(sample, name) for sample in reversed(samples))
        readings[name] = next((value for value in values if value is not None), None)
    return replace(newest, **readings)


# Prometheus metrics of the present state; what is not known has no sample. Pure.

_MHZ = 1e6
_NS = 1e9
Read = Callable[[GpuSample], float | None]

OF_GPU: tuple[tuple[str, str, str, float], ...] = (  # name, meaning, field, factor to the base unit
    ("busy_ratio", "Share of time in which the GPU computed.", "busy_ratio", 1),
    ("memory_busy_ratio", "Share of time with memory traffic.", "memory_busy_ratio", 1),
    ("dram_busy_ratio", "Share of the memory's bandwidth in use.", "dram_busy_ratio", 1),
    ("power_watts", "Power drawn.", "power_w", 1),
    ("power_limit_watts", "Power limit in force.", "power_limit_w", 1),
    ("sm_clock_hertz", "Clock of the multiprocessors.", "sm_clock_mhz", _MHZ),
    ("memory_clock_hertz", "Clock of the memory.", "memory_clock_mhz", _MHZ),
    ("temperature_celsius", "Temperature of the GPU.", "temperature_c", 1),
    ("memory_temperature_celsius", "Temperature of the GPU's memory.", "memory_temperature_c", 1),
    ("memory_free_bytes", "Free memory of the GPU.", "free_bytes", 1),
    ("memory_total_bytes", "All memory of the GPU.", "total_bytes", 1),
    ("pcie_receive_bytes_per_second", "PCIe traffic into the GPU.", "pcie_rx_bytes_per_s", 1),
    ("pcie_transmit_bytes_per_second", "PCIe traffic out of the GPU.", "pcie_tx_bytes_per_s", 1),
)


def gauges(now: Snapshot) -> Iterator[Metric]:
    """Yield every metric that is read on a scrape, even if it has no samples."""
    yield from _proxy(now)
    yield from _failures(now)
    yield from _gpus(now)
    yield from _host(now)


def _proxy(now: Snapshot) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "slowtok_build_info", "Version of slowtok; always 1.", labels=("version",)
    )
    info.add_metric((now.version or "unknown",), 1)
    yield info
    yield _gauge("requests_in_flight", "Requests on their way now.", now.in_flight)
    up = GaugeMetricFamily(
        "slowtok_engine_up", "Whether the engine answers.", labels=("engine", "kind")
    )
    for engine in now.engines:
        up.add_metric((engine.name, engine.kind), float(engine.up))
    yield up
    for of, description in (("p50", "median"), ("max", "maximum")):
        lag_ms = now.loop_lag_ms.get(f"{of}_ms")
        text = f"How late the event loop woke in the last minute, {description}."
        yield _gauge(f"event_loop_lag_{of}_seconds", text, lag_ms and lag_ms / 1000)
    yield _counter("diagnoses", "Requests that were diagnosed.", now.diagnoses)
    yield _counter("diagnosis_seconds", "Time spent on diagnosing.", now.diagnosis_s_total)
    yield _gauge("sampling_up", "Whether the sampling process runs.", float(now.sampling_up))
    yield _gauge(
        "sampling_cpu_ratio",
        "Share of one core that the sampling process uses.",
        now.sampling_cpu_ratio,
    )
    yield _gauge("event_listeners", "Clients that listen to /slowtok/events.", now.listeners)


def _failures(now: Snapshot) -> Iterator[Metric]:
    yield _counter("sampling_restarts", "Restarts of the sampling process.", now.sampling_restarts)
    yield _counter(
        "log_lines_lost",
        "Lines of log, case files and traces that could not be written or sent.",
        now.lines_lost,
    )
    yield _counter(
        "connections_refused",
        "Clients refused because max_connections was reached.",
        now.connections_refused,
    )
    yield _counter("events_lost", "Events that slow listeners lost.", now.events_lost)
    failures = CounterMetricFamily(
        "slowtok_failures", "Failures while observing; no request was harmed.", labels=("place",)
    )
    for place, count in sorted(now.failures.items()):
        failures.add_metric((place,), count)
    yield failures


def _gpus(now: Snapshot) -> Iterator[Metric]:
    for name, meaning, reading, factor in OF_GPU:
        family = GaugeMetricFamily(f"slowtok_gpu_{name}", meaning, labels=("gpu", "name"))
        for gpu in now.gpus:
            value = getattr(gpu.sample, reading)
            if value is not None:
                family.add_metric((str(gpu.sample.index), gpu.name or ""), value * factor)
        yield family
    yield _growing(now, "energy_joules", "Energy that the GPU used.", lambda s: s.energy_j)
    yield _growing(now, "critical_errors", "Critical errors of the driver (Xid).", lambda s: s.xids)
    throttled = CounterMetricFamily(
        "slowtok_gpu_throttled_seconds",
        "Time with lowered clocks, by reason.",
        labels=("gpu", "name", "reason"),
    )
    for gpu in now.gpus:
        for reading, reason in THROTTLED.items():
            value = getattr(gpu.sample, reading)
            if value is not None:
                labels = (str(gpu.sample.index), gpu.name or "", reason)
                throttled.add_metric(labels, value / _NS)
    yield throttled


def _host(now: Snapshot) -> Iterator[Metric]:
    host = now.host
    busy = host.cpu_busy_cores if host else None
    server = host.server_cpu_cores if host else None
    free = host.available_bytes if host else None
    yield _gauge("host_cpu_busy_cores", "Cores of the machine that are busy.", busy)
    yield _gauge("engine_cpu_cores", "Cores that the first engine of this machine uses.", server)
    yield _gauge("host_memory_available_bytes", "RAM that is available.", free)


def _growing(now: Snapshot, name: str, description: str, read: Read) -> Metric:
    family = CounterMetricFamily(f"slowtok_gpu_{name}", description, labels=("gpu", "name"))
    for gpu in now.gpus:
        if (value := read(gpu.sample)) is not None:
            family.add_metric((str(gpu.sample.index), gpu.name or ""), value)
    return family


def _gauge(name: str, description: str, value: float | None) -> Metric:
    family = GaugeMetricFamily(f"slowtok_{name}", description, labels=())
    if value is not None:
        family.add_metric((), value)
    return family


def _counter(name: str, description: str, value: float) -> Metric:
    return CounterMetricFamily(f"slowtok_{name}", description, value=value)
