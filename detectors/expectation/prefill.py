"""The expected prefill rate, in tokens per second of prompt that is not in the cache.

    tps = efficiency x FLOPS / (2 x parameters) x parameters / (parameters + attention at depth)

Prefill is computing, so the peak is arithmetic (`config/gpus.csv`), not bandwidth, and engines
differ more: the band is wide. Constants: `config/efficiency.toml`, written by `make fit`.
"""

import math

from slowtok.config.hardware import find_gpu
from slowtok.detectors.case.case import Range
from slowtok.detectors.case.engine import ModelFacts
from slowtok.detectors.case.machine import GpuFacts

SHORT_PROMPT_TOKENS = 128
"""Fewer are one pass over the weights, limited by memory and not by arithmetic."""


def expected_prefill(
    model: ModelFacts, gpu: GpuFacts, *, processed_tokens: int | None, depth_tokens: float
) -> tuple[Range, float] | None:
    """Return the band and the middle in tokens per second; None where too little is known.

    `depth_tokens` is the mean number of tokens before the one that is computed.
    """
    if processed_tokens is not None and processed_tokens < SHORT_PROMPT_TOKENS:
        return None
    spec = find_gpu(gpu.name)
    if spec is None or spec.prefill is None or spec.card is None or not spec.card.flops:
        return None
    parameters = active_parameters(model)
    if parameters is None or not model.layers:
        return None
    known = spec.prefill
    efficiency = known.efficiency_ratio * (known.moe_ratio if (model.experts or 0) > 1 else 1.0)
    work = 2 * (parameters + attention_parameters(parameters, model.layers, depth_tokens))
    middle = efficiency * spec.card.flops / work
    return Range(low=known.low_ratio * middle, high=known.high_ratio * middle), middle


def active_parameters(model: ModelFacts) -> float | None:
    """Return the parameters that each token is multiplied with; by their mean bits if need be."""
    if model.active_parameters is not None:
        return model.active_parameters
    if model.read_bytes is None or not model.bits_per_weight:
        return None
    return model.read_bytes * 8 / model.bits_per_weight


def attention_parameters(parameters: float, layers: int, depth_tokens: float) -> float:
    """Return attention's work at a depth, in parameters: layers x width x depth.

    Queries times keys, and scores times values, are 4 x width x depth operations a layer, as are
    2 x width x depth parameters; half of it in the middle of a prompt is in `depth_tokens`.
    The width is not among the facts: a dense layer has about 12 width^2 parameters.
    """
    width = math.sqrt(parameters / (12 * layers))
    return 2 * layers * width * depth_tokens
