import re

import pytest

from slowtok.config import models
from slowtok.config.models import find_model, known_models, trained_context_tokens

MIB = 2**20


@pytest.mark.parametrize(
    ("name", "billions", "layers"),
    [
        (None, None, None),
        ("", None, None),
        ("my-finetune", None, None),
        ("my-finetune", 8.03, None),  # the size alone says nothing
        ("llama ?B Q3_K - Small", 125.03, None),
        ("Qwen3-8B", 12.0, None),  # the name alone neither, where a size denies it
        ("Llama-3-8B", 8.03, 41),
    ],
)
def test_what_does_not_agree_is_not_known(
    name: str | None, billions: float | None, layers: int | None
) -> None:
    parameters = None if billions is None else billions * 1e9
    assert find_model(name, parameters=parameters, layers=layers) is None


@pytest.mark.parametrize(
    ("name", "billions", "layers", "known"),
    [
        ("Qwen3-8B", None, None, "Qwen3-8B"),
        ("Qwen3.5-4B-Q4_K_M.gguf", None, None, "Qwen3.5-4B"),
        ("qwen3:8b", 8.19, None, "Qwen3-8B"),
        ("llama3.2:1b", 1.236, None, "Llama-3.2-1B"),
        ("llama 8B Q4_K - Medium", 8.03, 32, "Llama-3-8B"),
        ("qwen35moe 35B.A3B Q4_K - Medium", 35.51, 40, "Qwen3.5-35B-A3B"),
        ("gemma3 12B Q8_0", 11.77, 48, "Gemma-3-12B"),
        ("Gemma-4-12B", 11.91, 48, "Gemma-4-12B"),
        ("deepseek2 30B.A3B Q8_0", 29.94, 47, "GLM-4.7-Flash"),
        ("llama 13B Q4_K - Medium", 23.57, 40, "Mistral-Small-24B"),
    ],
)
def test_names_of_engines_and_repositories(
    name: str, billions: float | None, layers: int | None, known: str
) -> None:
    parameters = None if billions is None else billions * 1e9
    model = find_model(name, parameters=parameters, layers=layers)
    assert model is not None
    assert model.name == known


def test_the_number_of_kv_heads_tells_models_of_one_size_apart() -> None:
    few = find_model("x", parameters=34.8e9, layers=40, kv_heads=2)
    many = find_model("x", parameters=34.8e9, layers=40, kv_heads=64)
    assert few is not None
    assert many is not None
    assert (few.name, many.name) == ("Qwen3.5-35B-A3B", "Command-R-35B")


# KV cache at 16 bits; engines print the first two: "KV self size = 512.00 MiB" for Llama-3.1-8B at
# 4,096 tokens, 640.00 MiB for Llama-3-70B at 2,048. The rest follows from the shapes.
@pytest.mark.parametrize(
    ("name", "at_4k_mib", "at_32k_mib"),
    [
        ("Llama-3-8B", 512, 4096),
        ("Llama-3-70B", 1280, 10240),
        ("Llama-2-7B", 2048, 16384),
        ("Qwen3-8B", 576, 4608),
        ("Qwen3-32B", 1024, 8192),
        ("Qwen3-30B-A3B", 384, 3072),
        ("gpt-oss-20b", 99, 771),
        ("gpt-oss-120b", 148.5, 1156.5),
        ("Gemma-3-27B", 736, 2976),
        ("DeepSeek-V3-671B", 274.5, 2196),
        ("Qwen3.5-27B", 256, 2048),
    ],
)
def test_the_kv_cache_of_published_models(name: str, at_4k_mib: float, at_32k_mib: float) -> None:
    [model] = [m for m in known_models() if m.name == name]
    for tokens, expected_mib in ((4096, at_4k_mib), (32768, at_32k_mib)):
        kv_bytes = tokens * model.kv_bytes_per_token
        kv_bytes += min(tokens, model.window_tokens or 0) * (model.window_bytes_per_token or 0)
        assert kv_bytes / MIB == pytest.approx(expected_mib)


def test_no_model_reads_more_than_it_has() -> None:
    for model in known_models():
        assert 0 < model.read_parameters <= model.parameters, model.name
        assert (model.experts is None) == (model.experts_used is None), model.name


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("llama3.1:8b", 131_072),
        ("Meta-Llama-3-8B-Instruct", 8192),
        ("/models/Llama-3.2-3B-Instruct-Q4_K_M.gguf", 131_072),
        ("mistral-small3.2:24b", 131_072),
        ("Mistral-Small-24B-Instruct-2501", 32_768),
        ("qwen3:4b", 40_960),  # the first of that name; that of 2507 can hold more
        ("Qwen3-4B-Instruct-2507", 262_144),
        ("qwen3-coder:30b", 262_144),
        ("gemma4:e4b", 131_072),
        ("Qwen2.5-7B", 131_072),  # of the table of shapes
        ("nobody's", None),
        (None, None),
    ],
)
def test_context_that_a_model_was_trained_for(name: str | None, tokens: int | None) -> None:
    assert trained_context_tokens(name) == tokens


def test_contexts_are_written_as_names_are_split() -> None:
    for name, tokens in models._contexts().items():
        assert re.findall(r"[a-z]+|\d+", name) == name.split()
        assert tokens > 0
