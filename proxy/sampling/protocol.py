"""The sampling process's lines, turned back into values. Pure.

A line that is not one of these raises `BadLine`; whoever reads counts it and goes on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import orjson

from slowtok.detectors.case.machine import (
    CpuUser,
    DeviceFacts,
    GpuFacts,
    GpuProcess,
    GpuSample,
    HostSample,
    PowerSource,
)


class BadLine(ValueError):
    """A line that the sampling process should not have written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProcess:
    """A process that descends from a server; its command line holds no secrets."""

    pid: int
    name: str | None = None
    cmdline: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """The process that listens on a port, or in `unmapped` why it cannot be told.

    `unmapped` is `no listener`, `no permission`, `not visible` (another pid namespace), or the
    name of a forwarder such as `docker-proxy`. `cmdline` and `environment` hold no secrets;
    `environment` has only what sets an engine up.
    """

    port: int
    pid: int | None = None
    name: str | None = None
    created_unix_s: float | None = None
    cmdline: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    children: tuple[ChildProcess, ...] = ()
    unmapped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLine:
    """A host sample and the port whose server it is about; None is the machine alone."""

    port: int | None
    sample: HostSample


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusLine:
    """The GPUs; None where no library answered. `reason` is why there are none, or not all."""

    gpus: tuple[GpuFacts, ...] | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadLine:
    """What sampling costs: `cpu_ratio` of one core, time per tick, ticks left out so far.

    Of GPUs: how many readings failed, how many samples took too long to be of one moment, and how
    many readings did not return in time; all since sampling began. `slowed` is what is sampled less
    often than wished, with its period in seconds, by the names of `budget.SamplingPace`.
    """

    cpu_ratio: float
    tick_p50_s: float | None = None
    tick_max_s: float | None = None
    missed_ticks: int = 0
    gpu_errors: int = 0
    gpu_samples_stalled: int = 0
    gpu_hung: int = 0
    slowed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLine:
    """Whatever was asked to be sampled at once has been, at `at_s`; its samples came before."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLine:
    """A sensor raised; told once for each different error."""

    where: str
    error: str


Line = (
    HostLine
    | GpuSample
    | GpusLine
    | ProcessFacts
    | DeviceFacts
    | OverheadLine
    | EdgeLine
    | FailedLine
)


def parse_line(text: bytes) -> Line:
    """Turn one line into its value.

    Raises:
        BadLine: it is not JSON, of no known kind, or lacks or has a field that it should not.
    """
    try:
        fields = orjson.loads(text)
        kind = fields.pop("kind")
        return _PARSERS[kind](fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadLine(f"{type(error).__name__}: {error}") from error


def _parse_host(fields: dict[str, Any]) -> HostLine:
    port, others = fields.pop("port", None), fields.pop("others", None)
    _need_numbers(fields)
    if others is not None:
        others = tuple(CpuUser(**program) for program in others)
    return HostLine(port=port, sample=HostSample(**fields, others=others))


def _parse_gpu(fields: dict[str, Any]) -> GpuSample:
    processes, power_source = fields.pop("processes", None), fields.pop("power_source", None)
    _need_numbers(fields)
    if power_source not in (None, *get_args(PowerSource)):
        raise BadLine(f"power_source is {power_source!r}")
    if processes is not None:
        processes = tuple(GpuProcess(**process) for process in processes)
    return GpuSample(**fields, processes=processes, power_source=power_source)


def _parse_gpus(fields: dict[str, Any]) -> GpusLine:
    gpus = fields.get("gpus")
    if gpus is not None:
        gpus = tuple(GpuFacts(**facts) for facts in gpus)
    return GpusLine(gpus=gpus, reason=fields.get("reason"))


def _parse_edge(fields: dict[str, Any]) -> EdgeLine:
    _need_numbers(fields)
    return EdgeLine(**fields)


def _parse_process(fields: dict[str, Any]) -> ProcessFacts:
    children = tuple(
        ChildProcess(**(child | {"cmdline": tuple(child.get("cmdline", ()))}))
        for child in fields.pop("children", ())
    )
    cmdline = tuple(fields.pop("cmdline", ()))
    return ProcessFacts(**fields, cmdline=cmdline, children=children)


def _need_numbers(fields: dict[str, Any]) -> None:
    # a sample with a text in it would break the arithmetic of whoever uses it, much later
    for name, value in fields.items():
        if not isinstance(value, int | float):
            raise BadLine(f"{name} is {value!r}")


_PARSERS: dict[str, Callable[[dict[str, Any]], Line]] = {
    "host": _parse_host,
    "gpu": _parse_gpu,
    "gpus": _parse_gpus,
    "process": _parse_process,
    "host_facts": lambda fields: DeviceFacts(**fields),
    "overhead": lambda fields: OverheadLine(**fields),
    "edge": _parse_edge,
    "failed": lambda fields: FailedLine(**fields),
}
