"""Streams as servers may send them: however written and cut, the same numbers come out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import recordings
from slowtok.detectors.case.case import Timeline, Tokens
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.meter import Meter
from slowtok.proxy.stream.phases import split

SSE, NDJSON = "text/event-stream", "application/x-ndjson"
COMMENTS = (b"", b":\n\n", b": keep-alive\n\n", b": a\n: b\n\n", b"event: ping\nid: 7\n\n")
ENDS = (b"\n", b"\r\n", b"\r")
PIECES = st.lists(
    st.lists(st.sampled_from(["Red", " å", "水", "🎉", '"', "\\n", "\n", " "]), min_size=1,
             max_size=5),
    min_size=1, max_size=8,
)  # fmt: skip
WHERE = ("own chunk", "with the finish", "before the finish", "on every chunk", "first and last")
Event = tuple[dict[str, Any], bool]  # and whether it carries text


@dataclass(frozen=True, slots=True)
class Style:
    """How a stream is written."""

    end: bytes
    comment: bytes
    lines: bool  # of JSON that is spread over several `data` lines
    done: bool
    space: bytes


STYLES = st.builds(
    Style,
    st.sampled_from(ENDS),
    st.sampled_from(COMMENTS),
    st.booleans(),
    st.booleans(),
    st.sampled_from([b"", b" "]),
)


def chat(pieces: Sequence[Sequence[str]], where: str, *, name: str = "content") -> list[Event]:
    """Chat completions of several tokens a chunk, with their usage in one place or another."""
    said: list[dict[str, Any]] = [{"role": "assistant"}]
    said += [{name: "".join(tokens)} for tokens in pieces]
    events: list[Event] = []
    for i, delta in enumerate(said):
        chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        running = {"usage": usage(sum(map(len, pieces[:i])))} if where == "on every chunk" else {}
        events.append(({**chunk, **running}, name in delta))
    told = {"usage": usage(sum(map(len, pieces)))}
    finish: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    own: Event = ({"choices": [], **told}, False)
    if where == "with the finish":
        return [*events, ({**finish, **told}, False)]
    if where == "before the finish":
        return [*events, own, (finish, False)]
    if where == "first and last":
        events.insert(0, ({"choices": [], "usage": usage(0)}, False))
    return [*events, (finish, False), own]


def usage(completion: int) -> dict[str, int]:
    return {"prompt_tokens": 9, "completion_tokens": completion, "total_tokens": 9 + completion}


def messages(pieces: Sequence[Sequence[str]], _: str) -> list[Event]:
    """Anthropic's."""
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 2}}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
           "usage": {"input_tokens": 9, "output_tokens": sum(map(len, pieces))}}  # fmt: skip
    deltas = [
        ({"type": "content_block_delta", "index": 0, "delta": {"text": "".join(tokens)}}, True)
        for tokens in pieces
    ]
    return [(start, False), *deltas, (end, False), ({"type": "message_stop"}, False)]


def responses(pieces: Sequence[Sequence[str]], _: str) -> list[Event]:
    """OpenAI's."""
    told = {"input_tokens": 9, "output_tokens": sum(map(len, pieces))}
    end = {"type": "response.completed",
           "response": {"status": "completed", "usage": told}}  # fmt: skip
    kind = "response.output_text.delta"
    deltas = [({"type": kind, "delta": "".join(tokens)}, True) for tokens in pieces]
    return [({"type": "response.created", "response": {}}, False), *deltas, (end, False)]


APIS: dict[str, Callable[[Sequence[Sequence[str]], str], list[Event]]] = {
    "/v1/chat/completions": chat,
    "/v1/messages": messages,
    "/v1/responses": responses,
}


def written(events: Sequence[Event], style: Style) -> tuple[bytes, list[int]]:
    """Return the stream's bytes, and where each event with text is complete."""
    text = style.comment
    ends = []
    for said, carries in events:
        option = orjson.OPT_INDENT_2 if style.lines else 0
        lines = orjson.dumps(said, option=option).splitlines()
        text += b"".join(b"data:%s%s\n" % (style.space, line) for line in lines) + b"\n"
        ends += [len(text)] * carries
        text += style.comment
    text += b"data: [DONE]\n\n" * style.done
    grown = [len(text[:end].replace(b"\n", style.end)) for end in ends]
    return text.replace(b"\n", style.end), grown


def read(path: str, content_type: str, pieces: Sequence[bytes]) -> Meter:
    """Each piece comes one second after the one before."""
    api = find_api("POST", path)
    assert api is not None
    meter = Meter(api, content_type)
    for at_s, piece in enumerate(pieces):
        meter.feed(piece, float(at_s))
    meter.finish(float(len(pieces)))
    return meter


