"""Which requests make the engine compute."""

from pathlib import Path

import pytest

from slowtok.proxy.stream.apis import _APIS, find_api


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("GET", "/v1/chat/completions", id="another method"),
        pytest.param("POST", "/v1/chat/completions/control", id="a path below"),
        pytest.param("POST", "/v1/messages/count_tokens", id="counts, computes nothing"),
        pytest.param("POST", "/v1/responses/input_tokens", id="the same of OpenAI"),
        pytest.param("GET", "/v1/responses/resp_1", id="an answer kept"),
        pytest.param("POST", "/tokenize", id="no work for the model"),
        pytest.param("POST", "/api/show", id="facts"),
        pytest.param("POST", "/v1/nope", id="unknown"),
        pytest.param("POST", "", id="no path"),
        pytest.param("POST", "/", id="the root"),
    ],
)
def test_everything_else_is_only_relayed(method: str, path: str) -> None:
    assert find_api(method, path) is None


@pytest.mark.parametrize(
    ("path", "name", "flags"),
    [
        ("/v1/chat/completions", "openai-chat", "takes_stream_options"),
        ("/v1/chat/completions/", "openai-chat", "takes_stream_options"),
        ("/chat/completions", "openai-chat", "takes_stream_options"),
        ("/v1/completions", "openai-completions", "takes_stream_options"),
        ("/v1/responses", "openai-responses", ""),
        ("/v1/messages", "anthropic-messages", ""),
        ("/api/chat", "ollama", "streams_by_default"),
        ("/api/generate", "ollama", "streams_by_default"),
        ("/completion", "llama-server", ""),
        ("/completions", "llama-server", ""),  # not /v1/completions: another reply
        ("/infill", "llama-server", ""),
        ("/api/embed", "ollama-embed", "prefill_only"),
        ("/api/embeddings", "ollama-embed", "prefill_only"),
        ("/v1/embeddings", "embeddings", "prefill_only"),
        ("/embedding", "embeddings", "prefill_only"),
        ("/v1/rerank", "rerank", "prefill_only"),
        ("/reranking", "rerank", "prefill_only"),
    ],
)
def test_each_path_has_its_api(path: str, name: str, flags: str) -> None:
    api = find_api("POST", path)

    assert api is not None
    assert api.name == name
    set_flags = ("streams_by_default", "takes_stream_options", "prefill_only")
    assert " ".join(flag for flag in set_flags if getattr(api, flag)) == flags
    streams_for_whole = ("openai-chat", "openai-completions", "openai-responses")
    assert (api.make_parts is not None) == (name in (*streams_for_whole, "anthropic-messages"))


def test_every_dialect_has_its_test_file() -> None:
    dialects = {api.read.__module__.rpartition(".")[2] for api in _APIS.values()}
    tests = {path.stem for path in Path(__file__).parent.glob("dialects/test_*.py")}

    assert {f"test_{name}" for name in dialects} <= tests
