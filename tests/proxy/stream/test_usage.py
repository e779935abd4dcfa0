"""Asking for usage, and taking the answer out again: every other byte stays as it was."""

from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import recordings
from slowtok.proxy.stream.usage import MAX_USAGE_EVENT_BYTES, UsageRemover, ask_for_usage


def ask(body: bytes) -> bytes | None:
    return ask_for_usage(body, orjson.loads(body))


def remove(chunks: Iterable[bytes]) -> bytes:
    remover = UsageRemover()
    passed = b"".join(remover.feed(chunk) for chunk in chunks)
    return passed + remover.flush()


ASKED_ALREADY = [
    pytest.param(b'{"stream_options":{"include_usage":true}}', id="asked"),
    pytest.param(b'{"stream_options":{"x":1,"include_usage":true},"a":1}', id="asked with more"),
    pytest.param(b'{"stream_options":7}', id="a number: the engine says what is wrong with it"),
    pytest.param(b'{"stream_options":"include_usage"}', id="a text"),
    pytest.param(b'{"stream_options":[]}', id="a list"),
]


@pytest.mark.parametrize("body", ASKED_ALREADY)
def test_a_client_that_asks_itself_or_asks_nonsense_is_left_alone(body: bytes) -> None:
    assert ask(body) is None


OPTION = b'"stream_options":{"include_usage":true}'


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        pytest.param(b"{}", b"{" + OPTION + b"}", id="empty"),
        pytest.param(b" {\n }\n", b" {" + OPTION + b"\n }\n", id="empty with white space"),
        pytest.param(b'{"a":1}', b"{" + OPTION + b',"a":1}', id="one field"),
        pytest.param(
            b'\r\n\t{ "b" : 1.0 ,\n "a":[{"c":"{"}] }  ',
            b"\r\n\t{" + OPTION + b', "b" : 1.0 ,\n "a":[{"c":"{"}] }  ',
            id="order, white space and number format stay",
        ),
        pytest.param(
            '{"messages":[{"content":"åß水🎉 \\ud83c\\udf89 \\u0000"}]}'.encode(),
            b"{" + OPTION + ',"messages":[{"content":"åß水🎉 \\ud83c\\udf89 \\u0000"}]}'.encode(),
            id="text beyond ASCII stays as it was written",
        ),
        pytest.param(
            b'{"seed":18446744073709551617,"a":{"stream_options":null}}',
            b"{" + OPTION + b',"seed":18446744073709551617,"a":{"stream_options":null}}',
            id="a number beyond 64 bits stays; only a field of the request itself counts",
        ),
    ],
)
def test_the_option_goes_in_front_and_every_other_byte_stays(body: bytes, asked: bytes) -> None:
    assert ask(body) == asked
    assert orjson.loads(asked) == {
        **orjson.loads(body),
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, {"include_usage": True}),
        ({}, {"include_usage": True}),
        ({"include_usage": False}, {"include_usage": True}),
        ({"include_usage": None}, {"include_usage": True}),
        ({"include_obfuscation": False}, {"include_obfuscation": False, "include_usage": True}),
        # vLLM ignores it where usage is not asked for; where it is, each chunk would carry usage.
        ({"continuous_usage_stats": True}, {"include_usage": True}),
    ],
)
def test_options_that_are_there_are_kept(options: Any, expected: dict[str, Any]) -> None:
    said = {"model": "x", "stream_options": options, "messages": [{"content": "åß水🎉"}]}
    asked = ask(orjson.dumps(said))

    assert asked is not None
    assert list(orjson.loads(asked).items()) == list({**said, "stream_options": expected}.items())


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    said=st.dictionaries(st.text().filter(lambda name: name != "stream_options"), JSON_VALUES),
    space=st.sampled_from([b"", b" ", b"\n\t"]),
)
def test_any_body_parses_to_the_same_and_the_option(said: dict[str, Any], space: bytes) -> None:
    body = space + orjson.dumps(said, option=orjson.OPT_INDENT_2) + space
    asked = ask(body)

    assert asked is not None
    assert orjson.loads(asked) == {**said, "stream_options": {"include_usage": True}}


