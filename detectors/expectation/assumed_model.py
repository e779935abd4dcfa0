"""Assumptions about a model of which a name, a size or a type are known, but no tensor table.

Strategy: the table of published models tells the shape of those that are in it. Of others the shape
of models of that size is taken. Every assumption has a note, and says how far it may be off.

All ratios here are heuristic.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from slowtok.config.models import KnownModel, find_model
from slowtok.detectors.case.case import Envelope, Range
from slowtok.detectors.case.engine import ModelFacts

USUAL_BITS = 4.8  # of a file whose parameters are not told
DENSE_RATIO = 0.8  # of the parameters: fewer are used by mixtures of experts only
SHARED_RATIO = 0.04  # of a mixture's parameters; 0.02 to 0.06 of those in config/models.csv
SEVERAL = 64  # experts, where only that there are several is known
_ACTIVE = re.compile(r"(?<![a-z0-9])a(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)


class Unsized(ValueError):
    """Nothing says how large the model is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """What was not said, and how far the rates may be off for it.

    `high_ratio` is None where it may be any: then there is no ceiling either.
    """

    note: str
    low_ratio: float = 0.75
    high_ratio: float | None = 1.2


GUESSED_DENSE = Assumption(
    note="not known whether it is a mixture of experts: taken as dense, hence no ceiling",
    high_ratio=None,
)
MAX_HIGH_RATIO = 5.0  # of a mixture taken as dense: 30B with 3B used lies at 6


def completed(
    told: ModelFacts,
    *,
    active_parameters: float | None = None,
    kv_heads: float | None = None,
    head_dim: float | None = None,
) -> tuple[ModelFacts, tuple[Assumption, ...]]:
    """Return the facts with what was missing filled in, and what was assumed for it.

    Raises:
        Unsized: nothing says how large the model is.
    """
    known = find_model(
        told.name,
        parameters=told.parameters,
        layers=told.layers,
        kv_heads=None if kv_heads is None else round(kv_heads),
        head_dim=None if head_dim is None else round(head_dim),
    )
    facts, assumed = _sized(told, known)
    if known is not None:
        return _from_table(facts, known), assumed
    filled, note = _like_others(facts, active_parameters, kv_heads, head_dim)
    return filled, (*assumed, Assumption(note=note))


@lru_cache(maxsize=64)
def completed_live(told: ModelFacts) -> tuple[ModelFacts, tuple[Assumption, ...]]:
    """Return the same for a model that is being served, of which the engine or its file told more.

    Nothing is assumed where all is known, and nothing where no size is: the facts come as they are.
    Nor is it where the engine's options are known to change the weights.
    """
    is_whole = None not in (told.read_bytes, told.layers, told.kv_bytes_per_token)
    if is_whole or told.bytes_unknown is not None:
        return told, ()
    active = _ACTIVE.search(told.name or "")
    try:
        facts, assumed = completed(
            told, active_parameters=float(active[1]) * 1e9 if active else None
        )
    except Unsized:
        return told, ()
    named = find_model(told.name, parameters=told.parameters, layers=told.layers)
    if named is not None:
        note = f"the model's file was not read: shape of {named.name} by name and size"
        return facts, (*assumed, Assumption(note=note, low_ratio=0.9, high_ratio=1.1))
    guess = () if told.experts is not None or active else (GUESSED_DENSE,)
    return facts, (*assumed, *guess)


def widen(envelope: Envelope, assumed: Iterable[Assumption]) -> Envelope:
    """Widen the band and raise the ceiling for what was assumed, and say so."""
    assumed = tuple(assumed)
    return replace(
        envelope,
        decode=widened(envelope.decode, assumed),
        prefill=widened(envelope.prefill, assumed),
        as_configured=widened(envelope.as_configured, assumed),
        ceiling_tps=raised(envelope.ceiling_tps, assumed),
        because=(*envelope.because, *(each.note for each in assumed)),
    )


def raised(ceiling_tps: float | None, assumed: Iterable[Assumption]) -> float | None:
    """Raise a ceiling for what was assumed; None where it may lie anywhere."""
    ratios = [each.high_ratio for each in assumed]
    if ceiling_tps is None or None in ratios:
        return None
    return ceiling_tps * prod(ratio for ratio in ratios if ratio is not None)


def widened(band: Range | None, assumed: Iterable[Assumption]) -> Range | None:
    """Widen a band for what was assumed."""
    if band is None:
        return None
    assumed = tuple(assumed)
    low = band.low * prod(each.low_ratio for each in assumed)
    return Range(
        low=low, high=band.high * prod(each.high_ratio or MAX_HIGH_RATIO for each in assumed)
    )


