"""KV cache, experts and quantisation by `config.json`: published figures where there are some."""

from typing import Any

import pytest

from slowtok.proxy.engines.models.hf_config import (
    experts,
    kv_bytes,
    quantisation,
    state_bytes,
    text_config,
)
from slowtok.proxy.engines.models.kv_geometry import KvBytes

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
# 4 layers of 4 heads, 2 with keys and values, of 16 values: 128 bytes a layer
PLAIN: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
LAYER = 2 * 2 * (16 + 16)
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
    "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
}  # fmt: skip


def growing(size: float) -> KvBytes:
    return KvBytes(growing=size, window_tokens=None, windowed=None)


def sliding(size: float, window: int, windowed: float) -> KvBytes:
    return KvBytes(growing=size, window_tokens=window, windowed=windowed)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"num_hidden_layers": 4, "num_attention_heads": 4}, id="no width"),
        pytest.param(PLAIN | {"block_configs": [{"attention": {}}]}, id="layers of their own"),
        pytest.param({"num_hidden_layers": True, "hidden_size": 64}, id="no number"),
    ],
)
def test_cache_of_unknown_size(config: dict[str, Any]) -> None:
    assert kv_bytes(config) is None


@pytest.mark.parametrize(
    ("more", "size"),
    [
        pytest.param({}, 4 * LAYER, id="grouped heads"),
        pytest.param({"num_key_value_heads": None}, 8 * LAYER, id="as many as query heads"),
        pytest.param({"head_dim": 32}, 8 * LAYER, id="a head length of its own"),
        pytest.param({"head_dim": 16, "v_head_dim": 8}, 3 * LAYER, id="shorter values"),
        pytest.param({"num_key_value_heads": None, "multi_query": True}, 2 * LAYER, id="one"),
        pytest.param({"num_kv_heads": [1, 2, 4, 1], "num_key_value_heads": None}, 4 * LAYER,
                     id="by layer"),
        pytest.param({"layer_types": [LINEAR, LINEAR, LINEAR, FULL]}, LAYER, id="hybrid"),
        pytest.param({"layer_types": ["dense", "moe", "moe", "moe"]}, 4 * LAYER,
                     id="types of something else"),
        pytest.param({"sliding_window": 8, "use_sliding_window": False}, 4 * LAYER, id="off"),
        pytest.param({"sliding_window": None}, 4 * LAYER, id="no window"),
        pytest.param({"sliding_window": 8, "max_window_layers": 4}, 4 * LAYER,
                     id="a window that begins after the last layer"),
    ],
)  # fmt: skip
def test_cache_that_grows(more: dict[str, Any], size: float) -> None:
    assert kv_bytes(PLAIN | more) == growing(size)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({}, sliding(0, 8, 4 * LAYER), id="every layer"),
        pytest.param({"layer_types": [SLIDING, FULL, SLIDING, FULL]},
                     sliding(2 * LAYER, 8, 2 * LAYER), id="told by layer"),
        pytest.param({"sliding_window_pattern": 4}, sliding(LAYER, 8, 3 * LAYER), id="a period"),
        pytest.param({"sliding_window_pattern": "LLLG"}, sliding(LAYER, 8, 3 * LAYER), id="text"),
        pytest.param({"model_type": "gemma2"}, sliding(2 * LAYER, 8, 2 * LAYER), id="Gemma 2"),
        pytest.param({"model_type": "gemma3_text"}, sliding(0, 8, 4 * LAYER), id="Gemma 3 of 4"),
        pytest.param({"max_window_layers": 3}, sliding(3 * LAYER, 8, LAYER), id="the last ones"),
        pytest.param({"layer_types": ["chunked_attention", FULL] * 2, "attention_chunk_size": 32},
                     sliding(2 * LAYER, 32, 2 * LAYER), id="chunks"),
        pytest.param({"layer_types": [SLIDING, SLIDING, SLIDING, FULL], "head_dim": 16,
                      "global_head_dim": 32, "num_global_key_value_heads": 1},
                     sliding(LAYER, 8, 3 * LAYER), id="Gemma 4's longer heads"),
    ],
)  # fmt: skip
def test_cache_of_a_window(more: dict[str, Any], expected: KvBytes) -> None:
    assert kv_bytes(PLAIN | {"sliding_window": 8} | more) == expected


