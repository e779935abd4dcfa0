"""What aiohttp's connection does with a reply that comes faster than it is read."""

import pytest

from fakes.engine_line import EngineLine
from fakes.wire import LAST_CHUNK, chunk, chunked_head

MANY = 64 * 1024 // 16 + 1  # chunks unread, after which aiohttp's reader pauses


@pytest.mark.parametrize("count", [MANY - 1, MANY, MANY + 1, 3 * MANY])
async def test_what_follows_a_pause_after_many_chunks_is_not_held_back(count: int) -> None:
    """aiohttp's parser takes a pause at a chunk's end only at the next chunk, after the reading."""
    line = EngineLine()
    await line.begin(chunked_head())
    body = b""

    for read in (chunk(b"a") * count, chunk(b"b") + chunk(b"c") + LAST_CHUNK):
        line.receive(read)
        while piece := line.content.read_nowait():
            body += piece

    assert body == b"a" * count + b"bc"
    assert line.content.is_eof()


async def test_a_pause_is_forgotten_with_its_reply() -> None:
    line = EngineLine()
    await line.begin(chunked_head() + chunk(b"a") * MANY)
    assert line.connection.was_paused
    line.content.read_nowait()
    line.receive(LAST_CHUNK)

    line.connection.expect_reply(with_body=True)

    assert not line.connection.was_paused
