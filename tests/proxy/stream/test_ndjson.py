"""The reader of Ollama's newline-delimited JSON."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import recordings
from slowtok.proxy.stream.framing import MAX_EVENT_BYTES, NdjsonReader


def read(chunks: Iterable[bytes], *, flush: bool = True) -> list[bytes]:
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
    assert read([text]) == lines
    assert read(text[i : i + 1] for i in range(len(text))) == lines


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
    assert read(recordings.cut(text, offsets)) == read([text])


def test_a_large_line_byte_by_byte() -> None:
    line = b"x" * 512_000

    assert read(line[i : i + 1] for i in range(len(line))) == [line]


@pytest.mark.parametrize("end", [b"\n", b"xx\n", b"xx\n\n"])
def test_a_huge_line_is_dropped_and_counted_and_the_next_one_read(end: bytes) -> None:
    huge = b"x" * (MAX_EVENT_BYTES + 1)
    reader = NdjsonReader()
    pieces = [b"a\n", *recordings.cut(huge, range(0, len(huge), 65_536)), end, b"b\n"]

    assert [line for piece in pieces for line in reader.feed(piece)] == [b"a", b"b"]
    assert reader.dropped == 1
