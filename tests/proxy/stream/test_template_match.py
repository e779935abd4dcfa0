"""A meter that skips what only repeats counts exactly what one that reads everything counts."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes import recordings
from slowtok.proxy.stream.apis import Api, find_api
from slowtok.proxy.stream.framing import SseReader
from slowtok.proxy.stream.meter import Meter
from slowtok.proxy.stream.template_match import MAX_MISSES, RepeatMatcher

FRAME = SseReader.frame
SSE, NDJSON = "text/event-stream", "application/x-ndjson"
STREAMED = [name for name in recordings.names() if "stream" in name]


def api(path: str) -> Api:
    found = find_api("POST", path)
    assert found is not None
    return found


class Nothing(RepeatMatcher):
    """Finds no repetition, so that every event is read in full."""

    def count(self, chunk: bytes) -> int:
        return 0

    def hold(self, event: bytes) -> bool:
        return False


def counted(meter: Meter, pieces: Iterable[bytes]) -> tuple[Any, ...]:
    """Everything that a meter can tell after these pieces, one a second."""
    told = []
    for at_s, piece in enumerate(pieces):
        meter.feed(piece, float(at_s))
        told.append((meter.token_events, meter.first_at_s, meter.last_at_s, meter.is_complete))
    meter.finish(1e9)
    return told, meter.reply, meter.parse_errors, meter.token_events, meter.token_at_s, meter.done


def assert_same(path: str, content_type: str, pieces: Sequence[bytes]) -> None:
    full = Meter(api(path), content_type)
    full._repeats = Nothing(FRAME)
    assert counted(Meter(api(path), content_type), pieces) == counted(full, pieces)


def cut(body: bytes, sizes: Iterable[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(body[at : at + size])
        at += size
    return [*pieces, body[at:]]


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize("size", [1, 7, 100, 1000, None])
def test_recorded_streams_count_the_same(name: str, size: int | None) -> None:
    recording = recordings.load(name)
    response = recordings.unframe(recording)
    pieces = [piece for _, piece in response.pieces]
    if size is not None:
        pieces = cut(response.body, [size] * (len(response.body) // size))

    assert_same(recording.request["path"], response.content_type, pieces)


@pytest.mark.parametrize(
    "name", ["llama-server-2026.10.chat-stream", "vllm-0.32.chat-stream-usage"]
)
def test_most_of_a_recorded_stream_is_repetition(name: str) -> None:
    response = recordings.unframe(recordings.load(name))
    repeats = RepeatMatcher(FRAME)
    found = 0
    for _, piece in response.pieces:
        if n := repeats.count(piece):
            found += n
        else:
            repeats.learn(data_of(piece))

    assert found >= 0.6 * len(response.pieces)


def openai(text: str, i: int) -> Any:
    choice = {"index": i % 2, "delta": {"content": text}, "finish_reason": None}
    return {"id": "c", "model": "m", "choices": [choice], "created": i // 3}


def reasoning(text: str, i: int) -> Any:
    field = "reasoning_content" if i < 4 else "content"
    return {"choices": [{"index": 0, "delta": {field: text}}], "model": f"m{i // 5}"}


def with_usage(text: str, i: int) -> Any:
    usage = {"prompt_tokens": 5, "completion_tokens": i // 2}
    return {"choices": [{"index": 0, "delta": {"content": text}}], "usage": usage}


def finishing(text: str, i: int) -> Any:
    reason = "stop" if i % 4 == 3 else None
    return {"choices": [{"index": 0, "finish_reason": reason, "delta": {"content": text}}]}


def completions(text: str, i: int) -> Any:
    return {"choices": [{"text": text, "index": 0, "logprobs": None}], "error": i % 5 == 4}


def responses(text: str, i: int) -> Any:
    return {"delta": text, "type": "response.output_text.delta", "sequence_number": i // 3}


def messages(text: str, i: int) -> Any:
    delta = {"type": "text_delta", "text": text}
    return {"type": "content_block_delta" if i % 6 else "ping", "index": 0, "delta": delta}


def ollama(text: str, i: int) -> Any:
    message = {"role": "assistant", "content": text}
    return {"model": "m", "created_at": i // 3, "message": message, "done": i % 7 == 6}


def native(text: str, i: int) -> Any:
    return {"index": i % 2, "content": text, "stop": i % 5 == 4, "tokens_predicted": i}


SHAPES = {
    openai: "/v1/chat/completions",
    reasoning: "/v1/chat/completions",
    with_usage: "/v1/chat/completions",
    finishing: "/v1/chat/completions",
    completions: "/v1/completions",
    responses: "/v1/responses",
    messages: "/v1/messages",
    ollama: "/api/chat",
    native: "/completion",
}
TEXTS = st.one_of(
    st.sampled_from(["", " word", "é", "\n", '"', "\\", '\\"', "\u2028", "\x7f", "😀", "a\tb"]),
    st.text(max_size=8),
)


@given(
    shape=st.sampled_from(list(SHAPES)),
    texts=st.lists(TEXTS, max_size=20),
    ascii_only=st.booleans(),
    compact=st.booleans(),
    broken=st.sets(st.integers(0, 19), max_size=2),
    sizes=st.one_of(st.just(()), st.lists(st.integers(0, 400), max_size=20)),
    together=st.integers(1, 4),
)
@settings(max_examples=150)
@example(openai, [" a", "b"] * 5, True, True, set(), (), 1)
def test_generated_streams_count_the_same(
    shape: Any,
    texts: list[str],
    ascii_only: bool,
    compact: bool,
    broken: set[int],
    sizes: Sequence[int],
    together: int,
) -> None:
    ndjson = shape is ollama
    events = []
    for i, text in enumerate(texts):
        said = json.dumps(
            shape(text, i),
            ensure_ascii=ascii_only,
            separators=(",", ":") if compact else (", ", ": "),
        ).encode("utf-8", "surrogatepass")
        said = said.replace(b"a", b"\xff") if i in broken else said
        events.append(said + b"\n" if ndjson else b"data: " + said + b"\n\n")
    grouped = [b"".join(events[i : i + together]) for i in range(0, len(events), together)]
    pieces = cut(b"".join(events), sizes) if sizes else grouped

    assert_same(SHAPES[shape], NDJSON if ndjson else SSE, pieces)


TIMINGS = b'"timings":{"prompt_n":1,"prompt_ms":1,"predicted_n":2,"predicted_ms":1}'
OF_CHOICE_0 = b'data: {"choices":[{"index":0,"text":"%s"}]}\n\n'


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            [
                OF_CHOICE_0 % b"a",
                b'data: {"choices":[{"index":1,"finish_reason":"stop"}]}\n\n',
                OF_CHOICE_0 % b"b",
                b'data: {"choices":[],' + TIMINGS + b"}\n\n",
            ],
            id="another choice in between",
        ),
        pytest.param([OF_CHOICE_0 % b"a" + OF_CHOICE_0 % b"b"] * 3, id="the same two at once"),
        pytest.param([OF_CHOICE_0 % b"a" + b": ping\n\n"] * 3, id="a comment with each"),
        pytest.param(
            [b'data: {"choices"', b':[{"text":"a"}]}\n\n', b':[{"text":"b"}]}\n\n'],
            id="the end of an event again",
        ),
        pytest.param(
            [b'data: {\ndata: "content":"a"}\n\n', b'data: {\n"content":"b"}\n\n'] * 2,
            id="one that came in two lines",
        ),
        pytest.param(
            [OF_CHOICE_0 % b"a" + b"data: {", b'"error":1}\n\n', OF_CHOICE_0 % b"a" + b"data: {"],
            id="the begin of the next with each",
        ),
    ],
)
def test_what_only_looks_like_repetition_counts_the_same(pieces: list[bytes]) -> None:
    assert_same("/v1/completions", SSE, pieces)
    assert_same("/completion", SSE, pieces)


def data_of(chunk: bytes) -> bytes:
    return chunk.removeprefix(FRAME[0]).removesuffix(FRAME[1])


def event(inside: bytes) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"' + inside + b'"},"index":0}]}\n\n'


@pytest.mark.parametrize(
    "inside",
    [
        b"",  # no text
        b"\\",  # the quote that follows is text then
        b'a"b',
        b"a\nb",
        b"\\x41",
        b"\\u0041",  # valid, but may be half of a pair: left to the reader
        b"\\ud800",
        b"\xff",
        b"\xed\xa0\x80",
        b'x"},"index":0}]}\n\ndata: {"choices":[{"delta":{"content":"',
    ],
)
def test_what_is_no_plain_text_is_not_taken_for_it(inside: bytes) -> None:
    repeats = RepeatMatcher(FRAME)
    repeats.learn(data_of(event(b"word")))
    assert repeats.count(event(b"another")) == 1

    assert repeats.count(event(inside)) == 0
    assert repeats.count(event(b"more") + event(inside)) == 0
    assert not repeats.hold(data_of(event(inside)))


@pytest.mark.parametrize(
    "insides",
    [
        pytest.param([b"a\\", b"nb"], id="half an escape each"),
        pytest.param([b"a\xc3", b"\xa9b"], id="half a letter each"),
        pytest.param([b"a", b"", b"b"], id="nothing between two words"),
    ],
)
def test_what_is_text_only_together_is_not_taken_for_it(insides: list[bytes]) -> None:
    repeats = RepeatMatcher(FRAME)
    repeats.learn(data_of(event(b"word")))

    assert repeats.count(b"".join(map(event, insides))) == 0


def test_events_of_a_read_count_though_it_begins_and_ends_within_one() -> None:
    meter = Meter(api("/v1/chat/completions"), SSE)
    whole = event(b"word") * 50
    meter.feed(whole[:100], 1.0)
    meter.feed(whole[100:-10], 2.0)

    assert meter.token_events == 49
    assert meter.token_at_s == (1.0, 2.0)


def test_escapes_and_other_scripts_are_text() -> None:
    repeats = RepeatMatcher(FRAME)
    repeats.learn(data_of(event(b"word")))

    for text in (b"\\n", b'a\\"b', b"\\\\", "né".encode(), "雨".encode(), b"\\/"):
        assert repeats.count(event(text)) == 1, text
        assert repeats.hold(data_of(event(text))), text
    assert repeats.count(event(b"a") + event(b"b")) == 2


@pytest.mark.parametrize(
    "chunk",
    [
        event(b"word").replace(b'"index":0', b'"index":1'),
        event(b"word")[:-1],
        event(b"word") + b": ping\n\n",
        b"x" + event(b"word"),
        b"data: [DONE]\n\n",
        b"",
    ],
)
def test_what_differs_elsewhere_is_no_repetition(chunk: bytes) -> None:
    repeats = RepeatMatcher(FRAME)
    repeats.learn(data_of(event(b"word")))

    assert repeats.count(chunk) == 0


def test_stream_whose_events_all_differ_is_left_alone() -> None:
    repeats = RepeatMatcher(FRAME)
    for i in range(MAX_MISSES):
        repeats.learn(data_of(event(b"word").replace(b"index", b"%d" % i)))
    repeats.learn(data_of(event(b"word")))

    assert repeats.count(event(b"word")) == 0
