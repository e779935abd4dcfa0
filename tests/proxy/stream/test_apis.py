"""Which requests are generations."""

import pytest

from slowtok.proxy.stream.apis import find_api


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("GET", "/v1/chat/completions", id="another method"),
        pytest.param("POST", "/completions", id="llama-server's own API, not OpenAI's"),
        pytest.param("POST", "/completion", id="the same under its older name"),
        pytest.param("POST", "/v1/embeddings", id="no generation"),
        pytest.param("POST", "/v1/responses", id="not read yet"),
        pytest.param("POST", "/v1/messages", id="not read yet either"),
        pytest.param("POST", "/v1/chat/completions/control", id="a path below"),
        pytest.param("POST", "", id="no path"),
        pytest.param("POST", "/", id="the root"),
    ],
)
def test_everything_else_is_only_relayed(method: str, path: str) -> None:
    assert find_api(method, path) is None


@pytest.mark.parametrize(
    ("path", "name", "streams_by_default", "takes_stream_options"),
    [
        ("/v1/chat/completions", "openai-chat", False, True),
        ("/v1/chat/completions/", "openai-chat", False, True),
        ("/chat/completions", "openai-chat", False, True),
        ("/v1/completions", "openai-completions", False, True),
        ("/api/chat", "ollama", True, False),
        ("/api/generate", "ollama", True, False),
    ],
)
def test_generations(
    path: str, name: str, streams_by_default: bool, takes_stream_options: bool
) -> None:
    api = find_api("POST", path)

    assert api is not None
    assert api.name == name
    assert api.streams_by_default == streams_by_default
    assert api.takes_stream_options == takes_stream_options
