"""Ollama's native API and its `/v1`.

Not recorded: the texts are reconstructed from the documented format (`api/types.go`,
`server/routes.go`, `middleware/openai.go` of Ollama 0.33; `timings` of 0.35), with made-up values.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import recordings
from slowtok.detectors.case.case import EngineTimings, Tokens
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.meter import Meter

NDJSON, SSE, JSON = "application/x-ndjson", "text/event-stream", "application/json; charset=utf-8"

CHAT = (
    b'{"model":"qwen3:8b","created_at":"2026-11-20T10:00:02.1Z",'
    b'"message":{"role":"assistant","content":"Red"},"done":false}\n'
    b'{"model":"qwen3:8b","created_at":"2026-11-20T10:00:02.2Z",'
    b'"message":{"role":"assistant","content":"."},"done":false}\n'
    b'{"model":"qwen3:8b","created_at":"2026-11-20T10:00:02.3Z",'
    b'"message":{"role":"assistant","content":""},"done":true,"done_reason":"stop",'
    b'"total_duration":2300000000,"load_duration":101500000,'
    b'"prompt_eval_count":34,"prompt_eval_cached_count":24,"prompt_eval_duration":303354000,'
    b'"eval_count":3,"eval_duration":200000000}\n'
)
THINKING = (
    b'{"model":"qwen3:8b","response":"","thinking":"Hm","done":false}\n'
    b'{"model":"qwen3:8b","response":"","thinking":"m","done":false}\n'
    b'{"model":"qwen3:8b","response":"Red","done":false}\n'
    b'{"model":"qwen3:8b","response":"","done":true,"done_reason":"length","context":[1,2,3],'
    b'"total_duration":1500000000,"load_duration":100000000,'
    b'"prompt_eval_count":9,"prompt_eval_duration":50000000,"eval_count":4,"eval_duration":90000000}\n'
)
TOOL_CALL = (
    b'{"model":"qwen3:8b","message":{"role":"assistant","content":"","tool_calls":['
    b'{"id":"call_1","function":{"index":0,"name":"get_weather","arguments":{"city":"Oslo"}}}]},'
    b'"done":false}\n'
    b'{"model":"qwen3:8b","message":{"role":"assistant","content":""},"done":true,'
    b'"done_reason":"stop","total_duration":9000000000,"load_duration":100000000,'
    b'"prompt_eval_count":120,"prompt_eval_duration":700000000,'
    b'"eval_count":40,"eval_duration":8000000000}\n'
)
BROKE = (
    b'{"model":"qwen3:8b","message":{"role":"assistant","content":"Red"},"done":false}\n'
    b'{"error":"an error was encountered while running the model"}\n'
)
LOADED = (
    b'{"model":"qwen3:8b","response":"","done":true,"done_reason":"load",'
    b'"load_duration":4000000000}'
)
OLD = b'{"model":"llama2","response":"Red","done":true,"eval_count":1,"prompt_eval_count":5}'


def measure(path: str, text: bytes, content_type: str, offsets: list[int]) -> Meter:
    api = find_api("POST", path)
    assert api is not None
    meter = Meter(api, content_type)
    for piece in recordings.cut(text, offsets):
        meter.feed(piece, 1.0)
    meter.finish(2.0)
    return meter


def timings(load: float, prefill: float, decode: float) -> EngineTimings:
    return EngineTimings(load_s=load, prefill_s=prefill, decode_s=decode)


REPLIES = [
    pytest.param(
        "/api/chat", CHAT, "stop", Tokens(prompt=34, cached=24, completion=3),
        timings(0.1015, 0.303354, 0.2), id="chat",
    ),
    pytest.param(
        "/api/generate", THINKING, "length", Tokens(prompt=9, completion=4),
        timings(0.1, 0.05, 0.09), id="generate with thinking",
    ),
    pytest.param(
        "/api/chat", TOOL_CALL, "stop", Tokens(prompt=120, completion=40),
        timings(0.1, 0.7, 8.0), id="a tool call",
    ),
    pytest.param(
        "/api/generate", OLD, "stop", Tokens(prompt=5, completion=1), None,
        id="before done_reason; zeros are left out",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("path", "text", "finish", "tokens", "engine"), REPLIES)
@settings(max_examples=30)
@given(offsets=st.lists(st.integers(0, 700)))
def test_native_streams(
    path: str,
    text: bytes,
    finish: str,
    tokens: Tokens,
    engine: EngineTimings | None,
    offsets: list[int],
) -> None:
    meter = measure(path, text, NDJSON, offsets)

    assert meter.parse_errors == 0
    assert meter.reply.finish == finish
    assert meter.reply.tokens() == tokens
    assert meter.reply.engine() == engine
    assert meter.first_at_s == (2.0 if text == OLD else 1.0)
    assert not meter.reply.failed


@pytest.mark.parametrize(
    ("line", "carries"),
    [
        (b'{"message":{"role":"assistant","content":""},"done":false}', False),
        (b'{"response":"","done":false}', False),
        (b'{"done":true,"done_reason":"stop"}', False),
        (b'{"message":null,"response":null}', False),
        (b'{"message":{"content":"x"}}', True),
        (b'{"message":{"content":"","thinking":"x"}}', True),
        (b'{"message":{"content":"","tool_calls":[{"function":{"name":"f"}}]}}', True),
        (b'{"response":"x"}', True),
        (b'{"response":"","thinking":"x"}', True),
    ],
)
def test_what_is_a_token(line: bytes, carries: bool) -> None:
    meter = measure("/api/chat", line + b"\n", NDJSON, [])

    assert (meter.first_at_s is not None) == carries
    assert meter.parse_errors == 0


def test_an_error_in_the_middle() -> None:
    meter = measure("/api/chat", BROKE, NDJSON, [])

    assert meter.reply.failed
    assert meter.reply.finish is None
    assert meter.first_at_s == 1.0
    assert meter.reply.tokens() == Tokens()


def test_whole_replies() -> None:
    last = CHAT.splitlines()[-1].replace(b'"content":""', b'"content":"Red."')
    meter = measure("/api/chat", last, JSON, [40])

    assert meter.reply.tokens() == Tokens(prompt=34, cached=24, completion=3)
    assert meter.reply.engine() == timings(0.1015, 0.303354, 0.2)
    assert meter.reply.model == "qwen3:8b"


def test_an_empty_prompt_only_loads() -> None:
    meter = measure("/api/generate", LOADED, JSON, [])

    assert meter.reply.finish == "load"
    assert meter.reply.engine() == EngineTimings(load_s=4.0)
    assert meter.reply.tokens() == Tokens()


V1_CHAT = (
    b'data: {"id":"chatcmpl-7","object":"chat.completion.chunk","model":"qwen3:8b",'
    b'"system_fingerprint":"fp_ollama","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":"","reasoning":"Hm"},"finish_reason":null}]}\n\n'
    b'data: {"id":"chatcmpl-7","object":"chat.completion.chunk","model":"qwen3:8b",'
    b'"system_fingerprint":"fp_ollama","choices":[{"index":0,'
    b'"delta":{"content":"Red"},"finish_reason":null}]}\n\n'
    b'data: {"id":"chatcmpl-7","object":"chat.completion.chunk","model":"qwen3:8b",'
    b'"system_fingerprint":"fp_ollama","choices":[{"index":0,'
    b'"delta":{"content":""},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"chatcmpl-7","object":"chat.completion.chunk","model":"qwen3:8b",'
    b'"system_fingerprint":"fp_ollama","choices":[],'
    b'"usage":{"prompt_tokens":34,"completion_tokens":5,"total_tokens":39%b}%b}\n\n'
    b"data: [DONE]\n\n"
)
CACHED = b',"prompt_tokens_details":{"cached_tokens":24}'
TIMINGS = (  # no `cache_n`: `prompt_n` counts the cached tokens too; whole milliseconds
    b',"timings":{"prompt_n":34,"prompt_ms":303,"prompt_per_token_ms":8.9,"prompt_per_second":112.2,'
    b'"predicted_n":5,"predicted_ms":259,"predicted_per_token_ms":51.8,"predicted_per_second":19.3}'
)


@pytest.mark.parametrize(
    ("details", "told", "tokens", "engine"),
    [
        pytest.param(b"", b"", Tokens(prompt=34, completion=5), None, id="usage only"),
        pytest.param(CACHED, b"", Tokens(prompt=34, cached=24, completion=5), None, id="cached"),
        pytest.param(
            CACHED, TIMINGS, Tokens(prompt=34, cached=24, completion=5),
            EngineTimings(prefill_s=0.303, decode_s=0.259), id="timings",
        ),
        pytest.param(
            b"", TIMINGS, Tokens(prompt=34, completion=5),
            EngineTimings(prefill_s=0.303, decode_s=0.259), id="timings, cached not told",
        ),
    ],
)  # fmt: skip
def test_v1_chat(details: bytes, told: bytes, tokens: Tokens, engine: EngineTimings | None) -> None:
    text = V1_CHAT % (details, told)
    meter = measure("/v1/chat/completions", text, SSE, [10, 300, 301])

    assert meter.parse_errors == 0
    assert meter.reply.tokens() == tokens
    assert meter.reply.engine() == engine
    assert (meter.reply.finish, meter.reply.fingerprint) == ("stop", "fp_ollama")
    assert meter.done


ZEROS = b'"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}\n\n'
V1_TEXT = (
    b'data: {"object":"text_completion","model":"qwen3:8b","choices":[{"text":" the","index":0,'
    b'"finish_reason":null}],' + ZEROS + b'data: {"object":"text_completion","model":"qwen3:8b",'
    b'"choices":[{"text":"","index":0,"finish_reason":"length"}],' + ZEROS
)
V1_TEXT_USAGE = (
    b'data: {"object":"text_completion","model":"qwen3:8b","choices":[],'
    b'"usage":{"prompt_tokens":2,"completion_tokens":8,"total_tokens":10}}\n\n'
)


def test_v1_text_has_zeros_on_each_chunk() -> None:
    without = measure("/v1/completions", V1_TEXT, SSE, [])
    with_usage = measure("/v1/completions", V1_TEXT + V1_TEXT_USAGE, SSE, [])

    assert without.reply.tokens() == Tokens()
    assert with_usage.reply.tokens() == Tokens(prompt=2, completion=8)
    assert without.reply.finish == with_usage.reply.finish == "length"


def test_a_v1_stream_that_broke_ends_without_a_reason() -> None:
    """The error line is swallowed: an empty chunk, then the end."""
    text = (
        b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"Red"}}]}\n\n'
        b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}\n\n'
    )
    meter = measure("/v1/chat/completions", text, SSE, [])

    assert (meter.reply.finish, meter.done, meter.reply.failed) == (None, False, False)
