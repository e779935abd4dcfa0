"""Small models with random weights, as GGUF files: what they say is noise, what they keep is real.

The vocabulary and the chat template are the demo model's. `windowed` has Gemma 3's layers, most of
them with a sliding window; `recurrent` has Mamba's, which keep a state and no keys; `mixture` has
Qwen3's with experts, of which each token reads some. `dense` has Llama's, of any size, with a
vocabulary of its own: nothing has to be fetched for it.
"""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, TokenType

from slowtok.proxy.cli.demo.model import fetch_model

WIDTH, LAYERS, CONTEXT = 128, 6, 32_768
HEADS, HEAD_WIDTH = 4, 32
WINDOW_TOKENS = 256
EXPERTS, EXPERTS_USED, EXPERT_WIDTH = 32, 2, 256
INNER, STATE, RANK, KERNEL = 2 * WIDTH, 16, 8, 4


def windowed(path: Path) -> Path:
    """Write a model of which five layers of six see the last `WINDOW_TOKENS` tokens only."""
    writer, vocabulary = _begun(path, "gemma3")
    _add_heads(writer)
    writer.add_sliding_window(WINDOW_TOKENS)
    tensors: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        name = f"blk.{layer}"
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            tensors[f"{name}.{norm}"] = (WIDTH,)
        tensors |= _attention(name)
        tensors[f"{name}.ffn_gate"] = tensors[f"{name}.ffn_up"] = (4 * WIDTH, WIDTH)
        tensors[f"{name}.ffn_down"] = (WIDTH, 4 * WIDTH)
    _written(writer, tensors, vocabulary)
    return path


def recurrent(path: Path) -> Path:
    """Write a model whose layers keep a state in place of keys and values."""
    writer, vocabulary = _begun(path, "mamba")
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(KERNEL)
    writer.add_ssm_inner_size(INNER)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(RANK)
    tensors: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        name = f"blk.{layer}"
        tensors[f"{name}.attn_norm"] = (WIDTH,)
        tensors[f"{name}.ssm_in"] = (2 * INNER, WIDTH)
        tensors[f"{name}.ssm_conv1d"] = (INNER, KERNEL)
        tensors[f"{name}.ssm_conv1d.bias"] = (INNER,)
        tensors[f"{name}.ssm_x"] = (RANK + 2 * STATE, INNER)
        tensors[f"{name}.ssm_dt"] = (INNER, RANK)
        tensors[f"{name}.ssm_dt.bias"] = (INNER,)
        tensors[f"{name}.ssm_a"] = (INNER, STATE)
        tensors[f"{name}.ssm_d"] = (INNER,)
        tensors[f"{name}.ssm_out"] = (WIDTH, INNER)
    _written(writer, tensors, vocabulary)
    return path


def mixture(path: Path) -> Path:
    """Write a model whose tokens read `EXPERTS_USED` of `EXPERTS` experts in each layer."""
    writer, vocabulary = _begun(path, "qwen3moe")
    _add_heads(writer)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(EXPERTS_USED)
    writer.add_expert_feed_forward_length(EXPERT_WIDTH)
    tensors: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        name = f"blk.{layer}"
        tensors[f"{name}.attn_norm"] = tensors[f"{name}.ffn_norm"] = (WIDTH,)
        tensors |= _attention(name)
        tensors[f"{name}.ffn_gate_inp"] = (EXPERTS, WIDTH)
        tensors[f"{name}.ffn_gate_exps"] = (EXPERTS, EXPERT_WIDTH, WIDTH)
        tensors[f"{name}.ffn_up_exps"] = (EXPERTS, EXPERT_WIDTH, WIDTH)
        tensors[f"{name}.ffn_down_exps"] = (EXPERTS, WIDTH, EXPERT_WIDTH)
    _written(writer, tensors, vocabulary)
    return path


def dense(path: Path, *, width: int, layers: int) -> Path:
    """Write a model of 16-bit weights, `16 * width ** 2` in each layer."""
    writer = GGUFWriter(path, "llama")
    writer.add_name("random llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(4 * width)
    writer.add_block_count(layers)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_head_count(width // 64)
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    # words that no prompt holds: an answer is made of them, a prompt of bytes
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [f"\u2581{number:x}" for number in range(0x1000, 0x2000)]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    kinds += [TokenType.NORMAL] * 0x1000
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * len(words))
    writer.add_token_types(kinds)
    square, wide, norm = (width, width), (4 * width, width), (width,)
    layer = {"attn_norm": norm, "attn_q": square, "attn_k": square, "attn_v": square}
    layer |= {"attn_output": square, "ffn_norm": norm, "ffn_gate": wide, "ffn_up": wide}
    layer |= {"ffn_down": (width, 4 * width)}
    dice = np.random.default_rng(7)
    # layers alike do for a load, and drawing numbers is what takes time
    drawn: dict[tuple[int, ...], Any] = {
        shape: (dice.standard_normal(shape, np.float32) * np.float32(width**-0.5)).astype("f2")
        for shape in (square, wide, (width, 4 * width), (len(words), width))
    }
    drawn[norm] = np.ones(norm, np.float32)
    writer.add_tensor("token_embd.weight", drawn[len(words), width])
    writer.add_tensor("output_norm.weight", drawn[norm])
    for number in range(layers):
        for name, shape in layer.items():
            writer.add_tensor(f"blk.{number}.{name}.weight", drawn[shape])
    _saved(writer)
    return path


def _begun(path: Path, architecture: str) -> tuple[GGUFWriter, int]:
    """Return a file with what all have in common, and the size of its vocabulary."""
    writer = GGUFWriter(path, architecture)
    writer.add_name(f"random {architecture}")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(4 * WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_layer_norm_rms_eps(1e-6)
    words = 0
    for name, field in GGUFReader(fetch_model()).fields.items():
        if name.startswith("tokenizer."):
            value: Any = field.contents()
            if field.types[0] == GGUFValueType.ARRAY:
                writer.add_array(name, value)
            else:
                writer.add_key_value(name, value, field.types[0])
            words = len(value) if name == "tokenizer.ggml.tokens" else words
    return writer, words


def _add_heads(writer: GGUFWriter) -> None:
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD_WIDTH)
    writer.add_value_length(HEAD_WIDTH)
    writer.add_rope_freq_base(10_000.0)


def _attention(layer: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's attention, with norms of its own."""
    found: dict[str, tuple[int, ...]] = {}
    for norm in ("attn_q_norm", "attn_k_norm"):
        found[f"{layer}.{norm}"] = (HEAD_WIDTH,)
    for part in ("attn_q", "attn_k", "attn_v"):
        found[f"{layer}.{part}"] = (HEADS * HEAD_WIDTH, WIDTH)
    found[f"{layer}.attn_output"] = (WIDTH, HEADS * HEAD_WIDTH)
    return found


def _written(writer: GGUFWriter, tensors: dict[str, tuple[int, ...]], vocabulary: int) -> None:
    """Write the tensors: matrices at random, norms as ones, a recurrent decay below zero."""
    dice = np.random.default_rng(7)
    every = {**tensors, "token_embd": (vocabulary, WIDTH), "output_norm": (WIDTH,)}
    for name, shape in every.items():
        if name.endswith("norm"):
            values = np.ones(shape, np.float32)
        elif name.endswith("ssm_a"):
            values = -np.ones(shape, np.float32)
        else:
            values = dice.standard_normal(shape, np.float32) * np.float32(WIDTH**-0.5)
        suffix = "" if name.endswith((".bias", "ssm_a", "ssm_d")) else ".weight"
        writer.add_tensor(name + suffix, values)
    _saved(writer)


def _saved(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
