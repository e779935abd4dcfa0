"""The GPUs of all makers as one list.

Strategy: each maker's reader goes its own way; here they only share numbers. A GPU keeps the number
that it got when its reader first named it, NVIDIA's first and as NVIDIA numbers them; so no reader
is asked before those ahead of it have said what they have. A reader that raises, hangs or finds
nothing costs the others nothing.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from slowtok.proxy.sampling.schedule import ALL, Extras

Values = dict[str, Any]
ProcessName = Callable[[int], str | None]

NVIDIA = b"0x10de"
"""PCI vendor."""


class GpuReader(Protocol):
    """The GPUs of one maker. No call waits for longer than 0.05 s."""

    def __len__(self) -> int:
        """Return how many GPUs there are now."""

    def changes(self) -> Values | None:
        """Return the line about the GPUs and why there are none, if it changed."""

    def sample(
        self, *, slow_tier: bool, servers: set[int] | None, extras: Extras = ALL
    ) -> list[Values]:
        """Return the samples; `slow_tier` adds those of the 1 Hz tier and the processes."""

    def sample_idle(self, servers: set[int] | None) -> list[Values]:
        """Return what matters on an idle machine: who holds the memory before the next load."""

    def counts(self) -> Values:
        """Return what went wrong so far: failed readings, samples dropped, readings that hung."""


class NoGpus:
    """In place of a reader that this installation cannot have."""

    def __init__(self, reason: str) -> None:
        self._changes: Values | None = {"kind": "gpus", "gpus": None, "reason": reason}

    def __len__(self) -> int:
        return 0

    def changes(self) -> Values | None:
        """Return the reason, once."""
        changes, self._changes = self._changes, None
        return changes

    def sample(
        self, *, slow_tier: bool, servers: set[int] | None, extras: Extras = ALL
    ) -> list[Values]:
        """Return nothing."""
        return []

    def sample_idle(self, servers: set[int] | None) -> list[Values]:
        """Return nothing."""
        return []

    def counts(self) -> Values:
        """Return nothing."""
        return {}


class Maker(NamedTuple):
    """One maker's GPUs; `expected` says that its hardware is known to be in this machine.

    `other_pids` says that its driver numbers processes as this process cannot see them.
    """

    reader: GpuReader
    expected: bool = True
    other_pids: bool = False


class AllGpus:
    """The GPUs of all makers.

    Why a maker has none is told only if its hardware is expected, or if nobody has any.
    """

    def __init__(self, makers: Sequence[Maker]) -> None:
        self._makers = makers
        self._said: list[Values | None] = [None] * len(makers)
        self._errors: list[str | None] = [None] * len(makers)
        self._indices: dict[tuple[int, int], int] = {}
        self._told: Values | None = None
        self._heard = False
        self._failures = 0

    def __len__(self) -> int:
        return sum(len(maker.reader) for maker in self._makers)

    def changes(self) -> Values | None:
        """Return the line about all GPUs, if it changed."""
        if not self._heard:
            return None
        self._heard = False
        said = [line for line in self._said if line is not None]
        if not said and not any(self._errors):
            return None
        known = [line["gpus"] for line in said if line["gpus"] is not None]
        gpus = [gpu for gpus in known for gpu in gpus] if known else None
        state = {"kind": "gpus", "gpus": gpus, "reason": self._reason(bool(gpus))}
        if state == self._told:
            return None
        self._told = state
        return state

    def sample(
        self, *, slow_tier: bool, servers: set[int] | None, extras: Extras = ALL
    ) -> list[Values]:
        """Return one line for each GPU; `slow_tier` adds the 1 Hz tier and the processes.

        `servers` are the pids of the watched servers.
        """

        def read(maker: Maker) -> list[Values]:
            known = None if maker.other_pids else servers
            return maker.reader.sample(slow_tier=slow_tier, servers=known, extras=extras)

        return self._each(read)

    def sample_idle(self, servers: set[int] | None) -> list[Values]:
        """Return memory and processes alone: who holds the memory before the next load."""

        def read(maker: Maker) -> list[Values]:
            return maker.reader.sample_idle(None if maker.other_pids else servers)

        return self._each(read)

    def counts(self) -> Values:
        """Return what went wrong so far, over all readers."""
        counts = {"gpu_errors": self._failures, "gpu_samples_stalled": 0, "gpu_hung": 0}
        for maker in self._makers:
            for name, count in maker.reader.counts().items():
                counts[name] += count
        return counts

    def _each(self, read: Callable[[Maker], list[Values]]) -> list[Values]:
        lines = []
        for number, maker in enumerate(self._makers):
            try:
                found, fault = read(maker), None
            except Exception as error:  # noqa: BLE001  it is this maker's alone, and told as such
                self._failures += 1
                found, fault = None, f"{type(error).__name__}: {error}"
            self._heard = self._heard or fault != self._errors[number]
            self._errors[number] = fault
            if found is None:
                continue
            self._hear(number, maker.reader.changes())
            if self._said[number] is None:
                break
            for line in found:
                line["index"] = self._index(number, line["index"])
            lines += found
        return lines

    def _hear(self, number: int, changes: Values | None) -> None:
        if changes is None:
            return
        self._heard = True
        gpus = changes.get("gpus")
        if gpus is not None:
            gpus = [gpu | {"index": self._index(number, gpu["index"])} for gpu in gpus]
        self._said[number] = {**changes, "gpus": gpus}

    def _index(self, number: int, own: int) -> int:
        known = self._indices.get((number, own))
        if known is not None:
            return known
        taken = self._indices.values()
        free = own if own not in taken else max(taken) + 1
        return self._indices.setdefault((number, own), free)

    def _reason(self, any_gpu: bool) -> str | None:
        reasons = [
            line["reason"]
            for line, maker in zip(self._said, self._makers, strict=True)
            if line is not None and (maker.expected or line["gpus"] or not any_gpu)
        ]
        return "; ".join(reason for reason in [*reasons, *self._errors] if reason) or None


def open_gpus(process_name: ProcessName, *, private_pids: bool | None) -> AllGpus:
    """Return the GPUs of this machine.

    The modules of other platforms are not loaded: they cost memory.
    """
    if sys.platform == "darwin":
        from slowtok.proxy.sampling.apple.macmon import open_macmon  # noqa: PLC0415

        return AllGpus([Maker(_or_none(open_macmon()))])
    from slowtok.proxy.sampling.nvidia.devices import open_gpus as open_nvidia  # noqa: PLC0415

    nvidia = _or_none(open_nvidia(process_name))
    makers = [Maker(nvidia, expected=has_nvidia_card(), other_pids=bool(private_pids))]
    if sys.platform == "linux":
        from slowtok.proxy.sampling.amd.amdgpu import open_amd  # noqa: PLC0415

        # its pids are those of this process's own /proc
        amd = open_amd(process_name, private_pids=bool(private_pids))
        makers += [Maker(amd)] if amd is not None else []
    return AllGpus(makers)


def _or_none(reader: GpuReader | str) -> GpuReader:
    return NoGpus(reader) if isinstance(reader, str) else reader


def has_nvidia_card(root: str = "/") -> bool:
    """Return True if an NVIDIA display or compute device is on the PCI bus (class 03)."""
    return any(
        _holds(device / "vendor", NVIDIA) and _holds(device / "class", b"0x03")
        for device in _entries(Path(root, "sys/bus/pci/devices"))
    )


def _entries(folder: Path) -> Iterable[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else ()


def _holds(path: Path, beginning: bytes) -> bool:
    try:
        return path.read_bytes().startswith(beginning)
    except OSError:
        return False
