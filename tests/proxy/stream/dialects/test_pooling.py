"""Embeddings and reranking: OpenAI's, Cohere's and Ollama's; llama-server's are recorded."""

from typing import Any

import pytest

from slowtok.detectors.case.case import Tokens
from slowtok.proxy.stream.dialects import ollama, pooling
from slowtok.proxy.stream.reply import Reply


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"data": [], "model": "e", "usage": {"prompt_tokens": 8, "total_tokens": 8}}, 8),
        ({"results": [], "model": "e", "usage": {"total_tokens": 56}}, 56),  # vLLM /rerank
        ({"data": [], "model": "e"}, None),
    ],
)
def test_counts(body: dict[str, Any], prompt: int | None) -> None:
    reply = Reply()

    assert not pooling.read(body, reply)
    assert reply.tokens() == Tokens(prompt=prompt, completion=0)
    assert (reply.model, reply.failed) == ("e", False)


@pytest.mark.parametrize("read", [pooling.read, ollama.read_embedding])
def test_an_error_counts_nothing(read: Any) -> None:
    reply = Reply()

    assert not read({"error": {"message": "x"}}, reply)
    assert (reply.tokens(), reply.failed) == (Tokens(), True)


def test_ollama_tells_the_time_as_well() -> None:
    reply = Reply()
    body = {
        "model": "e",
        "embeddings": [[0.1]],
        "total_duration": 300_000_000,
        "load_duration": 100_000_000,
        "prompt_eval_count": 8,
    }

    assert not ollama.read_embedding(body, reply)
    assert reply.tokens() == Tokens(prompt=8, completion=0)
    engine = reply.engine()
    assert engine is not None
    assert engine.load_s == 0.1
    assert engine.prefill_s == pytest.approx(0.2)
    assert engine.decode_s is None


def test_ollamas_older_path_tells_nothing() -> None:
    reply = Reply()

    assert not ollama.read_embedding({"embedding": [0.1]}, reply)
    assert (reply.tokens(), reply.engine()) == (Tokens(completion=0), None)
