"""The keys that rates are kept under: all that a rate depends on.

The engine's version is not in it: what is compared across versions is what drift shows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from slowtok.detectors.analysis.phase_loss import ALONE_SEQUENCES
from slowtok.detectors.analysis.placement.where import serving_gpus
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.memo import cached_for_last_case

Kind = Literal["decode", "prefill"]

NO_GPUS: Mapping[int, str] = {}
ALONE = "alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineKey:
    """Requests of one setup are alike.

    `device` are the GPUs' uuids, "cpu", or the address of an engine elsewhere. `tokens` is the
    octave of the context at decode, and of the tokens computed at prefill.
    """

    kind: Kind
    device: str
    model: str
    engine: str
    kv_type: str
    tokens: str
    sequences: str
    speculative: bool

    def __str__(self) -> str:
        where = "ctx" if self.kind == "decode" else "prompt"
        drafts = ("speculative",) if self.speculative else ()
        parts = (self.device, self.model, self.engine, f"kv {self.kv_type}")
        return " | ".join((self.kind, *parts, f"{where} {self.tokens}", self.sequences, *drafts))


class EngineKey(NamedTuple):
    """What all setups of one engine and model have in common."""

    device: str
    model: str
    engine: str
    kv_type: str
    speculative: bool


def decode_setup(case: Case) -> BaselineKey:
    """Return the setup of a decode."""
    sequences = sequences_of(others_at_decode(case))
    return setup_at("decode", place_of(case), octave_of(case.envelope.context_tokens), sequences)


def prefill_setup(case: Case) -> BaselineKey:
    """Return the setup of a prefill."""
    sequences = sequences_of(_others_at_prefill(case))
    tokens = octave_of(case.timeline.tokens.processed)
    return setup_at("prefill", place_of(case), tokens, sequences)


def others_at_decode(case: Case) -> float:
    """Return how many others decoded beside a request, on the mean.

    Where no look at the engine fell into its decode, the counters around it still tell of others.
    """
    neighbours = case.neighbours
    if neighbours.counted:
        return neighbours.decode_mean
    return max(neighbours.decode_mean, _others_around(case))


def _others_at_prefill(case: Case) -> float:
    """Return how many others were at the engine when a prompt was to be read, or read."""
    neighbours = case.neighbours
    waiting, prefill = neighbours.waiting, neighbours.prefill
    own = max(neighbours.in_flight_at_send, waiting.served_first)
    seen = max(waiting.others_mean or 0.0, prefill.others_mean or 0.0)
    return max(own, seen, _others_around(case))


def _others_around(case: Case) -> float:
    activity = case.activity
    if activity is None or activity.alone is not False:
        return 0.0
    return max((activity.running_max or 1) - 1, 0)


def is_alone(setup: BaselineKey) -> bool:
    """Return True if its requests had the engine to themselves."""
    return setup.sequences == ALONE


def model_of(case: Case) -> str:
    """Name the model: by its digest, or else by its name and size."""
    model = case.model
    if model.digest:
        return model.digest
    name = model.name or case.timeline.model or "?"
    return name if model.file_bytes is None else f"{name} {model.file_bytes}"


def gpus_of(case: Case) -> Mapping[int, str]:
    """Return the uuids of the GPUs that may serve, by index; empty where surely none does."""
    if case.server.gpu_indices == () or not case.device.gpus:
        return NO_GPUS
    return _uuids(case)


@cached_for_last_case
def _uuids(case: Case) -> Mapping[int, str]:
    return {gpu.index: gpu.uuid or str(gpu.index) for gpu in serving_gpus(case)}


def setup_at(kind: Kind, place: EngineKey, tokens: str, sequences: str) -> BaselineKey:
    """Return the setup of a place with so many tokens and sequences, as octaves name them."""
    return BaselineKey(kind=kind, **place._asdict(), tokens=tokens, sequences=sequences)


def place_of(case: Case) -> EngineKey:
    """Return what all setups of a case's engine and model have in common."""
    server = case.server
    key_type, value_type = server.kv_type_k or "f16", server.kv_type_v or "f16"
    kv_type = key_type if key_type == value_type else f"{key_type}/{value_type}"
    return EngineKey(_device(case), model_of(case), server.kind, kv_type, bool(server.speculative))


def _device(case: Case) -> str:
    if case.server.local is False:
        return case.server.url or "elsewhere"
    return ",".join(gpus_of(case).values()) or "cpu"


def octave_of(tokens: int | None) -> str:
    """Name the power of two that holds so many tokens: "0-1k", "1k-2k", "2k-4k", ..."""
    if tokens is None:
        return "?"
    power = (tokens // 1024).bit_length()
    return "0-1k" if power == 0 else f"{1 << (power - 1)}k-{1 << power}k"


def sequences_of(others: float) -> str:
    """Name how many there were: "alone", "2", "3-4", "5-8", ..."""
    if others <= ALONE_SEQUENCES:
        return ALONE
    power = max(math.ceil(math.log2(1 + others)), 1)
    return "2" if power == 1 else f"{(1 << (power - 1)) + 1}-{1 << power}"
