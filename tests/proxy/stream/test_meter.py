"""The meter on replies that were made up: bursts, long answers, and what is not a reply at all."""

import gzip
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slowtok.detectors.case.case import Tokens
from slowtok.proxy.stream.apis import Api, find_api
from slowtok.proxy.stream.framing import MAX_EVENT_BYTES
from slowtok.proxy.stream.meter import MAX_STEPS, Meter

SSE, NDJSON, JSON = "text/event-stream; charset=utf-8", "application/x-ndjson", "application/json"
PATHS = ("/v1/chat/completions", "/v1/completions", "/api/chat", "/api/generate")


def api(path: str = "/v1/chat/completions") -> Api:
    found = find_api("POST", path)
    assert found is not None
    return found


def delta(**said: Any) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": said}]}) + b"\n\n"


def test_what_carries_no_token_does_not_start_the_clock() -> None:
    meter = Meter(api(), SSE)
    quiet = [
        b":\n\n",
        b": keep-alive\n\n",
        delta(role="assistant", content=None),
        delta(content=""),
    ]
    quiet += [
        delta(),
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n',
    ]
    quiet += [b'data: {"choices":[],"prompt_progress":{"total":10}}\n\n', b"data: [DONE]\n\n"]
    for at_s, chunk in enumerate(quiet):
        meter.feed(chunk, float(at_s))
    meter.finish(9.0)

    assert (meter.first_at_s, meter.last_at_s, meter.token_at_s) == (None, None, ())
    assert (meter.gaps_s(), meter.parse_errors) == ([], 0)
    assert meter.reply.engine() is None


@pytest.mark.parametrize(
    "said",
    [
        {"role": "assistant", "content": "x"},
        {"content": "", "reasoning": "x"},
        {"content": None, "reasoning_content": "x"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"function_call": {"name": "f"}},
        {"refusal": "x"},
    ],
    ids=lambda said: list(said)[-1],
)
def test_whatever_is_said_first_is_the_first_token(said: dict[str, Any]) -> None:
    meter = Meter(api(), SSE)
    meter.feed(delta(role="assistant"), 1.0)
    meter.feed(delta(**said), 2.0)

    assert meter.first_at_s == 2.0


