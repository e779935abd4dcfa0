"""The memory footprint of a model: weights, KV cache and overhead, and whether they fit.

Strategy: weights and KV cache are exact where the model's file was read. What an engine needs
beside them (compute buffers, the CUDA context) is a range, so "it fits" and "it cannot fit" are
both sure, and between them lies "perhaps".

Sources: buffers of 0.3 to 1.5 GiB and contexts of 0.3 to 0.6 GiB as llama.cpp and Ollama print
them at load; llama.cpp's `--fit` leaves 1 GiB free (its README). llama.cpp keeps the table of token
embeddings in RAM even with all layers on GPUs (src/llama-model.cpp: the input layer's device).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from slowtok.detectors.case.engine import WHOLE_ON_GPU, ModelFacts, ServerFacts
from slowtok.detectors.case.memo import cached_for_last_case_by_args
from slowtok.detectors.expectation.envelope import KV_RATIO

GIB = 2**30
MILLION = 1_000_000
LEAST_OVERHEAD_BYTES = int(0.6 * GIB)
MAX_OVERHEAD_BYTES = int(2.1 * GIB)
"""Buffers and the CUDA context of one process on one GPU: each GPU of a split has its own."""

FIT_MARGIN_BYTES = 1 * GIB
"""What engines leave free when they choose the layers themselves."""

LARGER_MAC_BYTES = 36 * GIB
LARGER_MAC_RATIO, SMALLER_MAC_RATIO = 3 / 4, 2 / 3
"""What macOS lets the GPU have of a Mac's memory (Metal's recommendedMaxWorkingSetSize), as
llama.cpp prints it at load: 10.67 of 16 GiB (abetlen/llama-cpp-python#687), 21.33 of 32
(ggml-org/llama.cpp#2011), 27 of 36, 48 of 64 (#1870), 72 of 96 (#3213). Later versions of macOS
give more, like 107.5 of 128 (antirez/ds4#893): what fits here fits there, too."""

MAX_EMBEDDING_RATIO = 0.55
"""Gemma-4-E2B, with a table for each layer, has the largest of config/models.csv: 0.51 of it. If
more is not read, it is something else that may lie on a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes that a model takes when all of it is on GPUs, KV cache of `context_tokens` included.

    `context_tokens` is the sum over all slots. `kv_bytes` is None where the geometry is not known.
    `embedding_bytes` is what of the weights stays in RAM anyway, as far as that is known. `gpus` is
    how many GPUs share the model.
    """

    weights_bytes: int
    kv_bytes: float | None
    context_tokens: int | None
    embedding_bytes: int = 0
    gpus: int = 1

    @property
    def least_overhead_bytes(self) -> int:
        """What contexts and buffers take on all GPUs together at the very least."""
        return LEAST_OVERHEAD_BYTES * self.gpus

    @property
    def most_overhead_bytes(self) -> int:
        """What contexts and buffers take on all GPUs together at most."""
        return MAX_OVERHEAD_BYTES * self.gpus

    @property
    def least_bytes(self) -> float:
        """What it needs at the very least."""
        return self.placed_bytes + self.least_overhead_bytes

    @property
    def placed_bytes(self) -> float:
        """Weights and KV cache that lie on GPUs when all layers do."""
        return self.weights_bytes - self.embedding_bytes + (self.kv_bytes or 0)

    @property
    def most_bytes(self) -> float | None:
        """What it needs at most; None where the KV cache's size is not known."""
        if self.kv_bytes is None:
            return None
        return self.weights_bytes + self.kv_bytes + self.most_overhead_bytes

    def fits(self, room_bytes: float) -> bool | None:
        """Return True if it fits into `room_bytes`; None where that cannot be told."""
        if self.least_bytes > room_bytes:
            return False
        most = self.most_bytes
        return True if most is not None and most <= room_bytes else None


@cached_for_last_case_by_args
def footprint(
    model: ModelFacts, server: ServerFacts, *, context_tokens: int | None = None, gpus: int = 1
) -> Footprint | None:
    """Return what the model needs at the context that the server reserves, or at another one.

    `context_tokens` counts all slots together, `gpus` the GPUs that share it. None where the size
    of the weights is not known.
    """
    if model.file_bytes is None:
        return None
    if context_tokens is None:
        context_tokens = reserved_tokens(server)
    kv = None if context_tokens is None else kv_bytes(model, server, context_tokens)
    return Footprint(
        weights_bytes=model.file_bytes,
        kv_bytes=kv,
        context_tokens=context_tokens,
        embedding_bytes=0 if server.kind in WHOLE_ON_GPU else embedding_bytes(model),
        gpus=gpus,
    )


def macos_gpu_bytes(ram_bytes: float) -> int:
    """Return what macOS lets the GPU have of so much memory, unless it was told otherwise."""
    is_larger = ram_bytes >= LARGER_MAC_BYTES
    return int(ram_bytes * (LARGER_MAC_RATIO if is_larger else SMALLER_MAC_RATIO))


def embedding_bytes(model: ModelFacts) -> int:
    """Return the weights that are looked up, not read; 0 where experts hide how many those are."""
    if model.file_bytes is None or model.read_bytes is None or (model.experts or 0) > 1:
        return 0
    unread = model.file_bytes - model.read_bytes
    return unread if 0 <= unread <= MAX_EMBEDDING_RATIO * model.file_bytes else 0


def reserved_tokens(server: ServerFacts) -> int | None:
    """Return the tokens that the server's KV cache has room for, over all of its slots."""
    if server.kv_cache_tokens is not None:
        return server.kv_cache_tokens
    if server.context_tokens is None:
        return None
    return server.context_tokens * (server.slots or 1)


def kv_bytes(model: ModelFacts, server: ServerFacts, context_tokens: int) -> float | None:
    """Return the size of a KV cache of so many tokens, None where the geometry is not known."""
    ratio = kv_type_ratio(server)
    if model.kv_bytes_per_token is None or ratio is None:
        return None
    window_tokens = min(context_tokens, (model.kv_window_tokens or 0) * (server.slots or 1))
    window = window_tokens * (model.kv_window_bytes_per_token or 0.0)
    states = (model.state_bytes or 0.0) * (server.slots or 1)
    return (context_tokens * model.kv_bytes_per_token + window) * ratio + states


def kv_type_ratio(server: ServerFacts) -> float | None:
    """Return the KV cache's bytes against 16-bit; None for a type that is not known."""
    ratios = [KV_RATIO.get((t or "f16").lower()) for t in (server.kv_type_k, server.kv_type_v)]
    known = [ratio for ratio in ratios if ratio is not None]
    return sum(known) / 2 if len(known) == 2 else None


def context_that_fits(
    model: ModelFacts,
    server: ServerFacts,
    room_bytes: float,
    *,
    beside_kv_bytes: float | None = None,
) -> int | None:
    """Return the most tokens (over all slots) whose KV cache fits beside the weights for sure.

    `beside_kv_bytes` is what weights and buffers take, where that was measured. 0 where not even
    the weights fit; None where the sizes are not known.
    """
    few, many = (kv_bytes(model, server, tokens) for tokens in (MILLION, 2 * MILLION))
    if model.file_bytes is None or few is None or many is None or many == few:
        return None
    per_token = (many - few) / MILLION
    beside_tokens = few - MILLION * per_token  # windows and states are of the same size at any
    if beside_kv_bytes is None:
        beside_kv_bytes = model.file_bytes + MAX_OVERHEAD_BYTES
    return max(int((room_bytes - beside_kv_bytes - beside_tokens) / per_token), 0)


def saved_by_q8_kv_bytes(model: ModelFacts, server: ServerFacts) -> float:
    """Return what the KV cache would be smaller in q8_0; 0 where that is not known."""
    tokens, ratio = reserved_tokens(server), kv_type_ratio(server)
    size = None if tokens is None else kv_bytes(model, server, tokens)
    if not size or not ratio:
        return 0.0
    return size * max(1 - KV_RATIO["q8_0"] / ratio, 0.0)


BITS_PER_WEIGHT: Mapping[str, float] = {
    "Q8_0": 8.50, "Q6_K": 6.56, "Q5_K_M": 5.70, "Q4_K_M": 4.89, "Q4_K_S": 4.67, "IQ4_XS": 4.46,
    "Q3_K_M": 4.00, "Q3_K_S": 3.64, "IQ3_XXS": 3.25, "Q2_K": 3.16, "IQ2_M": 2.93, "IQ2_XS": 2.59,
}  # fmt: skip
"""Types of GGUF files, of Llama-3.1-8B as llama.cpp's tools/quantize/README.md lists them (Q3_K_M
by the size of published files); larger models come out a little smaller."""


def bits_that_fit(model: ModelFacts, room_bytes: float) -> float | None:
    """Return how many bits per weight may take so much room; None where parameters are unknown."""
    return None if not model.parameters else max(room_bytes, 0.0) * 8 / model.parameters


def type_of(bits: float) -> str | None:
    """Return the largest common type of at most so many bits per weight; None below all."""
    return next((name for name, size in BITS_PER_WEIGHT.items() if size <= bits), None)
