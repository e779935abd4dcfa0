"""Hugging Face folders with real safetensors headers, and no weights behind them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BYTES_OF = {
    "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I8": 1, "I64": 8,
}  # fmt: skip
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


def write_weights(path: Path, tensors: Tensors) -> Path:
    """Write a safetensors file: the header, and a hole as long as its tensors."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (type_name, shape) in tensors.items():
        begin, end = end, end + BYTES_OF[type_name] * math.prod(shape)
        table[name] = {"dtype": type_name, "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(table).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    return path


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    """Write a model of one file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder / "model.safetensors", tensors)
    return folder


def small_llama(layers: int = 2, *, tied: bool = False) -> tuple[dict[str, Any], Tensors]:
    """A Llama of 64 values: 4 heads, 2 with keys and values, of 16; 100 words."""
    config = {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": 64, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "bfloat16",
        "tie_word_embeddings": tied,
    }  # fmt: skip
    tensors = {"model.embed_tokens.weight": ("BF16", (100, 64))}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        tensors[f"{at}.self_attn.k_proj.weight"] = ("BF16", (32, 64))
        tensors[f"{at}.mlp.up_proj.weight"] = ("BF16", (128, 64))
    if not tied:
        tensors["lm_head.weight"] = ("BF16", (100, 64))
    return config, tensors