def test_a_burst_in_one_read_is_one_step() -> None:
    """Speculation accepts several tokens at once: llama-server sends an event for each."""
    meter = Meter(api(), SSE)
    for at_s, tokens in ((1.0, 1), (1.1, 4), (1.2, 3)):
        meter.feed(delta(content="x") * tokens, at_s)
    meter.feed(
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"timings":{"cache_n":0,'
        b'"prompt_n":5,"prompt_ms":50.0,"predicted_n":8,"predicted_ms":200.0,'
        b'"draft_n":9,"draft_n_accepted":5}}\n\n',
        1.2,
    )
    meter.finish(1.2)

    assert meter.token_at_s == (1.0, 1.1, 1.2)
    assert meter.gaps_s() == pytest.approx([0.1, 0.1])
    assert meter.reply.tokens() == Tokens(prompt=5, cached=0, completion=8, drafted=9, accepted=5)


def test_events_that_share_a_read_with_half_of_the_next_one() -> None:
    meter = Meter(api(), SSE)
    text = delta(content="a") + delta(content="b")
    meter.feed(text[:-5], 1.0)
    meter.feed(text[-5:], 2.0)

    assert meter.token_at_s == (1.0, 2.0)


@pytest.mark.parametrize("steps", [MAX_STEPS - 1, MAX_STEPS, MAX_STEPS + 1, 5 * MAX_STEPS + 3])
def test_a_long_answer_is_thinned_evenly(steps: int) -> None:
    meter = Meter(api(), SSE)
    chunk = delta(content="x")
    for at_s in range(steps):
        meter.feed(chunk, float(at_s))
    kept = meter.token_at_s
    stride = kept[1] - kept[0]

    assert len(kept) < MAX_STEPS
    assert len(kept) >= min(steps, MAX_STEPS) // 2
    assert kept[0] == 0.0
    assert {later - earlier for earlier, later in pairwise(kept)} == {stride}
    assert steps - stride <= kept[-1] <= steps - 1
    assert (meter.first_at_s, meter.last_at_s) == (0.0, steps - 1.0)
    assert set(meter.gaps_s()) == {1.0}, "a gap stays the time between two reads"


NOT_JSON = [
    pytest.param(b"<html>502 Bad Gateway</html>", id="a page"),
    pytest.param(b'{"choices":[{"delta":{"content":"x"}', id="cut short"),
    pytest.param(b'{"a":1}{"b":2}', id="two documents"),
    pytest.param(b"\xff\xfe\x00", id="not UTF-8"),
    pytest.param(b'{"a":' * 2000 + b"1" + b"}" * 2000, id="too deep for the parser"),
    pytest.param(b'{"timings":{"prompt_ms":1e999}}', id="beyond all numbers"),
]
OTHER_SHAPES = [b"[]", b"[[1]]", b"7", b'"text"', b"null", b"true", b'{"choices":7}']
OTHER_SHAPES += [
    b'{"choices":"abc"}',
    b'{"choices":[7]}',
    b'{"choices":[null]}',
    b'{"choices":{"a":1}}',
]
OTHER_SHAPES += [b'{"choices":[{"delta":"text"}]}', b'{"choices":[{"delta":[1]}]}']


@pytest.mark.parametrize("document", [*NOT_JSON, *OTHER_SHAPES])
def test_what_cannot_be_read_is_counted_and_the_next_event_read(document: bytes) -> None:
    meter = Meter(api(), SSE)
    meter.feed(b"data: " + document + b"\n\n", 1.0)
    meter.feed(delta(content="x"), 2.0)
    meter.finish(3.0)

    assert meter.parse_errors == 1
    assert meter.first_at_s == 2.0


@pytest.mark.parametrize("document", [*NOT_JSON, *OTHER_SHAPES[:6]])
def test_a_whole_reply_that_cannot_be_read_is_counted(document: bytes) -> None:
    meter = Meter(api(), JSON)
    meter.feed(document, 1.0)
    meter.finish(2.0)

    assert meter.parse_errors == 1
    assert meter.reply.tokens() == Tokens()
    assert meter.reply.engine() is None


def test_a_document_is_read_once_at_its_end() -> None:
    meter = Meter(api(), JSON)
    document = b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":3}}'
    meter.feed(document[:20], 1.0)
    meter.feed(document[20:], 2.0)

    assert (meter.first_at_s, meter.token_events, meter.reply.tokens()) == (None, 0, Tokens())
    meter.finish(3.0)
    meter.finish(4.0)
    assert (meter.token_at_s, meter.token_events) == ((3.0,), 1)
    assert meter.reply.tokens() == Tokens(prompt=3)


NULLS = (
    b'{"model":null,"error":null,"system_fingerprint":null,"choices":null,"usage":null,'
    b'"timings":null,"metrics":null,"message":null,"response":null,"done":null}'
)
NULLS_INSIDE = (
    b'{"choices":[{"index":null,"delta":null,"message":null,"text":null,"finish_reason":null}],'
    b'"usage":{"prompt_tokens":null,"completion_tokens":null,"prompt_tokens_details":null},'
    b'"timings":{"prompt_n":null,"prompt_ms":null,"predicted_n":null,"predicted_ms":null},'
    b'"metrics":{"time_to_first_token_ms":null,"generation_time_ms":null,"queue_time_ms":null}}'
)
WRONG_INSIDE = (
    b'{"model":7,"system_fingerprint":[],"choices":[{"index":-1,"finish_reason":7}],'
    b'"usage":{"prompt_tokens":"34","completion_tokens":-3},'
    b'"timings":{"prompt_n":1.5,"prompt_ms":-1,"predicted_n":true,"predicted_ms":"x"},'
    b'"metrics":{"time_to_first_token_ms":"x","generation_time_ms":-1,"queue_time_ms":true}}'
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("document", [NULLS, NULLS_INSIDE, WRONG_INSIDE, b"{}"])
def test_values_of_another_kind_are_not_known_and_no_error(document: bytes, path: str) -> None:
    meter = Meter(api(path), JSON)
    meter.feed(document, 1.0)
    meter.finish(2.0)

    assert meter.parse_errors == 0
    assert meter.reply.tokens() == Tokens()
    assert meter.reply.engine() is None
    assert (meter.reply.model, meter.reply.finish, meter.reply.failed) == (None, None, False)
    assert meter.first_at_s is None


def test_huge_numbers_do_not_break_the_count() -> None:
    meter = Meter(api(), JSON)
    meter.feed(
        b'{"choices":[{"index":18446744073709551615,"delta":{"content":"x"}}],'
        b'"usage":{"prompt_tokens":18446744073709551616,"completion_tokens":9}}',
        1.0,
    )
    meter.finish(2.0)

    assert meter.parse_errors == 0
    assert meter.reply.tokens() == Tokens(), "a count beyond 64 bits is no count"


@pytest.mark.parametrize("content_type", [SSE, NDJSON, JSON, "text/plain", ""])
def test_compressed_bytes_are_no_tokens(content_type: str) -> None:
    meter = Meter(api(), content_type)
    meter.feed(gzip.compress(delta(content="x") * 1000, mtime=0), 1.0)
    meter.finish(2.0)

    assert meter.first_at_s is None
    assert meter.reply.tokens() == Tokens()


def test_events_too_large_to_keep_count_as_unread() -> None:
    meter = Meter(api(), SSE)
    meter.feed(b"data: " + b"x" * MAX_EVENT_BYTES + b"\n\n" + delta(content="x"), 1.0)
    meter.finish(2.0)

    assert meter.parse_errors == 1
    assert meter.first_at_s == 1.0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("content_type", [SSE, NDJSON, JSON])
@settings(max_examples=40)
@given(chunks=st.lists(st.binary(max_size=60)))
def test_no_bytes_at_all_break_it(path: str, content_type: str, chunks: list[bytes]) -> None:
    meter = Meter(api(path), content_type)
    for chunk in chunks:
        meter.feed(chunk, 1.0)
    meter.finish(2.0)

    assert meter.parse_errors >= 0


KEYS = ("choices", "delta", "message", "usage", "timings", "metrics", "error", "done", "index")
NAMES = st.sampled_from((*KEYS, "content", "prompt_tokens", "prompt_n", "prompt_ms", "model"))
LEAVES = st.none() | st.booleans() | st.integers(-5, 2**64 - 1) | st.floats(0, 1e300) | st.text()
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60)
@given(document=st.dictionaries(NAMES, DOCUMENTS, max_size=6))
def test_no_json_at_all_breaks_it(path: str, document: dict[str, Any]) -> None:
    meter = Meter(api(path), JSON)
    meter.feed(orjson.dumps(document), 1.0)
    meter.finish(2.0)
    tokens, engine = meter.reply.tokens(), meter.reply.engine()

    assert meter.parse_errors in (0, 1)
    assert all(n is None or n >= 0 for n in (tokens.prompt, tokens.cached, tokens.completion))
    assert engine is None or all(
        s is None or s >= 0 for s in (engine.queue_s, engine.load_s, engine.prefill_s)
    )


def chat_event(**delta: str) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": delta}]}) + b"\n\n"


def thoughts(*chunks: bytes, usage: Mapping[str, object], content_type: str = SSE) -> int | None:
    api = find_api("POST", "/v1/chat/completions")
    assert api is not None
    meter = Meter(api, content_type)
    for at_s, chunk in enumerate(chunks):
        meter.feed(chunk, float(at_s))
    said = orjson.dumps({"choices": [], "usage": usage})
    meter.feed(b"data: " + said + b"\n\n" if content_type == SSE else b"", 99.0)
    meter.finish(99.0)
    return meter.reasoning_tokens()


USAGE = {"prompt_tokens": 9, "completion_tokens": 100}


def test_thoughts_are_counted_by_their_share_of_the_events() -> None:
    thought = [chat_event(reasoning_content="hm")] * 30
    answer = [chat_event(content="yes")] * 10

    assert thoughts(*thought, *answer, usage=USAGE) == 75
    assert thoughts(*answer, usage=USAGE) is None


def test_thoughts_that_the_engine_counts() -> None:
    told = {**USAGE, "completion_tokens_details": {"reasoning_tokens": 60}}

    assert thoughts(chat_event(content="yes"), usage=told) == 60


def test_thoughts_of_a_whole_reply_go_by_the_length_of_its_texts() -> None:
    message = {"content": "y" * 25, "reasoning_content": "h" * 75}
    whole = orjson.dumps({"choices": [{"index": 0, "message": message}], "usage": USAGE})

    assert thoughts(whole, usage={}, content_type="application/json") == 75
