"""The key of machines that may learn from each other: same card, same work. Pure.

Strategy: a setup as it is kept on this machine has the GPU's uuid in it. Here the uuid is taken
out and the kind of card put in. Both leave this machine as hashes only: no store has a place for
a path, an address or a prompt.

Not shared is what would not compare: engines elsewhere, whose machine is not seen; CPUs, of which
too little is known; slices of a GPU that a hypervisor hands out; cards that do not tell what limits
them, as many in laptops; models that are partly in RAM, or known by name alone; and what nobody
has an expectation of, since nothing would bound what is believed.
"""

import hashlib
from dataclasses import astuple, dataclass, replace
from pathlib import PurePath

import orjson

from slowtok.detectors.analysis.placement.where import off_gpu, serving_gpus
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Missing
from slowtok.detectors.case.machine import GpuFacts
from slowtok.proxy.history.keys import BaselineKey

FORMAT = 1  # raise when a row or a setup means something else: the old ones are then not found


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerKey:
    """Where a card's rates have their place: `setup` with all cards that do the same, `card`."""

    setup: str
    card: str


def alike(case: Case, setup: BaselineKey) -> PeerKey | None:
    """Return the place of this case's rates; None where nothing would compare."""
    gpus = serving_gpus(case)
    kinds = [_kind(gpu) for gpu in gpus]
    uuids = sorted(gpu.uuid for gpu in gpus if gpu.uuid is not None)
    if case.server.local is False or case.server.gpu_indices == () or not case.server.version:
        return None
    if case.envelope.decode is None or not (case.model.digest or case.model.file_bytes):
        return None
    if not gpus or None in kinds or len(uuids) < len(gpus):
        return None
    device = "; ".join(sorted(kind for kind in kinds if kind is not None))
    same = replace(setup, device=device, model=_model(setup.model))
    return PeerKey(
        setup=_hash(FORMAT, *_host(case), case.server.version, *astuple(same)),
        card=_hash(*uuids),
    )


def is_on_gpu(case: Case) -> bool:
    """Return True if no part of the model is known to be beside the GPU."""
    try:
        return off_gpu(case) is None
    except Missing:  # neither engine nor memory tell: as with engines that only do all or nothing
        return True


def _host(case: Case) -> tuple[str | None, int | None]:
    """Return what tells hosts apart: small models wait for the CPU as much as for the GPU."""
    return case.device.os, case.device.cpu_logical_cores


def _kind(gpu: GpuFacts) -> str | None:
    """Name the kind of card: what limits a rate, and does not differ from card to card."""
    size_bytes, limit_w = gpu.total_bytes, gpu.default_power_limit_w
    bytes_per_s = gpu.bandwidth_bytes_per_s
    if gpu.name is None or gpu.virtual or not (size_bytes and bytes_per_s and limit_w):
        return None
    gib, gb_per_s = round(size_bytes / 2**30), round(bytes_per_s / 1e9)
    return f"{gpu.name}, {gib} GiB, {gb_per_s} GB/s, {round(limit_w)} W"


def _model(name: str) -> str:
    """Leave out the folder, which differs from machine to machine."""
    return PurePath(name.replace("\\", "/")).name


def _hash(*parts: object) -> str:
    return hashlib.blake2b(orjson.dumps(parts), digest_size=16).hexdigest()