def test_deepseek_v3_keeps_its_published_70_kb_for_a_token() -> None:
    assert kv_bytes(DEEPSEEK_V3) == growing(70_272)  # arXiv 2505.09343, table 1: 70.272 KB


def test_gpt_oss_20b() -> None:
    config = {
        "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "head_dim": 64,
        "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128,
        "layer_types": [SLIDING, FULL] * 12,
    }  # fmt: skip
    half = 12 * 2 * 8 * (64 + 64)
    assert kv_bytes(config) == sliding(half, 128, half)


def test_layers_that_the_tensors_show_without_keys() -> None:
    assert kv_bytes(PLAIN, frozenset({1, 3})) == growing(2 * LAYER)


def test_compression_in_the_weights_alone_is_no_latent_cache() -> None:
    kept = kv_bytes(DEEPSEEK_V3 | {"model_type": "minicpm3"})

    assert kept is not None
    assert kept.growing > 70_272


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, (None, None)),
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, (8, 2)),
        ({"n_routed_experts": 256, "num_experts_per_tok": 8}, (256, 8)),
        ({"ffn_config": {"moe_num_experts": 16, "moe_top_k": 4}}, (16, 4)),
    ],
)
def test_experts(config: dict[str, Any], expected: tuple[int | None, int | None]) -> None:
    assert experts(config) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, (None, None)),
        ({"quant_method": "awq", "bits": 4}, ("AWQ-INT4", 4)),
        ({"quant_method": "gptq", "bits": 8}, ("GPTQ-INT8", 8)),
        ({"quant_method": "fp8"}, ("FP8", 8)),
        ({"quant_method": "fbgemm_fp8"}, ("FBGEMM_FP8", 8)),
        ({"quant_method": "mxfp4"}, ("MXFP4", 4)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("BITSANDBYTES-INT4", 4)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("NVFP4", 4)),
        (
            {"quant_method": "compressed-tensors",
             "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}},
            ("COMPRESSED-TENSORS-FP8", 8),
        ),
        ({"quant_method": "of tomorrow"}, ("OF TOMORROW", None)),
    ],
)  # fmt: skip
def test_quantisation(said: dict[str, Any] | None, expected: tuple[str | None, int | None]) -> None:
    assert quantisation({"quantization_config": said}) == expected


def test_text_config_wins_and_the_outer_one_fills_in() -> None:
    merged = text_config(
        {
            "thinker_config": {"text_config": {"num_hidden_layers": 4}, "num_hidden_layers": 9},
            "quantization_config": {"quant_method": "fp8"},
        }
    )
    assert merged["num_hidden_layers"] == 4
    assert quantisation(merged) == ("FP8", 8)


QWEN_3_5_27B = {
    "linear_num_value_heads": 48, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_key_head_dim": 128, "linear_conv_kernel_dim": 4, "hidden_size": 5120,
}  # fmt: skip
GRANITE_4_H = {
    "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
    "mamba_d_conv": 4, "mamba_expand": 2, "hidden_size": 1536,
}  # fmt: skip
JAMBA = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "hidden_size": 4096}


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (QWEN_3_5_27B, 48 * 128 * 128 + 3 * (2 * 16 * 128 + 48 * 128)),
        (GRANITE_4_H, 48 * 64 * 128 + 3 * (48 * 64 + 2 * 128)),
        (JAMBA, 8192 * 16 + 3 * 8192),
        ({"conv_L_cache": 3, "hidden_size": 2048}, 2 * 2048),
    ],
)
def test_state_of_a_layer(config: dict[str, Any], values: int) -> None:
    assert state_bytes(config, 5) == 5 * values * 4


def test_state_of_unknown_size_and_no_state() -> None:
    assert state_bytes({"hidden_size": 64}, 1) is None
    assert state_bytes({"hidden_size": 64}, 0) == 0
