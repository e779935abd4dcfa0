"""Reads a Hugging Face `config.json`: layers, experts, KV cache, quantisation. Pure.

Names differ between architectures; those that mean the same are listed together. Where a config
describes several networks the one that writes text counts.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slowtok.proxy.engines.models.kv_geometry import (
    F16_BYTES,
    FULL_ATTENTION_PERIOD,
    STATE_VALUE_BYTES,
    KvBytes,
    add_up,
)

Config = Mapping[str, Any]

FILE_NAME = "config.json"

TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_USED = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k",
    "moe_k", "top_k_experts",
)  # fmt: skip
HEADS = ("num_attention_heads", "n_head", "n_heads")
HEADS_KV = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv")
WIDTH = ("hidden_size", "n_embd", "d_model")
HEAD_LENGTH = ("head_dim", "attention_head_dim", "kv_channels")
CONVOLUTION = ("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "conv_kernel_size")
MAMBA_HEADS = ("mamba_n_heads", "mamba_num_heads")
MAMBA_HEAD_LENGTH = ("mamba_d_head", "mamba_head_dim")
MAMBA_STATE = ("mamba_d_state", "ssm_state_size", "state_size")
# Their layers differ in ways that no common field tells.
LAYERS_OF_THEIR_OWN = ("block_configs",)
SLIDING = frozenset({"sliding_attention", "chunked_attention", "local_attention"})
ATTENDING = SLIDING | {"full_attention", "attention", "global_attention", "hybrid"}
WITHOUT_LATENT_CACHE = frozenset({"minicpm3"})  # compresses in the weights alone


def text_config(config: Config) -> Config:
    """Return the part about the network that writes text; outer values fill what it leaves out."""
    for name in TEXT_CONFIGS:
        inner = config.get(name)
        if isinstance(inner, dict):
            return {**config, **text_config(inner)}
    return config


def layer_count(config: Config) -> int | None:
    """Return the number of layers."""
    return _whole(config, LAYERS)


def experts(config: Config) -> tuple[int | None, int | None]:
    """Return how many experts each layer has, and how many of them a token uses."""
    ffn = config.get("ffn_config")
    merged = {**config, **ffn} if isinstance(ffn, dict) else config
    return _whole(merged, EXPERTS), _whole(merged, EXPERTS_USED)


def kv_bytes(config: Config, attending: Collection[int] | None = None) -> KvBytes | None:
    """Return the bytes of KV cache for a token at 16 bit, or None where the config does not tell.

    `attending` are the layers that have keys and values, by the tensors; None is not known.
    """
    layers = layer_count(config)
    if layers is None or any(config.get(name) for name in LAYERS_OF_THEIR_OWN):
        return None
    kinds = _kinds(config.get("layer_types")) or _kinds(config.get("layers_block_type"))
    window = _window(config, kinds)
    slides = _slides(config, kinds, layers) if window else [False] * layers
    counted = [
        layer
        for layer in range(layers)
        if (attending is None or layer in attending)
        and (layer >= len(kinds) or kinds[layer] in ATTENDING)
    ]
    sizes = ((_layer_bytes(config, layer, slides[layer]), slides[layer]) for layer in counted)
    return add_up(sizes, window)


def state_bytes(config: Config, layers: int) -> float | None:
    """Return the recurrent state of one sequence over `layers` layers that keep one.

    None where the config does not tell its sizes. Counted at 32 bits, which engines keep it in.
    """
    if not layers:
        return 0.0
    values = _state_values(config)
    return None if values is None else float(layers * values * STATE_VALUE_BYTES)


def _state_values(config: Config) -> int | None:
    """Return how many values one layer keeps: what a convolution looks back at, and the state."""
    width = _whole(config, WIDTH)
    if length := _whole(config, ("conv_L_cache",)):
        return None if width is None else width * (length - 1)
    back = max((_whole(config, CONVOLUTION) or 1) - 1, 0)
    keys, key = (_whole(config, (f"linear_{n}",)) for n in ("num_key_heads", "key_head_dim"))
    heads, head = (_whole(config, (f"linear_{n}",)) for n in ("num_value_heads", "value_head_dim"))
    if keys and key and heads and head:
        return heads * head * key + back * (2 * keys * key + heads * head)
    heads, head = _whole(config, MAMBA_HEADS), _whole(config, MAMBA_HEAD_LENGTH)
    size, expand = _whole(config, MAMBA_STATE), _whole(config, ("mamba_expand", "expand"))
    inner = heads * head if heads and head else expand * width if expand and width else None
    if inner is None or size is None:
        return None
    groups = (_whole(config, ("mamba_n_groups", "n_groups")) or 0) if heads else 0
    return inner * size + back * (inner + 2 * groups * size)


def quantisation(config: Config) -> tuple[str | None, int | None]:
    """Return how the weights were quantised, and the bits of one; None for plain ones.

    The name is the method's, with number format and bits where it does not carry them: "FP8",
    "AWQ-INT4", "COMPRESSED-TENSORS-INT8".
    """
    section = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(section, dict):
        return None, None
    method = str(section.get("quant_method") or section.get("quant_algo") or "unknown").upper()
    if method == "MODELOPT":
        method = str(section.get("quant_algo") or method).upper()
    kind, bits = _number_format(section, method)
    carried = bits is None or any(mark in method for mark in ("FP4", "FP8", "INT4", "INT8"))
    return (method if carried else f"{method}-{kind}{bits}"), bits


def _number_format(section: Config, method: str) -> tuple[str, int | None]:
    groups = section.get("config_groups")
    weights = [
        group.get("weights") or {}
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict)
    ]
    if weights:
        kind = "FP" if weights[0].get("type") == "float" else "INT"
        return kind, _whole(weights[0], ("num_bits",))
    bits = _whole(section, ("bits", "w_bit"))
    if bits is None:
        marks = {"4BIT": section.get("load_in_4bit"), "8BIT": section.get("load_in_8bit")}
        bits = 4 if marks["4BIT"] or "FP4" in method else None
        bits = 8 if bits is None and (marks["8BIT"] or "FP8" in method) else bits
    return "INT", bits


def _layer_bytes(config: Config, layer: int, slides: bool) -> float | None:
    latent = _latent_values(config)
    if latent is not None:
        return float(F16_BYTES * latent)
    heads = _at(config, HEADS, layer)
    heads_kv = _heads_kv(config, layer, slides)
    width = _whole(config, WIDTH)
    default = width / heads if width and heads else None
    key = _head_length(config, "head_dim", slides) or default
    value = _head_length(config, "v_head_dim", slides) or key
    if heads_kv is None or key is None or value is None:
        return None
    return float(F16_BYTES * heads_kv * (key + value))


def _latent_values(config: Config) -> int | None:
    """Return the values per token and layer of multi-head latent attention: latent and position."""
    rank, rope = config.get("kv_lora_rank"), config.get("qk_rope_head_dim")
    if not rank or rope is None or config.get("model_type") in WITHOUT_LATENT_CACHE:
        return None
    return int(rank) + int(rope)


def _heads_kv(config: Config, layer: int, slides: bool) -> int | None:
    own = config.get("swa_num_key_value_heads" if slides else "num_global_key_value_heads")
    if isinstance(own, int):
        return own
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        return 1
    told = _at(config, HEADS_KV, layer)
    return _at(config, HEADS, layer) if told is None else told


def _head_length(config: Config, name: str, slides: bool) -> int | None:
    prefix = "swa_" if slides else "global_"
    own = _whole(config, (prefix + name,))
    if name == "head_dim":
        return own or _whole(config, HEAD_LENGTH)
    # A longer key of the same layer with no word on values: they are as long.
    longer = _whole(config, (f"{prefix}head_dim",))
    return own or longer or _whole(config, (name,))


def _window(config: Config, kinds: Sequence[str]) -> int | None:
    if config.get("use_sliding_window") is False:
        return None
    if "chunked_attention" in kinds:
        return _whole(config, ("attention_chunk_size",))
    return _whole(config, ("sliding_window", "sliding_window_size"))


def _slides(config: Config, kinds: Sequence[str], layers: int) -> list[bool]:
    """Return for each layer whether it attends to a window only; without a pattern all do."""
    if kinds:
        return [layer < len(kinds) and kinds[layer] in SLIDING for layer in range(layers)]
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        return [pattern[layer % len(pattern)] == "L" for layer in range(layers)]
    architecture = str(config.get("model_type") or "").removesuffix("_text")
    period = pattern or FULL_ATTENTION_PERIOD.get(architecture)
    if isinstance(period, int):
        return [layer % period < period - 1 for layer in range(layers)]
    first = config.get("max_window_layers")
    return [not isinstance(first, int) or layer >= first for layer in range(layers)]


def _whole(config: Config, names: Sequence[str]) -> int | None:
    found = (config.get(name) for name in names)
    return next((v for v in found if isinstance(v, int) and not isinstance(v, bool)), None)


def _at(config: Config, names: Sequence[str], layer: int) -> int | None:
    """Return a value for one layer: some are one number, some a list by layer."""
    for name in names:
        value = config.get(name)
        if isinstance(value, list):
            return int(value[layer]) if layer < len(value) else None
        if isinstance(value, int):
            return value
    return None


def _kinds(value: Any) -> list[str]:
    """Return the kind of each layer, where the list is one of kinds of attention."""
    kinds = [str(kind) for kind in value] if isinstance(value, list) else []
    return kinds if ATTENDING.intersection(kinds) else []
