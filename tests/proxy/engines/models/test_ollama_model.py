"""Metadata as `/api/show` gives it (server/routes.go, 0.33): long arrays come empty."""

from typing import Any

import orjson
import pytest

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.drivers.ollama import read_model
from slowtok.proxy.engines.probing.reply import ProbeReply

ENTRY = {
    "name": "llama3:8b", "digest": "sha256:1", "details": {"quantization_level": "Q4_K_M"},
}  # fmt: skip
LLAMA3 = {
    "general.architecture": "llama", "general.parameter_count": 8030261248,
    "llama.block_count": 32, "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8,
    "llama.embedding_length": 4096, "llama.context_length": 8192, "tokenizer.ggml.tokens": [],
}  # fmt: skip
SAID = ModelFacts(
    name="llama3:8b", path="/a", digest="sha256:1", quantisation="Q4_K_M", file_bytes=9,
    parameters=8030261248, layers=32,
)  # fmt: skip


def read(**changed: Any) -> ModelFacts:
    info = {**LLAMA3, **{key.replace("__", "."): value for key, value in changed.items()}}
    shown = ProbeReply(status=200, body=orjson.dumps({"model_info": info}))
    return read_model(ENTRY, shown, path="/a", on_disk_bytes=9)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"model_info": 3}', b'{"model_info": {}}'])
def test_without_metadata_the_lists_still_say_something(body: bytes) -> None:
    found = read_model(ENTRY, ProbeReply(status=200, body=body), path=None, on_disk_bytes=None)
    assert found == ModelFacts(name="llama3:8b", digest="sha256:1", quantisation="Q4_K_M")


@pytest.mark.parametrize(
    "changed",
    [
        {"llama__attention__head_count_kv": None},
        {"llama__attention__head_count_kv": []},
        {"llama__ssm__state_size": 128},
        {"llama__wkv__head_size": 64},
    ],
)
def test_a_cache_that_depends_on_what_was_left_out_is_unknown(changed: dict[str, Any]) -> None:
    assert read(**changed).kv_bytes_per_token is None


def test_a_dense_model() -> None:
    found = read()
    assert found.kv_bytes_per_token == 32 * 2 * 8 * 128 * 2  # 131,072: published for Llama 3 8B
    assert (found.layers, found.experts, found.read_bytes) == (32, None, None)
    assert found.parameters == SAID.parameters
    assert (found.path, found.file_bytes) == (SAID.path, SAID.file_bytes)


def test_experts() -> None:
    found = read(llama__expert_count=8, llama__expert_used_count=2)
    assert (found.experts, found.experts_used) == (8, 2)