def body_of(name: str) -> bytes:
    return recordings.unframe(recordings.load(name)).body


def without_usage_event(body: bytes) -> bytes:
    """The plain way: leave out the events with usage and no choice."""
    *events, rest = body.split(b"\n\n")
    kept = [e for e in events if not (b'"choices":[]' in e and b'"usage":{' in e)]
    return b"".join(event + b"\n\n" for event in kept) + rest


WITH_USAGE = [
    "llama-server-2026.10.chat-stream-usage",
    "llama-server-2026.10.chat-stream-long-prompt",
    "llama-server-2026.10.chat-stream-n2",
    "llama-server-2026.10.chat-stream-tool",
    "vllm-0.32.chat-stream-usage",
    "vllm-0.32.chat-stream-long-prompt",
    "vllm-0.32.chat-stream-n2",
    "vllm-0.32.chat-stream-tool-call",
    "vllm-0.32.completions-stream",
]
WITHOUT_USAGE = [
    "llama-server-2026.10.chat-stream",
    "llama-server-2026.10.chat-stream-logprobs",
    "llama-server-2026.10.chat-stream-progress",
    "llama-server-2026.10.completions-stream",  # its usage is on the last choice, always
    "llama-server-2026.10.completion-stream",
    "llama-server-2026.10.responses-stream",
    "llama-server-2026.10.messages-stream",
    "vllm-0.32.chat-stream",
    "vllm-0.32.chat-stream-logprobs",
    "vllm-0.32.responses-stream",
    "vllm-0.32.messages-stream",
]
OFFSETS = st.lists(st.integers(0, 12_000), max_size=60)
OLLAMA_TEXT = (  # after the documented format: zeros on each chunk, then what we asked for
    b'data: {"object":"text_completion","choices":[{"text":"Hi","index":0,"finish_reason":null}],'
    b'"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}\n\n'
    b'data: {"object":"text_completion","choices":[],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}\n\n'
    b"data: [DONE]\n\n"
)


def test_every_recorded_stream_is_in_a_list() -> None:
    streams = {n for n in recordings.names("*-stream*") if n != "vllm-0.32.chat-stream-tool"}

    assert {*WITH_USAGE, *WITHOUT_USAGE} == streams


@pytest.mark.parametrize("name", WITHOUT_USAGE)
@settings(max_examples=30)
@given(offsets=OFFSETS)
def test_a_stream_without_the_chunk_passes_byte_for_byte(name: str, offsets: list[int]) -> None:
    body = body_of(name)

    assert remove(recordings.cut(body, offsets)) == body
    assert remove(recordings.cut(body, range(len(body)))) == body


@pytest.mark.parametrize("name", WITH_USAGE)
@settings(max_examples=30)
@given(offsets=OFFSETS)
def test_only_the_chunk_is_missing(name: str, offsets: list[int]) -> None:
    body = body_of(name)
    expected = without_usage_event(body)

    assert len(expected) < len(body)
    assert remove(recordings.cut(body, offsets)) == expected


@pytest.mark.parametrize("name", WITH_USAGE)
@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
@settings(max_examples=30)
@given(offsets=OFFSETS)
def test_only_the_chunk_is_missing_with_other_line_ends(
    name: str, end: bytes, offsets: list[int]
) -> None:
    body = body_of(name)
    text, expected = (b.replace(b"\n", end) for b in (body, without_usage_event(body)))

    assert remove(recordings.cut(text, offsets)) == expected


@pytest.mark.parametrize("name", WITH_USAGE)
def test_byte_by_byte(name: str) -> None:
    body = body_of(name)

    assert remove(recordings.cut(body, range(len(body)))) == without_usage_event(body)


@given(offsets=st.lists(st.integers(0, len(OLLAMA_TEXT))))
def test_zeros_on_each_chunk_are_not_usage(offsets: list[int]) -> None:
    assert remove(recordings.cut(OLLAMA_TEXT, offsets)) == without_usage_event(OLLAMA_TEXT)


