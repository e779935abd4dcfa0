"""Small folders as an engine loads them, held against arithmetic by hand."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fakes.hf_folder import Tensors, small_llama, write_folder
from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.models.hf_facts import main, read
from slowtok.proxy.engines.models.loading import (
    AS_IN_THE_FILES,
    SGLANG_ONLINE,
    VLLM_ONLINE,
    Loading,
    loading_asked,
)

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
