"""Bytes that one generated token makes the engine read: weights, KV cache, recurrent state.

Source of the sizes: the block layouts of the KV types (q8_0: 34 bytes for 32 values); the model's
own bytes come from its tensor table, see `slowtok.detectors.case.engine.ModelFacts`.
"""

import math
from dataclasses import dataclass

from slowtok.detectors.case.engine import ModelFacts, ServerFacts

KV_RATIO = {
    "f32": 2.0, "f16": 1.0, "fp16": 1.0, "bf16": 1.0, "auto": 1.0,
    "q8_0": 0.531, "q5_1": 0.375, "q5_0": 0.344, "q4_1": 0.3125, "q4_0": 0.281, "iq4_nl": 0.281,
    "float16": 1.0, "bfloat16": 1.0, "fp8": 0.5, "fp8_e4m3": 0.5, "fp8_e5m2": 0.5, "fp8_inc": 0.5,
    "int8": 0.5, "mxfp8": 0.516, "nvfp4": 0.281, "nvfp4_4over6": 0.281, "fp4_mx_block16": 0.281,
}  # fmt: skip
"""Bytes of a KV type against 16-bit; FP4 has 8 bits of scale for 16 values, MXFP8 for 32."""

ONE_BIT = 2.0
ONE_BIT_NAMES = ("IQ1", "TQ", "Q1_", "Q2_0", "I2_S")
"""Weights of fewer bits are computing, not reading, on GPUs too: 31 published rows, median 0.49."""


class NoBasis(Exception):
    """No rate can be stated; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Bytes read for one token of one sequence at `context_tokens`, over `layers` layers.

    `kv` holds the recurrent state too, once read and once written: it costs as much as reading.
    """

    weights: float
    kv: float
    layers: int
    context_tokens: int
    is_moe: bool
    bits_per_weight: float | None

    @property
    def total(self) -> float:
        """Return weights and KV together."""
        return self.weights + self.kv


def reads_of(model: ModelFacts, server: ServerFacts, context_tokens: int | None) -> Reads:
    """Return what one token reads.

    Raises:
        NoBasis: the model, the context or the KV type is not known well enough.
    """
    if model.bytes_unknown is not None:
        raise NoBasis(model.bytes_unknown)
    if model.read_bytes is None or model.layers is None or model.kv_bytes_per_token is None:
        raise NoBasis("the model's weights, layers or KV bytes are not known")
    if context_tokens is None:
        raise NoBasis("the context of this request is not known")
    window_tokens = min(context_tokens, model.kv_window_tokens or 0)
    f16_bytes = context_tokens * model.kv_bytes_per_token
    f16_bytes += window_tokens * (model.kv_window_bytes_per_token or 0)
    return Reads(
        weights=model.read_bytes,
        kv=f16_bytes * (_kv_ratio(server.kv_type_k) + _kv_ratio(server.kv_type_v)) / 2
        + 2 * (model.state_bytes or 0.0),
        layers=model.layers,
        context_tokens=context_tokens,
        is_moe=(model.experts or 0) > 1,
        bits_per_weight=model.bits_per_weight,
    )


def unpredictable(model: ModelFacts) -> str | None:
    """Return why reading is not what limits decode with these weights; None where it is."""
    name = (model.quantisation or "").upper()
    bits = model.bits_per_weight
    if name.startswith(ONE_BIT_NAMES) or (bits is not None and bits < ONE_BIT):
        return "weights of 2 bits or less: computing limits decode, only the ceiling is known"
    if name.startswith("EXL3"):
        return "exl3 weights: unpacking them limits decode, only the ceiling is known"
    return None


def expert_bytes(model: ModelFacts) -> float:
    """Return the part of `read_bytes` that belongs to chosen experts; 0 for a dense model.

    file = shared + all experts and read = shared + used experts, solved for the latter; embedding
    tables count as experts here, which makes it a little too large.
    """
    total, used = model.experts or 0, model.experts_used or 0
    if total <= 1 or not 0 < used < total or not model.file_bytes or model.read_bytes is None:
        return 0.0
    all_experts = (model.file_bytes - model.read_bytes) / (1 - used / total)
    return min(all_experts * used / total, float(model.read_bytes))


def every_expert_bytes(model: ModelFacts) -> float:
    """Return the weights of all experts, chosen or not; 0 for a dense model."""
    if not model.experts or not model.experts_used:
        return 0.0
    return expert_bytes(model) * model.experts / model.experts_used


def _kv_ratio(name: str | None) -> float:
    ratio = KV_RATIO.get((name or "f16").lower())
    if ratio is None:
        raise NoBasis(f"the size of the KV cache type {name} is not known")
    return ratio


# Which share of its experts a mixture of experts reads when several tokens are computed together.
#
# Each token chooses `used` of `experts` for itself. Tokens of one batch (other requests, or
# drafts that are checked together) share those that they happen to have in common, and read the
# union. It is counted here as if each choice were independent and all experts equally likely:
# text on one subject chooses alike, so that this is what a batch reads at most, and close to it
# for unlike requests.


def expert_union_ratio(experts: int, used: int, sequences: float) -> float:
    """Return the share of all experts, 0 to 1, that a step of so many `sequences` reads.

    It is `used / experts` for one sequence and goes towards 1 with many: 1 - (1 - k/E)^B. A model
    without experts reads all of itself (1.0), however many share a step.
    """
    if experts <= 1 or not 0 < used < experts:
        return 1.0
    return 1.0 - math.pow(1.0 - used / experts, max(sequences, 1.0))
