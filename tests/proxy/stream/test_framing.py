"""The readers of both framings, whatever the line ends and however the bytes are cut."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import recordings
from slowtok.proxy.stream import framing
from slowtok.proxy.stream.framing import MAX_EVENT_BYTES, NdjsonReader, SseReader


def read(chunks: Iterable[bytes], *, flush: bool = False) -> list[bytes]:
    reader = SseReader()
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    return [*events, *reader.flush()] if flush else events


def read_each_byte(text: bytes) -> list[bytes]:
    return read(text[i : i + 1] for i in range(len(text)))


SPEC = "WHATWG HTML 9.2.6"
STREAMS = [
    pytest.param(b"", [], id="nothing"),
    pytest.param(b"\n\n\n\n", [], id="only empty lines"),
    pytest.param(b": ping\n\n", [], id="a comment is no event"),
    pytest.param(b":\n\n", [], id="llama-server's ping"),
    pytest.param(b": keep-alive\n\n", [], id="vLLM's keep-alive"),
    pytest.param(b"event: x\nid: 7\nretry: 3\n\n", [], id="fields without data"),
    pytest.param(b"dataset: x\n\n", [], id="a field that only begins like data"),
    pytest.param(b"data: a", [], id="an event that has not ended"),
    pytest.param(b"data: a\n", [], id="an event without its empty line"),
    pytest.param(b"data: a\n\n", [b"a"], id="one event"),
    pytest.param(b"data: a\n\ndata: b\n\n", [b"a", b"b"], id="two events in one read"),
    pytest.param(b"data: a\n\n\n\ndata: b\n\n", [b"a", b"b"], id="more empty lines than needed"),
    pytest.param(b"data: a\n\n: ping\n\ndata: b\n\n", [b"a", b"b"], id="a ping between"),
    pytest.param(b": ping\ndata: a\n\n", [b"a"], id="a comment inside an event"),
    pytest.param(b"event: x\ndata: a\nid: 1\n\n", [b"a"], id="other fields round the data"),
    pytest.param(b"data:a\n\n", [b"a"], id="no space after the colon"),
    pytest.param(b"data:  a\n\n", [b" a"], id="only one space is taken off"),
    pytest.param(b"data: a\r\n\r\n", [b"a"], id="CRLF"),
    pytest.param(b"data: a\r\rdata: b\r\r", [b"a", b"b"], id="CR alone"),
    pytest.param(b"data: a\n\r\n", [b"a"], id="LF, then CRLF"),
    pytest.param(b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", [b"a", b"b"], id="a byte order mark"),
    pytest.param(b"\xef\xbb\xbf: a\ndata: b\n\n", [b"b"], id="and a comment"),
    pytest.param(b"data: a\r\n\ndata: b\r\n\n", [b"a", b"b"], id="CRLF, then LF"),
    pytest.param(b"data: a\x0bb\x0cc\x1cd\n\n", [b"a\x0bb\x0cc\x1cd"], id="no other line ends"),
    pytest.param("data: åß水🎉\n\n".encode(), ["åß水🎉".encode()], id="several bytes a letter"),
    pytest.param(b"data: YHOO\ndata: +2\ndata: 10\n\n", [b"YHOO\n+2\n10"], id=f"{SPEC} stocks"),
    pytest.param(
        b": test stream\n\ndata: first event\nid: 1\n\n"
        b"data:second event\nid\n\ndata:  third event\n",
        [b"first event", b"second event"],
        id=f"{SPEC} blocks: the last one has not ended",
    ),
    pytest.param(b"data\n\ndata\ndata\n\ndata:", [b"", b"\n"], id=f"{SPEC} empty data"),
    pytest.param(b"data:test\n\ndata: test\n\n", [b"test", b"test"], id=f"{SPEC} same twice"),
]


@pytest.mark.parametrize(("text", "events"), STREAMS)
def test_an_event_is_its_data(text: bytes, events: list[bytes]) -> None:
    assert read([text]) == events
    assert read_each_byte(text) == events
    assert read(recordings.cut(text, range(0, len(text), 3))) == events


@given(
    text=st.lists(
        st.sampled_from(
            [
                b"data: ",
                b"data",
                b":",
                b" ",
                b"\n",
                b"\r",
                b"\r\n",
                b"\n\n",
                b"id: 1",
                b"x",
                b"\xc3",
            ]
        )
    ).map(b"".join),
    offsets=st.lists(st.integers(0, 200)),
)
def test_any_cut_gives_the_same_events(text: bytes, offsets: list[int]) -> None:
    assert read(recordings.cut(text, offsets), flush=True) == read([text], flush=True)


@pytest.mark.parametrize("name", recordings.names("*-stream*"))
def test_recorded_streams_read_the_same_in_any_pieces(name: str) -> None:
    response = recordings.unframe(recordings.load(name))
    if not response.content_type.startswith("text/event-stream"):
        assert response.status == 400
        return
    whole = read([response.body])

    assert len(whole) == response.body.count(b"data: ")
    assert read(piece for _, piece in response.pieces) == whole
    assert read_each_byte(response.body) == whole


def test_the_rest_is_an_event_when_the_stream_ends_without_its_empty_line() -> None:
    assert read([b"data: a\n\ndata: [DONE]"], flush=True) == [b"a", b"[DONE]"]
    assert read([b"data: a\n\ndata: b\r"], flush=True) == [b"a", b"b"]
    assert read([b"data: a\n\n"], flush=True) == [b"a"]
    assert read([b"data: a\n\n: ping"], flush=True) == [b"a"]


TEN_MB = b"x" * 10_000_000


def test_a_large_event_in_network_pieces() -> None:
    text = b"data: " + TEN_MB + b"\n\ndata: b\n\n"

    assert read(recordings.cut(text, range(0, len(text), 65_536))) == [TEN_MB, b"b"]


def test_a_large_event_byte_by_byte() -> None:
    """Copying what is held for each byte would be 130 GB here, and would not end."""
    half_a_mb = TEN_MB[:512_000]

    assert read_each_byte(b"data: " + half_a_mb + b"\n\n") == [half_a_mb]


def test_a_large_event_of_many_lines() -> None:
    text = b"data: x\n" * 200_000 + b"\n"

    assert read(recordings.cut(text, range(0, len(text), 65_536))) == [b"\n".join([b"x"] * 200_000)]


HUGE = b"data: " + b"x" * MAX_EVENT_BYTES + b"\n"
BEFORE_AND_AFTER = [b"a", b"b"]


@pytest.mark.parametrize("piece_bytes", [65_536, 1_000_003, 100_000_000])
@pytest.mark.parametrize(
    "huge",
    [
        pytest.param(HUGE + b"\n", id="one line"),
        pytest.param(HUGE + b"data: more\n" + HUGE + b"\n", id="and it goes on"),
        pytest.param(b"data: " + b"x" * 65_530 + b"\n" + HUGE + b"\n", id="after a good line"),
        pytest.param((b"data: " + b"x" * 65_529 + b"\n") * 257 + b"\n", id="many lines"),
    ],
)
def test_a_huge_event_is_dropped_and_counted_and_the_next_one_read(
    huge: bytes, piece_bytes: int
) -> None:
    text = b"data: a\n\n" + huge + b"data: b\n\n"
    reader = SseReader()

    events = [
        e for p in recordings.cut(text, range(0, len(text), piece_bytes)) for e in reader.feed(p)
    ]

    assert events == BEFORE_AND_AFTER
    assert reader.dropped == 1


def test_the_largest_event_that_is_kept() -> None:
    data = b"x" * (MAX_EVENT_BYTES - len(b"data: "))

    assert read(recordings.cut(b"data: " + data + b"\n\n", [1_000_000])) == [data]


@given(
    events=st.lists(st.lists(st.integers(1, 40).map(lambda n: b"data: " + b"x" * n), min_size=1)),
    offsets=st.lists(st.integers(0, 2000)),
)
def test_what_is_dropped_does_not_depend_on_the_pieces(
    events: list[list[bytes]], offsets: list[int]
) -> None:
    text = b"".join(b"".join(line + b"\n" for line in lines) + b"\n" for lines in events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "MAX_EVENT_BYTES", 64)
        whole, cut = SseReader(), SseReader()
        expected = [e for lines in events for e in whole.feed(b"\n".join(lines) + b"\n\n")]

        assert [e for piece in recordings.cut(text, offsets) for e in cut.feed(piece)] == expected
        assert cut.dropped == sum(sum(map(len, lines)) > 64 for lines in events)


def test_a_flush_inside_a_dropped_event_gives_nothing() -> None:
    reader = SseReader()

    assert reader.feed(HUGE[:-1]) == []
    assert reader.flush() == []
    assert reader.dropped == 1


def read_lines(chunks: Iterable[bytes], *, flush: bool = True) -> list[bytes]:
    reader = NdjsonReader()
    lines = [line for chunk in chunks for line in reader.feed(chunk)]
    return [*lines, *reader.flush()] if flush else lines


LINES = [
    pytest.param(b"", [], id="nothing"),
    pytest.param(b"\n\r\n  \n", [], id="empty lines"),
    pytest.param(b'{"a":1}\n', [b'{"a":1}'], id="one line"),
    pytest.param(b'{"a":1}\n\n{"b":2}\n', [b'{"a":1}', b'{"b":2}'], id="an empty line between"),
    pytest.param(b'{"a":1}\r\n{"b":2}\r\n', [b'{"a":1}\r', b'{"b":2}\r'], id="CR is white space"),
    pytest.param(b'{"a":1}\n{"b":2}', [b'{"a":1}', b'{"b":2}'], id="no newline at the end"),
    pytest.param('{"a":"水"}\n'.encode(), ['{"a":"水"}'.encode()], id="several bytes a letter"),
]


@pytest.mark.parametrize(("text", "lines"), LINES)
def test_each_line_is_one_event(text: bytes, lines: list[bytes]) -> None:
    assert read_lines([text]) == lines
    assert read_lines(text[i : i + 1] for i in range(len(text))) == lines


def test_a_line_is_complete_at_its_newline_and_not_before() -> None:
    reader = NdjsonReader()

    assert reader.feed(b'{"a"') == []
    assert reader.feed(b":1}") == []
    assert reader.feed(b'\n{"b') == [b'{"a":1}']
    assert reader.flush() == [b'{"b']
    assert reader.flush() == []


@given(
    text=st.lists(st.sampled_from([b"{}", b"\n", b"\r\n", b" ", b"x"])).map(b"".join),
    offsets=st.lists(st.integers(0, 100)),
)
def test_any_cut_gives_the_same_lines(text: bytes, offsets: list[int]) -> None:
    assert read_lines(recordings.cut(text, offsets)) == read_lines([text])


def test_a_large_line_byte_by_byte() -> None:
    line = b"x" * 512_000

    assert read_lines(line[i : i + 1] for i in range(len(line))) == [line]


@pytest.mark.parametrize("end", [b"\n", b"xx\n", b"xx\n\n"])
def test_a_huge_line_is_dropped_and_counted_and_the_next_one_read(end: bytes) -> None:
    huge = b"x" * (2 * MAX_EVENT_BYTES + 200_000)  # dropped once, however much more comes
    reader = NdjsonReader()
    pieces = [b"a\n", *recordings.cut(huge, range(0, len(huge), 65_536)), end, b"b\n"]

    assert [line for piece in pieces for line in reader.feed(piece)] == [b"a", b"b"]
    assert reader.dropped == 1
