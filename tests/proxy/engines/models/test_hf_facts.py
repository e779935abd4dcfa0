"""Small Hugging Face folders of each family, held against arithmetic by hand."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from fakes.hf_folder import Tensors, small_llama, write_folder, write_weights
from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.models.hf_facts import main, read, weight_files
from slowtok.proxy.engines.models.loading import (
    AS_IN_THE_FILES,
    SGLANG_ONLINE,
    VLLM_ONLINE,
    Loading,
    loading_asked,
)

LAYER_BYTES = 2 * (32 * 64 + 128 * 64)  # small_llama's keys and up projection
TABLE_BYTES = 2 * 100 * 64

LINEAR = 32 * 64 + 128 * 64  # weights of one layer of small_llama
TABLE = 100 * 64
EXPERT = 128 * 64
BESIDE = 32 * 64 + 128 * 64  # of MIXTURE's layer: keys and the shared expert
ROUTER = 8 * 64
MIXTURE: Tensors = {
    "model.layers.0.self_attn.k_proj.weight": ("BF16", (32, 64)),
    "model.layers.0.input_layernorm.weight": ("BF16", (64,)),
    "model.layers.0.mlp.gate.weight": ("BF16", (8, 64)),
    "model.layers.0.mlp.shared_expert.up_proj.weight": ("BF16", (128, 64)),
    **{f"model.layers.0.mlp.experts.{n}.up_proj.weight": ("BF16", (128, 64)) for n in range(8)},
    "lm_head.weight": ("BF16", (100, 64)),
}


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


def asked(line: str) -> Loading:
    return loading_asked(("vllm", "serve", "org/m", *line.split()), VLLM_ONLINE)


def dense(tmp_path: Path, line: str, type_name: str = "BF16", *, tied: bool = False) -> ModelFacts:
    config, tensors = small_llama(tied=tied)
    stored = {name: (type_name, shape) for name, (_, shape) in tensors.items()}
    return read(write_folder(tmp_path / "m", config, stored), asked(line))


@pytest.mark.parametrize(
    "line", ["", "--dtype bfloat16", "--dtype float16", "-q experts_int8", "-q nvfp4_per_token"]
)
def test_what_does_not_change_a_dense_model(tmp_path: Path, line: str) -> None:
    facts = dense(tmp_path, line)

    assert facts.read_bytes == 2 * (2 * LINEAR + TABLE)
    assert facts.file_bytes == (tmp_path / "m/model.safetensors").stat().st_size
    assert (facts.bits_per_weight, facts.bytes_unknown) == (16, None)


QUANTISED = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}
STORED: Tensors = {
    "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", (128, 64)),
    "model.layers.0.mlp.up_proj.weight_scale_inv": ("F32", (1, 1)),
    "lm_head.weight": ("BF16", (100, 64)),
}


@pytest.mark.parametrize("line", ["", "-q fp8", "--dtype half", "-q compressed-tensors"])
@pytest.mark.parametrize("config", [QUANTISED, {}], ids=["told by the config", "by the tensors"])
def test_a_quantised_checkpoint_stays_as_it_is(
    tmp_path: Path, line: str, config: dict[str, object]
) -> None:
    folder = write_folder(tmp_path / "m", small_llama(1)[0] | config, STORED)
    facts = read(folder, asked(line))

    assert facts.read_bytes == 128 * 64 + 4 + 2 * TABLE
    assert facts.bytes_unknown is None


def test_masks_and_positions_make_no_quantised_checkpoint(tmp_path: Path) -> None:
    config, tensors = small_llama()
    beside: Tensors = {
        "model.layers.0.attn.bias": ("U8", (1, 1, 8, 8)),
        "model.position_ids": ("I64", (1, 8)),
    }
    folder = write_folder(tmp_path / "m", config, {**tensors, **beside})

    assert read(folder, asked("-q fp8")).quantisation == "FP8"


@pytest.mark.parametrize(
    ("line", "linear_bytes", "table_bytes"),
    [
        ("-q fp8", 1, 2),
        ("-q fp8_per_block", 1, 2),
        ("-q mxfp8", 33 / 32, 2),
        ("-q mxfp4", 17 / 32, 2),
        ("--dtype float32", 4, 4),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_a_dense_model(
    tmp_path: Path, line: str, linear_bytes: float, table_bytes: int, tied: bool
) -> None:
    facts = dense(tmp_path, line, tied=tied)
    tables = 1 if tied else 2

    assert facts.read_bytes == 2 * LINEAR * linear_bytes + TABLE * table_bytes
    all_bytes = 2 * LINEAR * linear_bytes + tables * TABLE * table_bytes
    assert facts.bits_per_weight == pytest.approx(8 * all_bytes / (2 * LINEAR + tables * TABLE))
    stored = (tmp_path / "m/model.safetensors").stat().st_size
    assert facts.file_bytes == stored + all_bytes - 2 * (2 * LINEAR + tables * TABLE)


@pytest.mark.parametrize("line", ["", "--dtype auto", "--dtype half"])
def test_32_bits_are_cast_to_16_whatever_the_config_says(tmp_path: Path, line: str) -> None:
    facts = dense(tmp_path, line, "F32")  # the config says bfloat16

    assert facts.read_bytes == 2 * (2 * LINEAR + TABLE)
    assert facts.bits_per_weight == 16


@pytest.mark.parametrize(
    ("line", "beside_bytes", "expert_bytes"),
    [
        ("", 2, 2),
        ("-q fp8", 1, 1),
        ("-q experts_int8", 2, 1),
        ("-q int8_per_channel_weight_only", 2, 1),
        ("-q nvfp4_per_token", 2, 9 / 16),
    ],
)
def test_a_mixture_of_experts(
    tmp_path: Path, line: str, beside_bytes: int, expert_bytes: float
) -> None:
    config = small_llama(1)[0] | {"num_experts": 8, "num_experts_per_tok": 2}
    facts = read(write_folder(tmp_path / "m", config, MIXTURE), asked(line))

    plain = 2 * (64 + ROUTER + TABLE)  # norm, router and output matrix stay at 16 bits
    assert facts.read_bytes == plain + beside_bytes * BESIDE + expert_bytes * 2 * EXPERT


def test_sglang_knows_other_methods(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", *small_llama())
    weights = loading_asked(("x", "--quantization", "w8a8_fp8"), SGLANG_ONLINE)

    assert read(folder, weights).read_bytes == 2 * LINEAR + 2 * TABLE


@pytest.mark.parametrize("line", ["-q bitsandbytes", "-q torchao", "--load-format tensorizer"])
def test_what_loading_makes_of_them_is_not_known(tmp_path: Path, line: str) -> None:
    facts = dense(tmp_path, line)

    assert (facts.read_bytes, facts.file_bytes, facts.bits_per_weight) == (None, None, None)
    assert facts.bytes_unknown is not None
    assert (facts.parameters, facts.layers) == (2 * LINEAR + 2 * TABLE, 2)


def test_the_reader_is_told_on_its_command_line(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = write_folder(tmp_path / "m", *small_llama())
    said = json.dumps(asdict(asked("-q fp8")))

    assert main([str(folder), said]) == 0
    assert json.loads(capfdbinary.readouterr().out)["quantisation"] == "FP8"
    assert read(folder, AS_IN_THE_FILES).digest != read(folder, asked("-q fp8")).digest
