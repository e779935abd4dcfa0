"""Names of models and GPUs as people write them."""

import pytest

from slowtok.config.models import find_model
from slowtok.proxy.cli.fit.names import (
    OLLAMA_DEFAULT_SIZES,
    SHAPED_LIKE,
    as_typed_at_hugging_face,
    gpu_named,
    published_name,
    squeezed,
)


@pytest.mark.parametrize(
    ("typed", "published"),
    [
        ("deepseek-r1:8b", "Qwen3-8B"),
        ("mistral-small3.2:24b", "Mistral-Small-24B"),
        ("unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF", "Qwen3-30B-A3B"),
        ("devstral:24b", "Mistral-Small-24B"),
        ("Devstral-2-123B-Instruct-2512", "Devstral-2-123B"),
        ("glm-4.6", "GLM-4.6-355B"),  # the only one that begins so
        ("gemma4:26b", "Gemma-4-26B-A4B"),
        ("nemotron-3-nano", "Nemotron-3-Nano-30B-A3B"),
        ("qwen:7b", "qwen:7b"),  # not Qwen2.5-7B
        ("gemma4", "gemma4"),  # several begin so
        ("nobodys-9b", "nobodys-9b"),
        ("Qwen3-8B", "Qwen3-8B"),
        (None, None),
    ],
)
def test_published_model_that_a_name_means(typed: str | None, published: str | None) -> None:
    assert published_name(typed) == published


def test_all_that_another_has_the_shape_of_are_published() -> None:
    for name, base in SHAPED_LIKE.items():
        assert squeezed(name) == name
        found = find_model(base)
        assert found is not None
        assert found.name == base


@pytest.mark.parametrize("family", sorted(OLLAMA_DEFAULT_SIZES))
def test_every_family_has_a_shape_with_the_size_that_ollama_takes(family: str) -> None:
    assert find_model(published_name(f"{family}:{OLLAMA_DEFAULT_SIZES[family]}")) is not None


@pytest.mark.parametrize("address", ["", "hf.co/", "https://huggingface.co/"])
def test_address_before_a_name_is_left_out(address: str) -> None:
    assert as_typed_at_hugging_face(f"{address}org/Qwen3-8B-GGUF:Q6_K") == "org/Qwen3-8B-GGUF:Q6_K"


def test_gpu_that_nobody_knows_keeps_its_name() -> None:
    assert gpu_named(" 3 x RTX 9999 ").name == "RTX 9999"
    assert gpu_named("RTX 3060 8GB").other_memory_gib == 8
