"""Bytes of keys and values that one token adds, summed over layers; a GGUF's own layers.

Counted is what decode reads at 16 bits: layers that share another's cache read it again. Layers
without attention (`head_count_kv` 0, or recurrent) add nothing; what they keep is the same at any
context: `state_bytes`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

F16_BYTES = 2
STATE_VALUE_BYTES = 4  # llama.cpp keeps recurrent states as 32-bit floats (llama-memory-hybrid.cpp)
# Every n-th layer attends to everything, the others to a window. llama.cpp fixes these periods in
# its code for architectures whose files do not carry the pattern.
FULL_ATTENTION_PERIOD = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "exaone4": 4, "plamo3": 8,
    "llama4": 4, "olmo2": 4, "afmoe": 4, "smallthinker": 4,
}  # fmt: skip
# Windows that llama.cpp assumes where the file does not name one.
FIXED_WINDOW_TOKENS = {"llama4": 8192}


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBytes:
    """Bytes per token over all layers: those that grow for ever, and those inside the window."""

    growing: float
    window_tokens: int | None
    windowed: float | None


def kv_bytes(field: Callable[[str], Any], layers: int, recurrent: frozenset[int]) -> KvBytes | None:
    """Return the bytes per token, or None where the metadata does not say the head sizes."""
    window_tokens = _window_tokens(field)
    slides = _slides(field, layers) if window_tokens else [False] * layers
    attending = [layer for layer in range(layers) if layer not in recurrent]
    return add_up(
        ((_layer_bytes(field, layer, slides[layer]), slides[layer]) for layer in attending),
        window_tokens,
    )


def state_bytes(field: Callable[[str], Any], layers: int) -> float | None:
    """Return the recurrent state of one sequence over `layers` layers that keep one.

    None where the metadata does not say its sizes. Sources: llama-hparams.cpp of llama.cpp,
    `n_embd_r` (what a convolution looks back at) and `n_embd_s` (the state).
    """
    if not layers:
        return 0.0
    values = _state_values(field)
    return None if values is None else float(layers * values * STATE_VALUE_BYTES)


def _state_values(field: Callable[[str], Any]) -> int | None:
    """Return how many values one layer keeps: RWKV, short convolution, Kimi's delta, Mamba."""
    width = field("{arch}.embedding_length") or 0
    if head := field("{arch}.wkv.head_size"):
        return int(width * (head + (field("{arch}.token_shift_count") or 2)))
    if length := field("{arch}.shortconv.l_cache"):
        return int(width * (length - 1))
    back = max((field("{arch}.ssm.conv_kernel") or 0) - 1, 0)
    if head := field("{arch}.kda.head_dim"):
        inner = (_at(field("{arch}.attention.head_count"), 0) or 0) * head
        return int(inner * (head + 3 * back))
    inner, size = field("{arch}.ssm.inner_size"), field("{arch}.ssm.state_size")
    if not inner or not size:
        return None
    groups = field("{arch}.ssm.group_count") or 0
    return int(inner * size + back * (inner + 2 * groups * size))


def add_up(
    layers: Iterable[tuple[float | None, bool]], window_tokens: int | None
) -> KvBytes | None:
    """Return the sum over layers, each with its bytes and whether it attends to a window only.

    None where the size of a layer is not known.
    """
    growing = windowed = 0.0
    for size, slides in layers:
        if size is None:
            return None
        if slides:
            windowed += size
        else:
            growing += size
    if not windowed:
        return KvBytes(growing=growing, window_tokens=None, windowed=None)
    return KvBytes(growing=growing, window_tokens=window_tokens, windowed=windowed)


def _layer_bytes(field: Callable[[str], Any], layer: int, slides: bool) -> float | None:
    heads_kv = _at(field("{arch}.attention.head_count_kv"), layer)
    heads = _at(field("{arch}.attention.head_count"), layer)
    if heads_kv is None:
        heads_kv = heads  # llama.cpp's default: as many as there are query heads
    if heads_kv == 0:
        return 0.0
    latent = _latent_values(field)
    if latent is not None:
        return F16_BYTES * latent
    width = field("{arch}.embedding_length")
    default = width / heads if width and heads else None
    key = _head_length(field, "key", slides) or default
    value = _head_length(field, "value", slides) or default
    if heads_kv is None or key is None or value is None:
        return None
    return float(F16_BYTES * heads_kv * (key + value))


def _latent_values(field: Callable[[str], Any]) -> int | None:
    """Return the values per token and layer of multi-head latent attention, if the file uses it.

    `key_length_mla` is what tells llama.cpp to cache the latent; older conversions of the same
    models lack it and cache full keys and values.
    """
    rank = field("{arch}.attention.kv_lora_rank")
    if not rank or not field("{arch}.attention.key_length_mla"):
        return None
    return int(rank) + int(field("{arch}.rope.dimension_count") or 0)


def _head_length(field: Callable[[str], Any], which: str, slides: bool) -> int | None:
    own = field(f"{{arch}}.attention.{which}_length_swa") if slides else None
    length = own or field(f"{{arch}}.attention.{which}_length")
    return None if length is None else int(length)


def _window_tokens(field: Callable[[str], Any]) -> int | None:
    """Return the window; one of 0 in the file means that there is none."""
    told: int | None = field("{arch}.attention.sliding_window")
    fixed = FIXED_WINDOW_TOKENS.get(field("general.architecture"))
    return told or None if fixed is None or told == 0 else fixed


def _slides(field: Callable[[str], Any], layers: int) -> list[bool]:
    """Return for each layer whether it attends to a window only.

    The pattern is a flag for each layer, or a period, or fixed by the architecture. Where none of
    them is known no layer counts as sliding: llama.cpp reads no window for such architectures.
    """
    pattern = field("{arch}.attention.sliding_window_pattern")
    if isinstance(pattern, list) and pattern:
        return [bool(pattern[layer % len(pattern)]) for layer in range(layers)]
    period = (
        FULL_ATTENTION_PERIOD.get(field("general.architecture")) if pattern is None else pattern
    )
    if not isinstance(period, int):
        return [False] * layers
    return [period == 0 or layer % period < period - 1 for layer in range(layers)]


def _at(value: Any, layer: int) -> int | None:
    """Return a metadata value for one layer: some are one number, some an array by layer."""
    if isinstance(value, list):
        return int(value[layer]) if layer < len(value) else None
    return None if value is None else int(value)