def test_a_server_that_sends_usage_unasked_keeps_all_of_it() -> None:
    """vLLM with `--enable-force-include-usage`: on each chunk, and once more at the end."""
    chunk = (
        b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"prompt_tokens":9}}\n\n'
    )
    last = b'data: {"choices":[],"usage":{"prompt_tokens":9}}\n\ndata: [DONE]\n\n'

    assert remove([chunk, chunk, last]) == chunk + chunk + last
    assert remove([chunk + last]) == chunk + last


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":9}\n\n',
        b'data: {"usage":{"prompt_tokens":9}}\n\n',
        b'data: {"choices":null,"usage":{"prompt_tokens":9}}\n\n',
        b'data: ["usage"]\n\n',
        b'event: data: {"choices":[],"usage":{"prompt_tokens":9}}\n\n',
        b'data: 1\ndata: {"choices":[],"usage":{"prompt_tokens":9}}\n\n',
        b': "usage"\n\n',
        b'data: {"error":{"message":"\\"usage\\""}}\n\n',
        b'{"choices":[],"usage":{"prompt_tokens":9}}\n\n',
    ],
)
def test_what_only_looks_like_it_passes(event: bytes) -> None:
    assert remove([event]) == event


@pytest.mark.parametrize(
    "event",
    [
        b'event: message\nid: 7\ndata: {"choices":[],"usage":{"prompt_tokens":9}}\n\n',
        b'data:{"choices":[],"usage":{"prompt_tokens":9}}\nretry: 9\n\n',
        b': ping\ndata: {"choices":[],\ndata: "usage":{"prompt_tokens":9}}\n\n',
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_other_fields_of_its_event_go_with_it(event: bytes, end: bytes) -> None:
    parts = (b"id: 6\ndata: a\n\n", event, b"data: [DONE]\n\n")
    before, usage, after = (part.replace(b"\n", end) for part in parts)
    text = before + usage + after

    assert remove([text]) == before + after
    assert remove([before, usage, after]) == before + after
    assert remove(recordings.cut(text, range(len(text)))) == before + after


def test_the_chunk_at_the_end_of_a_stream_that_was_cut() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9}}'

    assert remove([b"data: a\n\n" + usage]) == b"data: a\n\n"
    assert remove([b"data: a\n\n" + usage + b"\n"]) == b"data: a\n\n"
    assert remove([b"data: a\n\n" + usage[:-1]]) == b"data: a\n\n" + usage[:-1]


def test_nothing_waits_once_a_choice_shows() -> None:
    remover = UsageRemover()
    start = b'data: {"id":"x","choices":[{"index":0,"delta":'

    assert remover.feed(start) == start
    for piece in (b'{"cont', b'ent":"a"}}]}', b"\n", b"\n"):
        assert remover.feed(piece) == piece
    assert remover.feed(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"


def test_whole_events_and_pings_do_not_wait() -> None:
    remover = UsageRemover()
    for event in (b":\n\n", b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n", b": x\r\n\r\n"):
        assert remover.feed(event) == event


def test_a_large_event_is_not_held_back() -> None:
    """An event without choices: logprobs, or a Responses object, of 10 MB."""
    remover = UsageRemover()
    text = b"data: " + b"x" * 10_000_000 + b"\n\n"
    fed = passed = 0
    for piece in recordings.cut(text, range(0, len(text), 4096)):
        fed += len(piece)
        passed += len(remover.feed(piece))

        assert fed - passed <= MAX_USAGE_EVENT_BYTES
    assert passed == len(text)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\n\r\n", b"\r\r"])
@pytest.mark.parametrize("before_end", [1, 2, 3, 4])
def test_an_end_in_pieces_after_a_large_event(end: bytes, before_end: int) -> None:
    large = b"data: " + b"x" * 20_000 + end
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9}}' + end
    text = large + usage + b"data: [DONE]" + end
    cuts = [17_000, *range(len(large) - before_end, len(large) + 2)]

    assert remove(recordings.cut(text, cuts)) == large + b"data: [DONE]" + end