@pytest.mark.parametrize("path", APIS)
@settings(max_examples=120)
@given(
    pieces=PIECES,
    where=st.sampled_from(WHERE),
    style=STYLES,
    offsets=st.lists(st.integers(0, 3000), max_size=30),
)
def test_however_it_is_written_and_cut(
    path: str, pieces: list[list[str]], where: str, style: Style, offsets: list[int]
) -> None:
    body, ends = written(APIS[path](pieces, where), style)
    cut = recordings.cut(body, offsets)

    meter = read(path, SSE, cut)

    count = sum(map(len, pieces))
    assert (meter.parse_errors, meter.reply.finish) == (0, "stop")
    assert meter.reply.tokens().prompt == 9
    assert meter.reply.tokens().completion == count
    assert meter.token_events == len(pieces)
    assert meter.done == style.done
    assert meter.is_complete
    arrived = [_arrival(cut, end, style) for end in ends]
    assert meter.first_at_s in arrived[0]
    assert meter.last_at_s in arrived[-1]


def _arrival(cut: Sequence[bytes], end: int, style: Style) -> set[float]:
    """When the piece with that byte came; an event may be known complete one line end earlier."""
    had, at = 0, []
    for i, piece in enumerate(cut):
        if had < end <= had + len(piece) or had < end - len(style.end) + 1 <= had + len(piece):
            at.append(float(i))
        had += len(piece)
    return set(at)


@settings(max_examples=60)
@given(pieces=PIECES, offsets=st.lists(st.integers(0, 1500), max_size=30), crlf=st.booleans())
def test_json_lines_however_cut(pieces: list[list[str]], offsets: list[int], crlf: bool) -> None:
    lines: list[dict[str, Any]] = [{"response": "".join(p), "done": False} for p in pieces]
    lines.append({"response": "", "done": True, "eval_count": sum(map(len, pieces))})
    end = b"\r\n" if crlf else b"\n"
    body = b"".join(orjson.dumps(line) + end for line in lines)

    meter = read("/api/generate", NDJSON, recordings.cut(body, offsets))

    assert (meter.parse_errors, meter.token_events) == (0, len(pieces))
    assert meter.reply.tokens() == Tokens(completion=sum(map(len, pieces)))


@pytest.mark.parametrize("bytes_", [1_500_000, 5_000_000])
@pytest.mark.parametrize("carries", [True, False])
def test_an_event_of_megabytes_counts_when_it_is_complete(bytes_: int, carries: bool) -> None:
    delta = {"content": "x"} if carries else {}
    large = {"choices": [{"index": 0, "delta": delta, "logprobs": "y" * bytes_}]}
    events = chat([["a"]], "own chunk")
    events.insert(2, (large, carries))
    body, _ = written(events, Style(b"\n", b"", False, True, b" "))
    cut = recordings.cut(body, range(65_536, len(body), 65_536))

    meter = read("/v1/chat/completions", SSE, cut)

    assert (meter.parse_errors, meter.reply.finish) == (0, "stop")
    assert meter.token_events == 1 + carries
    assert meter.last_at_s == (len(cut) - 1 if carries else 0)


def arriving(events: Sequence[Event], at_s: Sequence[float]) -> Timeline:
    """The time line of a stream whose events came then."""
    meter = Meter(find_api("POST", "/v1/chat/completions"), SSE)  # type: ignore[arg-type]
    for (said, _), when in zip(events, at_s, strict=True):
        meter.feed(b"data: " + orjson.dumps(said) + b"\n\n", when)
    meter.finish(at_s[-1])
    return Timeline(
        request_id="1", path="/v1/chat/completions", stream=True, started_unix_s=0.0,
        accepted_at_s=0.0, sent_at_s=0.0, headers_at_s=0.0, last_byte_at_s=at_s[-1],
        first_token_at_s=meter.first_at_s, last_token_at_s=meter.last_at_s,
        token_at_s=meter.token_at_s, tokens=meter.reply.tokens(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "pieces", "at_s"),
    [
        pytest.param("content", [["x"]] * 41, [1 + i / 10 for i in range(41)], id="one by one"),
        pytest.param(
            "content", [["x"]] + [["x"] * 4] * 10, [1 + i * 0.4 for i in range(11)],
            id="several tokens in a chunk",
        ),
        pytest.param(
            "content", [["x"]] * 41, [1.0] + [1 + (i // 4 + 1) * 0.4 for i in range(40)],
            id="bursts of speculation: several chunks at one moment",
        ),
        pytest.param(
            "reasoning", [["x"], ["x"] * 39, ["x"]], [1.0, 4.9, 5.0],
            id="a reasoning parser that flushes late",
        ),
    ],
)  # fmt: skip
def test_the_rate_is_from_counts_and_not_from_chunks(
    name: str, pieces: list[list[str]], at_s: list[float]
) -> None:
    events = chat(pieces, "own chunk", name=name)

    phases = split(arriving(events, [at_s[0], *at_s, at_s[-1], at_s[-1]]))

    assert phases.prefill_s == 1.0
    assert phases.decode_s == pytest.approx(4.0)
    assert phases.decode_tps == pytest.approx(40 / 4.0)


def test_a_parser_that_flushes_all_at_the_end_leaves_the_rate_open() -> None:
    phases = split(arriving(chat([["x"] * 41], "own chunk"), [1.0, 5.0, 5.0, 5.0]))

    assert (phases.ttft_s, phases.prefill_s, phases.decode_s) == (5.0, None, None)
    assert phases.decode_tps is None
