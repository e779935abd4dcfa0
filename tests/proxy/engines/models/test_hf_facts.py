"""Small Hugging Face folders of each family, held against arithmetic by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.hf_folder import Tensors, small_llama, write_folder, write_weights
from slowtok.proxy.engines.models.hf_facts import main, read, weight_files

LAYER_BYTES = 2 * (32 * 64 + 128 * 64)  # small_llama's keys and up projection
TABLE_BYTES = 2 * 100 * 64


def test_untied_embedding_is_a_look_up(tmp_path: Path) -> None:
    facts = read(write_folder(tmp_path / "m", *small_llama()))

    assert facts.read_bytes == 2 * LAYER_BYTES + TABLE_BYTES
    assert facts.parameters == LAYER_BYTES + TABLE_BYTES  # two bytes each, two tables
    assert (facts.layers, facts.experts, facts.experts_used) == (2, None, None)
    assert (facts.quantisation, facts.bits_per_weight) == ("BF16", 16)
    assert facts.kv_bytes_per_token == 2 * 2 * 2 * (16 + 16)
    assert (facts.kv_window_tokens, facts.kv_window_bytes_per_token) == (None, None)
    assert facts.file_bytes == (tmp_path / "m/model.safetensors").stat().st_size


@pytest.mark.parametrize("stored_twice", [False, True])
def test_tied_embedding_is_read_once(tmp_path: Path, stored_twice: bool) -> None:
    config, tensors = small_llama(tied=not stored_twice)
    facts = read(write_folder(tmp_path / "m", config | {"tie_word_embeddings": True}, tensors))

    assert facts.read_bytes == 2 * LAYER_BYTES + TABLE_BYTES


def test_smollm2_has_its_published_number_of_parameters(tmp_path: Path) -> None:
    layers, width, inner, words, kv = 30, 576, 1536, 49152, 192
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("BF16", (words, width)),
        "model.norm.weight": ("BF16", (width,)),
    }
    for layer in range(layers):
        for name, shape in {
            "self_attn.q_proj": (width, width), "self_attn.k_proj": (kv, width),
            "self_attn.v_proj": (kv, width), "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner), "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }.items():  # fmt: skip
            tensors[f"model.layers.{layer}.{name}.weight"] = ("BF16", shape)
    config = {"num_hidden_layers": layers, "num_attention_heads": 9, "num_key_value_heads": 3,
              "hidden_size": width, "tie_word_embeddings": True}  # fmt: skip
    facts = read(write_folder(tmp_path / "m", config, tensors))

    assert facts.parameters == 134_515_008
    assert facts.read_bytes == 2 * 134_515_008
    assert facts.kv_bytes_per_token == 30 * 2 * 3 * (64 + 64)


def moe(per_expert: str) -> Tensors:
    return {
        "model.layers.0.self_attn.k_proj.weight": ("BF16", (32, 64)),
        "model.layers.0.mlp.gate.weight": ("BF16", (8, 64)),
        "model.layers.0.mlp.shared_expert.up_proj.weight": ("BF16", (128, 64)),
        **{per_expert.format(n): ("BF16", (128, 64)) for n in range(8 if "{" in per_expert else 1)},
        "lm_head.weight": ("BF16", (100, 64)),
    }


@pytest.mark.parametrize(
    ("names", "all_bytes"),
    [
        ("model.layers.0.mlp.experts.{}.up_proj.weight", 8 * 2 * 128 * 64),
        ("model.layers.0.mlp.experts.gate_up_proj", 2 * 128 * 64),
    ],
)
def test_used_experts_are_read_and_shared_ones_always(
    tmp_path: Path, names: str, all_bytes: int
) -> None:
    config = small_llama(1)[0] | {"num_experts": 8, "num_experts_per_tok": 2}
    facts = read(write_folder(tmp_path / "m", config, moe(names)))

    rest = 2 * (32 * 64 + 8 * 64 + 128 * 64) + TABLE_BYTES
    assert facts.read_bytes == rest + all_bytes // 4
    assert (facts.experts, facts.experts_used) == (8, 2)


def test_experts_of_an_unknown_number_are_not_guessed(tmp_path: Path) -> None:
    tensors = moe("model.layers.0.mlp.experts.{}.up_proj.weight")

    assert read(write_folder(tmp_path / "m", small_llama(1)[0], tensors)).read_bytes is None


def test_what_does_not_write_the_next_token_is_not_read(tmp_path: Path) -> None:
    config, tensors = small_llama()
    beside: Tensors = {
        "visual.blocks.0.attn.qkv.weight": ("BF16", (64, 64)),
        "model.vision_tower.layers.0.self_attn.k_proj.weight": ("BF16", (64, 64)),
        "mtp.layers.0.self_attn.k_proj.weight": ("BF16", (64, 64)),
        "model.layers.2.self_attn.k_proj.weight": ("BF16", (64, 64)),  # predicts further tokens
        "model.embed_tokens_per_layer.weight": ("BF16", (100, 64)),
    }
    nested = {"vision_config": {"num_hidden_layers": 9}, "text_config": config}
    facts = read(write_folder(tmp_path / "m", nested, {**tensors, **beside}))

    assert facts.layers == 2
    assert facts.read_bytes == 2 * LAYER_BYTES + TABLE_BYTES


def test_layers_with_a_state_keep_no_keys(tmp_path: Path) -> None:
    config, tensors = small_llama(3)
    hybrid = {name: about for name, about in tensors.items() if "layers.0.self" not in name}
    state: Tensors = {
        "model.layers.0.linear_attn.A_log": ("BF16", (4,)),
        "model.layers.0.linear_attn.in_proj_qkvz.weight": ("BF16", (64, 64)),
        "model.layers.1.self_attn.A_log": ("BF16", (4,)),
    }
    facts = read(write_folder(tmp_path / "m", config, {**hybrid, **state}))

    assert facts.kv_bytes_per_token == 1 * 2 * 2 * (16 + 16)
    assert facts.state_bytes is None  # its sizes are not in the config


def test_fp8(tmp_path: Path) -> None:
    config, _ = small_llama(1)
    tensors: Tensors = {
        "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", (128, 64)),
        "model.layers.0.mlp.up_proj.weight_scale_inv": ("F32", (1, 1)),
        "lm_head.weight": ("BF16", (100, 64)),
    }
    quantised = config | {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}
    facts = read(write_folder(tmp_path / "m", quantised, tensors))

    assert facts.quantisation == "FP8"
    assert facts.parameters == 128 * 64 + 100 * 64, "a scale is no parameter"
    assert facts.read_bytes == 128 * 64 + 4 + TABLE_BYTES


AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 32}


def test_packed_weights_are_counted_one_by_one(tmp_path: Path) -> None:
    tensors: Tensors = {
        "model.layers.0.mlp.up_proj.qweight": ("I32", (64, 16)),
        "model.layers.0.mlp.up_proj.qzeros": ("I32", (2, 16)),
        "model.layers.0.mlp.up_proj.scales": ("F16", (2, 128)),
    }
    folder = write_folder(tmp_path / "m", small_llama(1)[0] | {"quantization_config": AWQ}, tensors)
    facts = read(folder)

    assert (facts.quantisation, facts.parameters) == ("AWQ-INT4", 128 * 64)
    assert facts.bits_per_weight == 8 * (4 * 64 * 16 + 4 * 2 * 16 + 2 * 2 * 128) / (128 * 64)


def test_packed_weights_of_unknown_bits_are_not_counted(tmp_path: Path) -> None:
    tensors: Tensors = {"model.layers.0.mlp.up_proj.qweight": ("I32", (64, 16))}
    facts = read(write_folder(tmp_path / "m", small_llama(1)[0], tensors))

    assert (facts.parameters, facts.bits_per_weight) == (None, None)


def test_32_bit_checkpoint_is_served_with_16(tmp_path: Path) -> None:
    config, tensors = small_llama(1)
    wide = {name: ("F32", shape) for name, (_, shape) in tensors.items()}
    facts = read(write_folder(tmp_path / "m", config | {"torch_dtype": "float32"}, wide))

    assert facts.read_bytes == LAYER_BYTES + TABLE_BYTES


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    config, tensors = small_llama()
    folder = write_folder(tmp_path / "m", config, {})
    (folder / "model.safetensors").unlink()
    parts = [dict(list(tensors.items())[at::2]) for at in range(2)]
    for number, part in enumerate(parts):
        write_weights(folder / f"model-{number}.safetensors", part)
    write_weights(folder / "consolidated.safetensors", tensors)
    alone = read(folder)
    names = {name: f"model-{n}.safetensors" for n, part in enumerate(parts) for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    write_weights(folder / "adapter.safetensors", tensors)

    assert read(folder) == alone
    assert alone.read_bytes == 2 * LAYER_BYTES + TABLE_BYTES
    assert [path.name for path in weight_files(folder)] == [
        "model-0.safetensors", "model-1.safetensors",
    ]  # fmt: skip


def test_config_alone_tells_what_it_can(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", small_llama()[0], {})
    (folder / "model.safetensors").unlink()
    facts = read(folder)

    assert (facts.layers, facts.kv_bytes_per_token) == (2, 256)
    assert (facts.read_bytes, facts.parameters, facts.file_bytes) == (None, None, None)


def test_digest_tells_models_apart(tmp_path: Path) -> None:
    config, tensors = small_llama()
    first = read(write_folder(tmp_path / "a", config, tensors))
    same = read(write_folder(tmp_path / "b", config, tensors))
    other = read(write_folder(tmp_path / "c", config | {"rope_theta": 2}, tensors))

    assert replace(same, path=first.path) == first
    assert other.digest != first.digest


@pytest.mark.parametrize(
    "weights",
    [
        pytest.param(b"", id="empty"),
        pytest.param((1 << 60).to_bytes(8, "little"), id="a header larger than the format allows"),
        pytest.param((99).to_bytes(8, "little") + b"{}", id="cut short"),
        pytest.param((2).to_bytes(8, "little") + b"[]", id="no object"),
        pytest.param((8).to_bytes(8, "little") + b'{"a":{}}', id="no tensor"),
    ],
)
def test_folder_that_cannot_be_read(
    tmp_path: Path, weights: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "m", small_llama()[0], {})
    (folder / "model.safetensors").write_bytes(weights)

    assert main([str(folder)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_needs_one_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
