"""What a rate depends on: the key that rates are kept under.

The engine's version is not in it: what is compared across versions is what drift shows.
"""

import math
from dataclasses import dataclass
from typing import Literal

from slowtok.detectors.case import Case
from slowtok.detectors.once import once
from slowtok.detectors.placement import serving_gpus

Kind = Literal["decode", "prefill"]

ALONE_SEQUENCES = 0.1
"""At most so many others on the mean still leave a request alone. No published source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
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


@once
def decode_setup(case: Case, *, alone: bool = False) -> Setup:
    """Return the setup of a decode; with `alone` as if nobody else had been there."""
    others = 0.0 if alone else case.neighbours.decode_mean
    return _setup(case, "decode", case.envelope.context_tokens, others)


@once
def prefill_setup(case: Case, *, alone: bool = False) -> Setup:
    """Return the setup of a prefill; with `alone` as if nobody else had been there."""
    others = 0.0 if alone else case.neighbours.in_flight_at_send
    return _setup(case, "prefill", case.timeline.tokens.processed, others)


def is_alone(setup: Setup) -> bool:
    """Say whether its requests had the engine to themselves."""
    return setup.sequences == _sequences(0.0)


def model_of(case: Case) -> str:
    """Name the model: by its digest, or else by its name and size."""
    model = case.model
    if model.digest:
        return model.digest
    name = model.name or case.timeline.model or "?"
    return name if model.file_bytes is None else f"{name} {model.file_bytes}"


@once
def gpus_of(case: Case) -> dict[int, str]:
    """Return the uuids of the GPUs that may serve, by index; empty where surely none does."""
    if case.server.gpu_indices == ():
        return {}
    return {gpu.index: gpu.uuid or str(gpu.index) for gpu in serving_gpus(case)}


def _setup(case: Case, kind: Kind, tokens: int | None, others: float) -> Setup:
    server = case.server
    types = dict.fromkeys((server.kv_type_k or "f16", server.kv_type_v or "f16"))
    return Setup(
        kind=kind,
        device=_device(case),
        model=model_of(case),
        engine=server.kind,
        kv_type="/".join(types),
        tokens=_octave(tokens),
        sequences=_sequences(others),
        speculative=bool(server.speculative),
    )


def _device(case: Case) -> str:
    if case.server.local is False:
        return case.server.url or "elsewhere"
    return ",".join(gpus_of(case).values()) or "cpu"


def _octave(tokens: int | None) -> str:
    """Name the power of two that holds so many tokens: "0-1k", "1k-2k", "2k-4k", ..."""
    if tokens is None:
        return "?"
    power = (tokens // 1024).bit_length()
    return "0-1k" if power == 0 else f"{1 << (power - 1)}k-{1 << power}k"


def _sequences(others: float) -> str:
    """Name how many there were: "alone", "2", "3-4", "5-8", ..."""
    if others <= ALONE_SEQUENCES:
        return "alone"
    power = max(math.ceil(math.log2(1 + others)), 1)
    return "2" if power == 1 else f"{(1 << (power - 1)) + 1}-{1 << power}"
