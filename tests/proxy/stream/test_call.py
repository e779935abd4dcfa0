"""Reading a request: its model, whether it streams, and its limit, as each API has it."""

import orjson
import pytest

from slowtok.proxy.stream.apis import Api, find_api
from slowtok.proxy.stream.call import MAX_MARKS, is_quickly_read, max_tokens_of, read_call


def api(path: str) -> Api:
    found = find_api("POST", path)
    assert found is not None
    return found


CHAT, OLLAMA = api("/v1/chat/completions"), api("/api/chat")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"not json",
        b'{"model":"x"',
        b"[]",
        b'["model"]',
        b'"model"',
        b"7",
        b"null",
        b"\xff\xfe",
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
        b'{"prompt":"\\ud800"}',  # half a letter: orjson refuses it, so the body passes unread
        b"\xef\xbb\xbf{}",
        b'{"temperature":NaN}',
    ],
)
def test_what_is_no_json_object_is_not_read(body: bytes) -> None:
    assert read_call(CHAT, body) is None


@pytest.mark.parametrize(
    ("body", "model", "stream", "ollama_stream"),
    [
        (b"{}", None, False, True),
        (b'{"model":"x","stream":true}', "x", True, True),
        (b'{"model":"x","stream":false}', "x", False, False),
        (b'{"model":7,"stream":null}', None, False, True),
        (b'{"model":["x"],"stream":"true"}', None, False, True),
        (b'{"model":"","stream":1}', None, False, True),
        (' {"model":"åß水"}\n'.encode(), "åß水", False, True),
    ],
)
def test_a_field_of_another_kind_counts_as_absent(
    body: bytes, model: str | None, stream: bool, ollama_stream: bool
) -> None:
    call, native = read_call(CHAT, body), read_call(OLLAMA, body)

    assert call is not None
    assert native is not None
    assert (call.model, call.stream, native.stream) == (model, stream, ollama_stream)
    assert call.payload == orjson.loads(body)


@pytest.mark.parametrize(
    ("path", "said", "limit"),
    [
        ("/v1/chat/completions", {}, None),
        ("/v1/chat/completions", {"max_tokens": 100}, 100),
        ("/v1/chat/completions", {"max_tokens": 100, "max_completion_tokens": 300}, 300),
        ("/v1/chat/completions", {"max_tokens": 100, "n": 2}, None),
        ("/v1/chat/completions", {"max_tokens": 100, "n": 1}, 100),
        *(("/v1/chat/completions", {"max_tokens": odd}, None) for odd in (0, -1, "9", 2.5, True)),
        ("/v1/chat/completions", {"max_tokens": 100, "options": ["x"]}, 100),
        ("/v1/responses", {"max_output_tokens": 50, "max_tokens": 9}, 50),
        ("/v1/messages", {"max_tokens": 70}, 70),
        ("/api/chat", {"options": {"num_predict": 60}}, 60),
        ("/api/chat", {"options": {"num_predict": -1}}, None),
        ("/completion", {"n_predict": 80, "max_tokens": 9}, 80),
    ],
)
def test_the_limit_of_an_answer_is_read_where_each_api_has_it(
    path: str, said: dict[str, object], limit: int | None
) -> None:
    call = read_call(api(path), orjson.dumps(said))

    assert call is not None
    assert max_tokens_of(call) == limit


@pytest.mark.parametrize(
    ("body", "is_quick"),
    [
        (b'{"prompt":"' + b"a" * 2 * MAX_MARKS + b'"}', True),
        (orjson.dumps({"prompt": "A plain sentence, as prompts have them. " * 100_000}), True),
        (b'{"prompt":[' + b"1," * (MAX_MARKS - 4) + b"1]}", True),
        (b'{"prompt":[' + b"1," * MAX_MARKS + b"1]}", False),
        (b"[" * (MAX_MARKS + 1) + b"]", False),
        (b'{"a":' * (MAX_MARKS + 1) + b"1}", False),
    ],
    ids=["one text", "sentences", "tokens", "too many tokens", "lists", "objects"],
)
def test_only_many_values_take_long_to_read(body: bytes, is_quick: bool) -> None:
    assert is_quickly_read(body) is is_quick
