"""The fast path gives the client the body that the parser would have, whatever a read brings."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fakes.engine_line import EngineLine, TappedLine
from fakes.wire import LAST_CHUNK, SSE, chunk, chunked_head

HEAD = chunked_head(SSE)
A, B, C = chunk(b"hello"), chunk(b"1\r\n5\r\n"), chunk(b"world" * 60)
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


def bodies(wire: bytes) -> Iterable[bytes]:
    """The chunks in strictly framed bytes."""
    while wire:
        line, _, rest = wire.partition(b"\r\n")
        size = int(line, 16)
        assert line.lower() == b"%x" % size
        assert size, "the fast path ends no reply"
        assert rest[size : size + 2] == b"\r\n"
        yield rest[:size]
        wire = rest[size + 2 :]


def by_the_loop(reads: Sequence[bytes], head: bytes = HEAD) -> tuple[bytes, str]:
    """What the parser alone makes of a reply, and how it ends if the engine hangs up then."""

    async def run() -> tuple[bytes, str]:
        line = EngineLine()
        await line.begin(head)
        body = line.content.read_nowait()
        for read in reads:
            if line.is_over:
                break
            line.receive(read)
            body += line.content.read_nowait()
        return body, line.ended()

    return asyncio.run(run())


def by_the_fast_path(reads: Sequence[bytes], head: bytes = HEAD) -> tuple[bytes, str]:
    """What the fast path gave the client, and how the reply ended; the meter saw the same."""

    async def run() -> tuple[bytes, str]:
        line = TappedLine()
        await line.begin(head)
        for read in reads:
            if line.is_over:
                break
            line.receive(read)
        body = b"".join(bodies(b"".join(line.client.written)))
        assert line.seen == body
        return body, line.ended()

    return asyncio.run(run())


def cut(wire: bytes, places: Iterable[int]) -> list[bytes]:
    """The bytes as reads that end at these places."""
    ends = sorted({place % (len(wire) + 1) for place in places} | {0, len(wire)})
    return [wire[begin:end] for begin, end in pairwise(ends)]


@pytest.mark.parametrize(
    ("reads", "past"),
    [
        ([A, A, A], 3),
        ([A, B, A + B + C, C], 4),
        ([A[:-1], A[-1:], B], 1),
        ([A, b"5\r\nhello\r", b"\n", A], 2),
        ([A, b"5\r\nhel", b"lo\r\n", A], 2),
        ([A, b"5\r\n", b"hello\r\n", A], 2),
        ([A, b"1", b"0\r\n0123456789abcdef\r\n", A], 2),
        ([A + b"1", b"5\r\nhello\r\n12345678901234\r\n", A], 1),
        ([A + b"5\r\n", b"5\r\n01\r\n", A], 1),
        ([A, b"5;name=value\r\nhello\r\n", A], 2),
        ([A, b"005\r\nhello\r\n", A], 2),
        ([A, b"5 \r\nhello\r\n", A], 2),
    ],
)
def test_reads_that_go_past_the_parser(reads: list[bytes], past: int) -> None:
    async def run() -> int:
        line = TappedLine()
        await line.begin(HEAD + A)
        count = 0
        for read in reads:
            before = line.parsed_bytes
            line.receive(read)
            count += line.parsed_bytes == before
        return count

    assert asyncio.run(run()) == past
    assert by_the_fast_path(reads) == by_the_loop(reads)
    assert by_the_fast_path(reads)[1] == "cut off"


@pytest.mark.parametrize(
    "odd",
    [
        b"+5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"0_5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5\r\nhello",
        b"5\r\nhelloo\r\n",
        b"5\r\nhell\r\n",
        b"5\r\nhello\n",
        b"\r\n",
        b"5\r\nhello\r\n\r\n",
        b"10000000000000005\r\nhello\r\n",
        b"0\r\nTrailer: 1\r\n\r\n",
        b"0\r\n\r\n" + A,
        b"0\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_what_is_odd_is_the_parsers(odd: bytes) -> None:
    for reads in (
        [A, A, odd, A],
        [A, A + odd, A],
        [A, A, odd + A, A],
        [A, *cut(odd, range(20)), A],
    ):
        assert by_the_fast_path(reads) == by_the_loop(reads)


def test_two_chunks_split_at_every_place() -> None:
    wire = A + A + B + A + LAST_CHUNK
    for place in range(len(wire)):
        assert by_the_fast_path(cut(wire, [place])) == (b"hellohello1\r\n5\r\nhello", "complete")
        assert by_the_fast_path(cut(wire, [place, place + 1])) == by_the_fast_path([wire])


payloads = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.sampled_from([b"\n", b"\r\n", b"5", b"0", A, LAST_CHUNK, b"1\r\n", b"a" * 300, TOKEN]),
)
places = st.lists(st.integers(0, 1000), max_size=8)


@given(st.lists(payloads, max_size=8), places, st.booleans())
def test_any_chunks_in_any_reads(pieces: list[bytes], where: list[int], together: bool) -> None:
    wire = b"".join(map(chunk, pieces)) + LAST_CHUNK
    reads = cut(wire, where)
    head = HEAD + reads.pop(0) if together else HEAD

    assert by_the_fast_path(reads, head) == (b"".join(pieces), "complete")


@given(st.lists(payloads, min_size=1, max_size=6), places, st.data())
def test_what_is_malformed_in_any_reads(
    pieces: list[bytes], where: list[int], data: st.DataObject
) -> None:
    wire = bytearray(b"".join(map(chunk, pieces)) + LAST_CHUNK)
    begin = data.draw(st.integers(0, len(wire)))
    gone = data.draw(st.integers(0, 2))
    wire[begin : begin + gone] = data.draw(
        st.one_of(st.binary(max_size=2), st.sampled_from([b"\r", b"\n", b"0", b"5", b";", b"+"]))
    )
    reads = cut(bytes(wire), where)

    assert by_the_fast_path(reads) == by_the_loop(reads)


@given(st.binary(min_size=1), places, st.booleans())
@example(A + A, [len(A)], True)
def test_a_body_without_chunks_is_never_taken_for_one(
    body: bytes, where: list[int], told: bool
) -> None:
    length = b"Content-Length: %d\r\n" % len(body) if told else b""
    head = b"HTTP/1.1 200 OK\r\n%b\r\n" % length

    assert by_the_fast_path(cut(body, where), head)[0] == body


async def test_the_engines_chunks_stay_as_they_are() -> None:
    line = TappedLine()
    await line.begin()

    for read in (A, A, A + b"A\r\n0123456789\r\n"):
        line.receive(read)

    assert line.client.written == [A, A, A + b"A\r\n0123456789\r\n"]


async def test_client_without_chunks_gets_what_they_hold() -> None:
    line = TappedLine(chunked=False)
    await line.begin()

    for read in (A, A, A + B):
        line.receive(read)

    assert line.client.written == [b"hello", b"hello", b"hello1\r\n5\r\n"]


async def test_what_is_taken_out_stays_out() -> None:
    line = TappedLine(rewrite=lambda piece: piece.replace(b"hello", b""))
    await line.begin()

    for read in (A, C, A, A + C + A):
        line.receive(read)

    assert line.client.written == [C, C]
    assert line.seen == b"hello" + b"world" * 60 + b"hello" * 2 + b"world" * 60 + b"hello"


async def test_client_that_falls_behind_ends_it() -> None:
    line = TappedLine()
    await line.begin()
    for read in (A, A):
        line.receive(read)

    line.flow_control.pause_writing()
    line.receive(A)
    assert not line.is_flowing
    line.receive(C)
    assert line.client.written == [A] * 3

    line.flow_control.resume_writing()
    await line.flow()
    parsed_bytes = line.parsed_bytes
    for read in (A, B):
        line.receive(read)
    assert line.client.written == [*[A] * 3, C, A, B]
    assert line.parsed_bytes == parsed_bytes, "where it stands is known"


async def test_what_waits_for_its_turn_reaches_the_client_of_a_stream_that_breaks() -> None:
    line = TappedLine()
    await line.begin()
    line.receive(A)

    line.receive(chunk(b"a" * 100_000))
    assert line.is_paused
    assert line.ended() == "cut off"

    assert b"".join(bodies(b"".join(line.client.written))) == b"hello" + b"a" * 100_000


async def test_client_that_left_gets_nothing() -> None:
    line = TappedLine()
    await line.begin()
    for read in (A, A):
        line.receive(read)

    line.client.close()
    line.receive(B)

    assert not line.is_flowing
    assert line.client.written == [A, A]
    assert line.content.read_nowait() == b"1\r\n5\r\n"  # for the relay's loop to see to


async def test_stream_whose_client_caught_up_goes_on() -> None:
    line = TappedLine()
    await line.begin()
    line.receive(A)
    line.flow_control.pause_writing()
    line.receive(A)
    for _ in range(20):
        line.receive(chunk(b"a" * 10_000))  # more than is read ahead
    assert line.is_paused
    line.flow_control.resume_writing()
    await line.flow()

    assert line.is_flowing
    assert not line.is_paused
    line.receive(A)
    assert b"".join(bodies(b"".join(line.client.written))) == (
        b"hello" * 2 + b"a" * 200_000 + b"hello"
    )
