"""The envelope: the rates expected of decode and prefill for a model, its hardware and context.

Strategy: one token needs the active weights and the KV cache read once, from the memory that
serves them, plus a fixed overhead for each layer. The parts: bytes (`reads`), memories (`memory`,
`serving`), today's split and batch (`configured`), prefill (`prefill`), the setup's own history
(`learned`). Claimed rates are judged against the same envelope (`judge_claim`).

The band's edges are empirical shares of the prediction; the ceiling is bandwidth alone, physics,
and the high edge never above it. The reference is the model wholly on the GPU that serves it,
alone; in RAM where there is no GPU or the engine was told to use none. What today's split and batch
should give stands beside it as `as_configured`.

Source: docs/envelope.md has the formula, every constant with its source, and the residuals.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from slowtok.config.hardware import find_gpu
from slowtok.detectors.case.case import Baseline, Case, Envelope, Neighbours, Range, Tokens
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts
from slowtok.detectors.case.memo import cached_for_last_case_by_args
from slowtok.detectors.expectation.assumed_model import completed_live, widen
from slowtok.detectors.expectation.configured import SPLIT_RAM_EFFICIENCY, configured
from slowtok.detectors.expectation.learned import REFINE_AFTER, learned_low_tps, refine
from slowtok.detectors.expectation.memory import GPU_HIGH_RATIO, Memory, reference
from slowtok.detectors.expectation.reads import KV_RATIO, NoBasis, Reads, reads_of, unpredictable
from slowtok.detectors.expectation.speculation import speculates

__all__ = [
    "KV_RATIO",
    "REFINE_AFTER",
    "SPLIT_RAM_EFFICIENCY",
    "expect",
    "judge_claim",
    "learned_low_tps",
    "refine",
]

DRAFTS_HIGH_RATIO = 3.0
"""With drafts, rates were seen of up to 2.7 times the bandwidth (published rows from the wild): 2.9
times the high edge without."""

# Is a claimed decode rate physically possible? The ceiling answers, not the band.

Possibility = Literal["impossible", "unheard-of", "plausible", "slow", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The judgement of one claimed rate, for one stream without speculation.

    `ceiling_ratio` is the claim against the ceiling: 2 is twice what the memory can deliver.
    """

    possibility: Possibility
    tps: float
    ceiling_ratio: float | None
    because: str


def with_expectation(case: Case) -> Case:
    """Return the case with what its model should give on its hardware, refined by its baseline."""
    envelope = expectation(
        case.server, case.model, case.device, case.timeline.tokens, case.neighbours
    )
    case = replace(case, envelope=envelope)
    return replace(case, envelope=refined(case, case.baseline))


def expectation(
    server: ServerFacts,
    model: ModelFacts,
    device: DeviceFacts,
    tokens: Tokens,
    neighbours: Neighbours,
) -> Envelope:
    """Return what a model should give on its hardware, by first principles."""
    return expect(
        model,
        device,
        replace(server, speculative=True) if tokens.drafted else server,
        context_of(tokens),
        sequences=1 + neighbours.decode_mean,
        processed_tokens=tokens.processed,
    )


def refined(case: Case, baseline: Baseline) -> Envelope:
    """Return a case's expectation that no baseline has refined yet, refined by this one.

    Not refined where tokens are drafted: other text gives other rates there.
    """
    return case.envelope if speculates(case) else refine(case.envelope, baseline)


def context_of(tokens: Tokens) -> int | None:
    """Return the mean context of the decode: the prompt and half of the answer."""
    return None if tokens.prompt is None else tokens.prompt + (tokens.completion or 0) // 2


def expect(
    model: ModelFacts,
    device: DeviceFacts,
    server: ServerFacts,
    context_tokens: int | None,
    *,
    gpu_indices: tuple[int, ...] | None = None,
    sequences: float = 1.0,
    processed_tokens: int | None = None,
) -> Envelope:
    """Return the band of decode rates in tokens per second, or the reason why there is none.

    `context_tokens` is the depth that counts: prompt plus half of the answer. `gpu_indices` are
    the GPUs that hold the model (by default those that the server says it uses). `sequences` is
    the mean number of sequences decoded together; it moves `as_configured` only.
    `processed_tokens` are the prompt's tokens that were not in the cache; they move `prefill` only.
    """
    model, assumed = completed_live(model)
    found = _expect(model, device, server, context_tokens, gpu_indices, sequences, processed_tokens)
    found = widen(found, assumed) if assumed else found
    return _with_drafts(found) if server.speculative else found


def _expect(
    model: ModelFacts,
    device: DeviceFacts,
    server: ServerFacts,
    context_tokens: int | None,
    gpu_indices: tuple[int, ...] | None,
    sequences: float,
    processed_tokens: int | None,
) -> Envelope:
    try:
        if server.local is False:
            where = server.unmapped or "the engine runs on another machine"
            raise NoBasis(f"{where}: its hardware is not visible")
        reads = reads_of(model, server, context_tokens)
        gpus, memory = _serving(server, model, device, gpu_indices)
    except NoBasis as reason:
        return _unknown(str(reason), context_tokens)
    prefill = _prefill(reads, model, gpus, processed_tokens) if memory.is_gpu else None
    unread = unpredictable(model) if memory.is_gpu else None
    band, expected_tps, today = None, None, None
    because = memory.notes if unread is None else (unread, *memory.notes)
    if unread is None:
        band, expected_tps = memory.band(reads), memory.expected_tps(reads)
        today = configured(memory, reads, model, device, server, gpus=gpus, sequences=sequences)
        because = (*memory.notes, *_assumed(server))
    return Envelope(
        decode=band,
        expected_tps=expected_tps,
        roofline_tps=expected_tps,
        ceiling_tps=memory.peak_bytes_per_s / reads.total if memory.is_bound else None,
        as_configured=today.band if today else None,
        basis=_basis(memory, reads, band),
        because=because,
        context_tokens=reads.context_tokens,
        read_bytes=reads.weights,
        kv_bytes=reads.kv,
        bandwidth_bytes_per_s=memory.peak_bytes_per_s,
        efficiency_ratio=memory.efficiency_ratio if band else None,
        prefill=prefill[0] if prefill else None,
        expected_prefill_tps=prefill[1] if prefill else None,
    )