def _sized(told: ModelFacts, known: KnownModel | None) -> tuple[ModelFacts, tuple[Assumption, ...]]:
    parameters = told.parameters or (round(known.parameters) if known else None)
    size = told.file_bytes
    assumed: tuple[Assumption, ...] = ()
    if size is None:
        bits = told.bits_per_weight or bits_of(told.quantisation)
        if parameters is None or bits is None:
            raise Unsized("neither the weights' size is known, nor parameters and a known type")
        size = round(parameters * bits / 8)
        note = f"size of the weights not given, {bits:.2g} bits each assumed"
        assumed = (Assumption(note=note, low_ratio=0.95, high_ratio=1.03),)
    bits_per_weight = size * 8 / parameters if parameters else told.bits_per_weight
    facts = replace(told, parameters=parameters, file_bytes=size, bits_per_weight=bits_per_weight)
    return facts, assumed


def _from_table(facts: ModelFacts, known: KnownModel) -> ModelFacts:
    size = float(facts.file_bytes or 0)
    read = size * known.read_parameters / known.parameters
    for kind, exact in known.read_bytes_by_type:
        if kind in (facts.quantisation or "").upper():
            read = min(exact, size)
    return _filled(
        facts,
        ModelFacts(
            read_bytes=round(read),
            layers=known.layers,
            experts=known.experts,
            experts_used=known.experts_used,
            kv_bytes_per_token=known.kv_bytes_per_token,
            kv_window_tokens=known.window_tokens,
            kv_window_bytes_per_token=known.window_bytes_per_token,
            state_bytes=known.state_bytes,
            active_parameters=round(known.read_parameters),
        ),
    )


def _like_others(
    facts: ModelFacts, active: float | None, kv_heads: float | None, head_dim: float | None
) -> tuple[ModelFacts, str]:
    """Fill the shape of a model outside the table: as told, or like others of its size."""
    size = float(facts.file_bytes or 0)
    parameters = float(facts.parameters or size * 8 / USUAL_BITS)
    if active is None and (facts.experts or 0) > 1 and facts.experts_used:
        used_ratio = facts.experts_used / (facts.experts or 1)
        active = parameters * (SHARED_RATIO + (1 - SHARED_RATIO) * used_ratio)
    is_moe = active is not None and active < DENSE_RATIO * parameters
    note = "model not in the table: taken as plain grouped attention"
    if facts.layers is None or kv_heads is None or head_dim is None:
        note = "shape of the model not known, taken like others of its size"
    layers = facts.layers or round(16 * (parameters / 1e9) ** 0.38)  # 1B 16, 8B 35, 70B 80
    guess = ModelFacts(
        read_bytes=round(size * active / parameters if is_moe and active else size),
        layers=layers,
        experts=SEVERAL if is_moe else None,
        kv_bytes_per_token=4.0 * layers * (kv_heads or 8) * (head_dim or 128),
    )
    return _filled(facts, guess), note


def _filled(facts: ModelFacts, guess: ModelFacts) -> ModelFacts:
    """Take from `guess` what is not known; the KV cache as a whole."""
    if facts.kv_bytes_per_token is not None:
        guess = replace(
            guess, kv_bytes_per_token=None, kv_window_tokens=None, kv_window_bytes_per_token=None
        )
    missing = {
        name: getattr(guess, name)
        for name in ModelFacts.__slots__
        if getattr(facts, name) is None and getattr(guess, name) is not None
    }
    return replace(facts, **missing)


def bits_of(quantisation: str | None) -> float | None:
    """Return the usual bits per weight of a file of this type, embeddings included.

    From the block layouts, and for the mixed types from published files of 7B to 70B.
    """
    name = (quantisation or "").upper().replace("-", "_")
    return next((bits for word, bits in BITS if word in name), None)


BITS = (
    ("IQ1", 1.8), ("TQ1", 1.7), ("TQ2", 2.1), ("IQ2", 2.6), ("Q2_K", 3.2), ("IQ3", 3.6),
    ("Q3_K", 3.9), ("IQ4", 4.5), ("NVFP4", 4.6), ("MXFP4", 4.4), ("Q4_0", 4.6), ("Q4_1", 5.0),
    ("Q4_K_S", 4.6), ("Q4_K", 4.9), ("Q5", 5.7), ("Q6", 6.6), ("Q8", 8.5), ("FP8", 8.2),
    ("INT8", 8.2), ("W8", 8.2), ("AWQ", 4.7), ("GPTQ", 4.7), ("INT4", 4.7), ("4BIT", 4.5),
    ("BF16", 16.0), ("F16", 16.0), ("FP16", 16.0), ("F32", 32.0),
)  # fmt: skip
