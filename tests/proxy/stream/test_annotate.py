"""A record put into its stream: where, and with every other byte as it was."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import recordings
from slowtok.proxy.stream.annotate import Annotator, Mode, mode_of, timings_of

RECORD: dict[str, Any] = {"id": "1", "verdict": "normal"}
TIMED: dict[str, Any] = {
    "timing": {"source": "stream", "prefill_ms": 20.0, "decode_ms": 90.0},
    "tokens": {"prompt": 10, "cached": 4, "completion": 10},
    "rate": {"prefill_tps": 300.0, "decode_tps": 100.0},
}
COMMENT = b": slowtok " + orjson.dumps(RECORD) + b"\n\n"
MEMBER = b',"slowtok":' + orjson.dumps(RECORD)
DONE = b"data: [DONE]\n\n"
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n'
LINES = b'{"message":{"content":"a"},"done":false}\n{"message":{"content":""},"done":true}\n'
STREAMED = [name for name in recordings.names("*stream*") if "tool" not in name]


def annotate(mode: Mode, pieces: Any, *, ndjson: bool = False) -> bytes:
    annotator = Annotator(mode, ndjson=ndjson)
    out = []
    for piece in pieces:
        out.append(annotator.feed(piece))
        if annotator.ending:
            out.append(annotator.close(RECORD))
    if not annotator.is_over:
        out.append(annotator.close(RECORD))
    return b"".join(out)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(TEXT + FINISH + DONE, TEXT + FINISH + COMMENT + DONE, id="before [DONE]"),
        pytest.param(TEXT + FINISH, TEXT + FINISH + COMMENT, id="at the end where there is none"),
        pytest.param(FINISH + DONE + b": x\n\n", FINISH + COMMENT + DONE + b": x\n\n", id="more"),
        pytest.param(b"", COMMENT, id="nothing at all"),
        pytest.param(TEXT + b"data: {", TEXT + COMMENT + b"data: {", id="half an event"),
    ],
)
def test_comment(body: bytes, expected: bytes) -> None:
    assert annotate("comment", [body]) == expected
    assert annotate("comment", recordings.cut(body, range(len(body)))) == expected
    crlf = [text.replace(b"\n", b"\r\n") for text in (body, expected)]
    ours = COMMENT.replace(b"\n", b"\r\n")
    assert annotate("comment", recordings.cut(crlf[0], range(999))) == crlf[1].replace(
        ours, COMMENT
    )


def finished(event: bytes) -> bytes:
    at = event.rindex(b"}")
    return event[:at] + MEMBER + event[at:]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(TEXT + FINISH + DONE, TEXT + finished(FINISH) + DONE, id="the last object"),
        pytest.param(
            FINISH + USAGE + DONE, FINISH + finished(USAGE) + DONE, id="which is the usage"
        ),
        pytest.param(
            FINISH + TEXT + FINISH + DONE, FINISH + TEXT + finished(FINISH) + DONE, id="n = 2"
        ),
        pytest.param(FINISH + b":\n\n" + DONE, b":\n\n" + finished(FINISH) + DONE, id="a ping"),
        pytest.param(TEXT + DONE, TEXT + DONE, id="broken off: no place for it"),
    ],
)
def test_chunk(body: bytes, expected: bytes) -> None:
    assert annotate("chunk", [body]) == expected
    assert annotate("chunk", recordings.cut(body, range(len(body)))) == expected


@pytest.mark.parametrize("cuts", [[], range(200)])
def test_json_lines(cuts: Any) -> None:
    said = annotate("chunk", recordings.cut(LINES, cuts), ndjson=True).splitlines()

    assert orjson.loads(said[0]) == {"message": {"content": "a"}, "done": False}
    assert orjson.loads(said[1])["slowtok"] == RECORD
    assert orjson.loads(said[1])["done"] is True


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize("mode", ["comment", "chunk"])
@settings(max_examples=15)
@given(offsets=st.lists(st.integers(0, 12_000), max_size=40))
def test_recorded_streams_keep_every_other_byte(name: str, mode: Mode, offsets: list[int]) -> None:
    body = recordings.unframe(recordings.load(name)).body
    added = COMMENT if mode == "comment" else MEMBER

    said = annotate(mode, recordings.cut(body, offsets))

    assert said.count(added) == 1
    assert said.replace(added, b"") == body


@pytest.mark.parametrize("mode", ["comment", "chunk"])
@given(pieces=st.lists(st.binary() | st.sampled_from([b"\n\n", b"data: ", FINISH, DONE])))
def test_anything_else_passes_unharmed(mode: Mode, pieces: list[bytes]) -> None:
    """Bytes that are no stream at all: nothing lost, nothing out of order but a ping."""
    annotator = Annotator(mode, ndjson=False)
    out = [annotator.feed(piece) + annotator.close(None) for piece in pieces]

    assert b"".join(out) == b"".join(pieces)


def test_whole_events_do_not_wait_for_others() -> None:
    for mode in ("comment", "chunk"):
        annotator = Annotator("chunk" if mode == "chunk" else "comment", ndjson=False)
        for event in (b": ping\n\n", TEXT, TEXT):
            assert annotator.feed(event) == event


def test_an_answer_that_ended_waits_for_the_next_event_only() -> None:
    annotator = Annotator("chunk", ndjson=False)

    assert annotator.feed(FINISH) == b""
    assert annotator.feed(TEXT) == FINISH + TEXT


LIKE_AN_END = orjson.dumps('"done": true, "finish_reason":"x", "choices":[]')


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b'{"choices":[{"delta":{"content":' + LIKE_AN_END + b"}}]}", id="in a text"),
        pytest.param(b'{"done": true', id="half an object"),
        pytest.param(b'[{"done": true}]', id="in a list"),
        pytest.param(b'{"choices":{"0":{"finish_reason":"stop"}}}', id="choices that are no list"),
        pytest.param(b'{"choices":["finish_reason",{"finish_reason":"stop"}]}', id="no choice"),
    ],
)
def test_what_only_looks_like_an_end_does_not_wait(said: bytes) -> None:
    event = b"data: " + said + b"\n\n"

    assert Annotator("chunk", ndjson=False).feed(event) == event


def test_an_event_without_end_is_given_up() -> None:
    annotator = Annotator("comment", ndjson=False)
    annotator.feed(b"data: ")
    large = b"x" * (17 << 20)

    assert annotator.feed(large) == b"data: " + large
    assert annotator.feed(b"y") == b"y"
    assert annotator.close(RECORD) == b""


@pytest.mark.parametrize(
    ("asked", "setting", "mode"),
    [
        (None, "off", None),
        (None, "comment", "comment"),
        ("chunk", "off", "chunk"),
        ("off", "comment", None),
        ("nonsense", "comment", "comment"),
        ("nonsense", "off", None),
    ],
)
def test_the_requests_word_goes_before_the_setting(
    asked: str | None, setting: str, mode: Mode | None
) -> None:
    assert mode_of(asked, setting) == mode


def test_timings_in_llama_servers_words() -> None:
    assert timings_of(TIMED) == {
        "cache_n": 4,
        "prompt_n": 6,
        "prompt_ms": 20.0,
        "prompt_per_second": 300.0,
        "predicted_n": 10,
        "predicted_ms": 90.0,
        "predicted_per_second": 100.0,
    }
    assert "cache_n" not in (
        timings_of({**TIMED, "tokens": {"prompt": 10, "completion": 10}}) or {"cache_n": 0}
    )


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        {**TIMED, "timing": {**TIMED["timing"], "source": "engine"}},
        {**TIMED, "tokens": {"prompt": 10}},
    ],
)
def test_no_timings_where_the_engine_tells_or_none_are_known(record: dict[str, Any]) -> None:
    assert timings_of(record) is None