@lru_cache(maxsize=64)
def _unknown(reason: str, context_tokens: int | None) -> Envelope:
    return Envelope(because=(reason,), context_tokens=context_tokens)


@cached_for_last_case_by_args
def _serving(
    server: ServerFacts,
    model: ModelFacts,
    device: DeviceFacts,
    indices: tuple[int, ...] | None,
) -> tuple[tuple[GpuFacts, ...], Memory]:
    """Return the GPUs that hold the model, all where that is not known, and what it is read from.

    The same for all requests until something else is told of the engine: so it is kept as long.
    """
    gpus = device.gpus or ()
    wanted = indices if indices is not None else (server.gpu_indices or None)
    if wanted is not None and gpus:
        gpus = tuple(gpu for gpu in gpus if gpu.index in wanted)
        if not gpus and server.gpu_layers != 0:
            raise NoBasis("the GPU that serves the model is not among those seen")
    return gpus, reference(model, device, server, gpus)


def _with_drafts(envelope: Envelope) -> Envelope:
    """Return what is expected with drafts: at least what the model gives without any.

    One read of the weights may give several tokens, so that there is no ceiling.
    """
    if envelope.read_bytes is None:
        return envelope
    note = "speculative decoding: held to what the model gives without, and there is no ceiling"
    return replace(
        envelope,
        decode=_raised(envelope.decode, envelope.ceiling_tps),
        as_configured=_raised(envelope.as_configured),
        ceiling_tps=None,
        because=(note, *envelope.because),
    )


def _raised(band: Range | None, ceiling_tps: float | None = None) -> Range | None:
    if band is None:
        return None
    high = max(band.high, GPU_HIGH_RATIO * (ceiling_tps or 0.0))
    return Range(low=band.low, high=DRAFTS_HIGH_RATIO * high)


def _prefill(
    reads: Reads, model: ModelFacts, gpus: tuple[GpuFacts, ...], processed: int | None
) -> tuple[Range, float] | None:
    """Return what prefill should give; None for several GPUs, of which none was measured."""
    if len(gpus) != 1:
        return None
    context = reads.context_tokens
    depth = max(context - processed / 2, 0) if processed is not None else context / 2
    return expected_prefill(model, gpus[0], processed_tokens=processed, depth_tokens=depth)


def _assumed(server: ServerFacts) -> tuple[str, ...]:
    if server.kv_type_k is None or server.kv_type_v is None:
        return ("type of the KV cache not known, counted as 16-bit",)
    return ()


def _basis(memory: Memory, reads: Reads, band: Range | None) -> str:
    bandwidth = f"{memory.peak_bytes_per_s / 1e9:.0f} GB/s"
    if band is not None:
        per_rate = reads.total / memory.peak_bytes_per_s
        bandwidth += f" x {band.low * per_rate:.2f}-{band.high * per_rate:.2f}"
    return (
        f"roofline, weights {_size(reads.weights)}, KV {_size(reads.kv)} "
        f"at {reads.context_tokens:,} tokens, {bandwidth}"
    )


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 0.1 * 2**30 else f"{count / 2**20:.1f} MiB"


def judge_claim(envelope: Envelope, tps: float) -> Claim:
    """Judge a claimed decode rate against an envelope.

    `impossible` is physics: above the ceiling. `unheard-of` is above `GPU_HIGH_RATIO` of it, which
    no published measurement reaches. `slow` is below the band. Without a ceiling: `unknown`.
    """
    ceiling = envelope.ceiling_tps
    if not ceiling:
        because = envelope.because[0] if envelope.because else "no ceiling is known"
        return Claim(possibility="unknown", tps=tps, ceiling_ratio=None, because=because)
    ratio = tps / ceiling
    possibility, because = _judge(envelope, tps, ratio)
    return Claim(possibility=possibility, tps=tps, ceiling_ratio=ratio, because=because)


def _judge(envelope: Envelope, tps: float, ratio: float) -> tuple[Possibility, str]:
    if ratio > 1:
        return "impossible", (
            f"{ratio:.3g} times what the memory can deliver: only speculative decoding, a sum over "
            "parallel requests, or prefill counted as decode can look like that"
        )
    if ratio > GPU_HIGH_RATIO:
        return "unheard-of", f"{ratio:.0%} of the memory's peak: no published run came so close"
    if envelope.decode is not None and tps < envelope.decode.low:
        return "slow", "below what this hardware gives when nothing is wrong"
    if envelope.decode is None:
        return "plausible", f"{ratio:.0%} of the memory's peak; the usual share is not known here"
    return "plausible", f"{ratio:.0%} of the memory's peak, inside the usual band"


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
