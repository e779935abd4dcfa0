"""The result of one look, as plain values: all that the checks may know."""

from dataclasses import dataclass, field
from pathlib import PurePath

from slowtok.detectors.analysis.gpu.gpu_window import by_gpu
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import CpuUser, DeviceFacts, GpuFacts, GpuSample, HostSample


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSeen:
    """One model that an engine has in memory, and the engine as it serves it.

    `unreadable` says why its file gave no geometry, where there is a file.
    """

    server: ServerFacts
    model: ModelFacts
    unreadable: str | None = None

    @property
    def label(self) -> str:
        """Which model it is, for people: llama-server's name for one may be its whole path."""
        return PurePath(self.model.name or self.server.name or "?").name


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeen:
    """One engine. `is_slowtok` says that slowtok itself answers there.

    `models` are the names that requests may use, `serving` those that are in memory. `host` are
    samples of its process, `gpu` those of all GPUs, with other engines among the others.
    """

    name: str
    url: str
    answers: bool
    server: ServerFacts
    is_slowtok: bool = False
    models: tuple[str, ...] = ()
    serving: tuple[ServingSeen, ...] = ()
    host: tuple[HostSample, ...] = ()
    gpu: tuple[GpuSample, ...] = ()

    @property
    def is_here(self) -> bool:
        """Return True if it runs on the machine that was looked at."""
        return self.answers and not self.is_slowtok and self.server.local is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSeen:
    """A store of shared baselines, by its address; `failure` is None where it answers."""

    named: str
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All of it. `host` are samples of the machine; `swap_used_bytes` is of this moment.

    `others` are the programs that used most of the CPU meanwhile, neither engines nor slowtok.

    `cpu_driver` and `cpu_preference` are the kernel's words for who sets the CPU's clock and to
    what end. `failures` are sensors that broke. `store` is what
    learned baselines are shared through.
    """

    engines: tuple[EngineSeen, ...] = ()
    looked_at: str = ""
    device: DeviceFacts = field(default_factory=DeviceFacts)
    gpu: tuple[GpuSample, ...] = ()
    host: tuple[HostSample, ...] = ()
    others: tuple[CpuUser, ...] = ()
    swap_used_bytes: int | None = None
    cpu_driver: str | None = None
    cpu_preference: str | None = None
    failures: tuple[str, ...] = ()
    store: StoreSeen | None = None

    @property
    def is_anything(self) -> bool:
        """Return True if there was an engine or a GPU to look at."""
        answering = any(e.answers and not e.is_slowtok for e in self.engines)
        return answering or bool(self.device.gpus)

    def gpu_samples(self) -> dict[int, tuple[GpuSample, ...]]:
        """Return the samples of each GPU."""
        return by_gpu(self.gpu)

    def gpus_of(self, server: ServerFacts) -> tuple[GpuFacts, ...]:
        """Return the GPUs that a server uses or may use; none where it uses none."""
        if server.local is False or server.gpu_layers == 0:
            return ()
        mine = server.gpu_indices
        return tuple(g for g in self.device.gpus or () if mine is None or g.index in mine)


def computes_on_cpu(seen: Seen, serving: ServingSeen) -> bool:
    """Return True if CPU cores decode at least a part of the model, as it was asked to run."""
    server, layers = serving.server, serving.model.layers
    if server.local is False:
        return False
    if not seen.gpus_of(server):
        return True
    asked = server.gpu_layers
    partly = asked is not None and layers is not None and 0 <= asked < layers
    return partly or bool(server.cpu_moe_layers)
