"""Command lines of vLLM and SGLang, and what they make of weights."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from slowtok.proxy.engines.models.loading import (
    AS_IN_THE_FILES,
    SGLANG_ONLINE,
    VLLM_ONLINE,
    Loading,
    loading_asked,
    unknown_because,
    with_options_read,
)

FP8 = Loading(quantisation="fp8", linear_bits=8, expert_bits=8)


def vllm(*words: str) -> Loading:
    return loading_asked(("vllm", "serve", "org/m", *words), VLLM_ONLINE)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--dtype auto --load-format auto --quantization None",
        "--dtype bfloat16",
        "--dtype half --load-format safetensors",
        "--load-format runai_streamer",
        "--quantization_config.moe.activation mxfp8",
        '--quantization-config {"moe":{"activation":"mxfp8"}}',
        '--hf-overrides {"rope_scaling":{"rope_type":"yarn"},"max_position_embeddings":131072}',
        '--hf-overrides {"text_config":{"rope_parameters":{"factor":4}}}',
        "--hf-overrides.rope_scaling.factor 4",
        "--hf_overrides.text_config.rope_theta=1e6",
        "--served-model-name fp8 --tensor-parallel-size 2",
    ],
)
def test_what_leaves_weights_as_they_are(line: str) -> None:
    assert vllm(*line.split()) == AS_IN_THE_FILES


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--quantization fp8", FP8),
        ("-q fp8", FP8),
        ("-qfp8", FP8),
        ("-q=FP8", FP8),
        ("--quantization=mxfp8",
         Loading(quantisation="mxfp8", linear_bits=8.25, expert_bits=8.25)),
        ("--quantization experts_int8", Loading(quantisation="experts_int8", expert_bits=8)),
        ("--quantization torchao", Loading(quantisation="torchao")),
        ("--dtype float", Loading(plain_bits=32)),
        ("--config /etc/vllm.yaml", Loading(options_file="/etc/vllm.yaml")),
    ],
)  # fmt: skip
def test_what_a_line_asks_for(line: str, expected: Loading) -> None:
    assert vllm(*line.split()) == expected


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("--load-format sharded_state", "--load-format sharded_state"),
        ('--hf-overrides {"num_hidden_layers":2}', "--hf-overrides"),
        ('--hf-overrides {"text_config":{"num_hidden_layers":2}}', "--hf-overrides"),
        ("--hf-overrides {broken", "--hf-overrides"),
        ("--hf-overrides.num_hidden_layers=2", "--hf-overrides.num_hidden_layers"),
        ('--quantization-config {"linear":"fp8_per_block"}', "--quantization-config"),
        ('--quantization-config {"ignore":["re:.*q_proj"]}', "--quantization-config"),
        ("--quantization-config.linear.weight fp8_per_block_static", "--quantization-config"),
        ("--torchao-config int4wo-128", "--torchao-config"),
    ],
)
def test_what_hides_their_size(line: str, option: str) -> None:
    asked = vllm(*line.split())
    assert option in (asked.doubt or "")
    assert unknown_because(asked, quantised=False, bits=None) == asked.doubt


@pytest.mark.parametrize(
    ("method", "quantised", "bits"),
    [
        pytest.param(None, False, None, id="nothing asked"),
        pytest.param("fp8", False, None, id="of known size"),
        pytest.param("gptq_marlin", True, 4, id="the checkpoint's own, by another name"),
        pytest.param("fp8", True, 8, id="the checkpoint's own"),
        pytest.param("modelopt_fp4", True, 4, id="the checkpoint's own four bits"),
        pytest.param("modelopt_fp4", True, None, id="of a checkpoint that does not tell its bits"),
    ],
)
def test_known(method: str | None, quantised: bool, bits: int | None) -> None:
    asked = loading_asked(["x", "-q", method or "none"], VLLM_ONLINE)
    assert unknown_because(asked, quantised=quantised, bits=bits) is None


@pytest.mark.parametrize(
    ("method", "quantised", "bits"),
    [
        ("bitsandbytes", False, None),
        ("torchao", False, None),
        ("of tomorrow", False, None),
        ("modelopt_fp4", True, 8),
        ("nvfp4_online", True, 8),
        ("humming", True, 4),
    ],
)
def test_not_known(method: str, quantised: bool, bits: int | None) -> None:
    asked = Loading(quantisation=method)
    because = unknown_because(asked, quantised=quantised, bits=bits)
    assert f"--quantization {method} " in (because or "")


def test_the_engines_mean_different_things_by_one_name() -> None:
    line = ("x", "--quantization", "mxfp4")
    assert loading_asked(line, VLLM_ONLINE).linear_bits == 4.25
    assert loading_asked(line, SGLANG_ONLINE).linear_bits is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "port: 8000\ntensor-parallel-size: 2\n",
        "dtype: auto\n'dtype': \"bfloat16\"  # as trained\nkv_cache_dtype: auto\n",
        "load-format: safetensors",
    ],
)
def test_a_file_of_options_that_is_silent(tmp_path: Path, text: str) -> None:
    file = tmp_path / "o.yaml"
    file.write_text(text)
    assert with_options_read(replace(FP8, options_file=str(file))) == FP8


@pytest.mark.parametrize(
    "text",
    [
        "quantization: fp8",
        "{port: 8000, quantization: fp8}",
        "dtype: float32",
        "kv-cache-dtype: fp8",
        "load_format: bitsandbytes",
        "hf-overrides:\n  num_hidden_layers: 2\n",
        "# long\n" * 20_000,
    ],
)
def test_a_file_of_options_that_may_say_more(tmp_path: Path, text: str) -> None:
    file = tmp_path / "o.yaml"
    file.write_text(text)
    asked = Loading(options_file=str(file))
    assert with_options_read(asked) == asked
    assert str(file) in (unknown_because(asked, quantised=True, bits=4) or "")


def test_a_file_of_options_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in (
        "o.yaml",
        str(tmp_path / "gone"),
        str(tmp_path / "pipe"),
        str(tmp_path / "binary"),
    ):
        assert with_options_read(Loading(options_file=name)).options_file == name
