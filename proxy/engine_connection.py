"""Connections to engines: aiohttp's own, opened and kept by its connector, three things mended.

What an engine says unasked is nobody's answer, a body ends with its connection, and reading costs
no more than it must.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from yarl import URL

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.tracing import Trace

READ_BUFFER_BYTES = 64 * 1024  # asyncio's 256 KiB costs an mmap per read
MAX_HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an engine is asked: what is the same for all requests to it.

    `request` is one for aiohttp's connector, which wants to see one; it is never sent. `path`
    comes before each target; `origin` is for messages.
    """

    request: aiohttp.ClientRequest
    host: str
    path: str
    origin: str


class EngineConnector(aiohttp.TCPConnector):
    """Keeps connections for later; one that was spoken on meanwhile is closed and not used.

    aiohttp takes what an engine says too much, as after a wrong Content-Length, for the answer to
    the next request: one client would get what was meant for another.
    """

    def __init__(self, max_head_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        make = partial(EngineConnection, self._loop, max_head_bytes)
        self._factory = cast("partial[ResponseHandler]", make)
        self._addresses: dict[str, Address] = {}  # by URL, of which the settings have a few

    def address(self, base_url: str) -> Address:
        """Return how the engine at `base_url` is asked."""
        known = self._addresses.get(base_url)
        if known is None:
            url = URL(base_url, encoded=True)
            known = self._addresses[base_url] = Address(
                request=aiohttp.ClientRequest("GET", url, loop=self._loop),
                host=url.host_port_subcomponent or "",
                path=url.raw_path.rstrip("/"),
                origin=str(url.origin()),
            )
        return known

    async def _get(self, key: "ConnectionKey", traces: list["Trace"]) -> Connection | None:
        while (kept := await super()._get(key, traces)) is not None:
            protocol = cast("EngineConnection", kept.protocol)
            if not protocol.should_close:
                protocol.was_idle = True
                break
            kept.close()
        return kept


class EngineConnection(ResponseHandler):
    """One connection to an engine, which takes its replies apart."""

    was_idle = False  # it has served another request
    was_paused = False  # while this reply came

    def __init__(self, loop: asyncio.AbstractEventLoop, max_head_bytes: int) -> None:
        super().__init__(loop)
        self._max_head_bytes = max_head_bytes

    def expect_reply(self, *, with_body: bool) -> None:
        """Be ready for the reply to the next request; one to HEAD comes without its body."""
        self.was_paused = False
        self.set_response_params(
            skip_payload=not with_body,
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=READ_BUFFER_BYTES,
            max_line_size=self._max_head_bytes,
            max_field_size=self._max_head_bytes,
        )

    def rest(self) -> None:
        """Expect nothing: without a parser every byte that comes makes `should_close` true.

        With one, half a head that nobody asked for would be forgotten with the parser.
        """
        self._parser = None

    def pause_reading(self) -> None:
        """Pause, and know it for the rest of the reply: the parser may pause after reading went on.

        A pause at a chunk's end takes effect at the next chunk. Unless it is resumed then once
        more, what came with that is held back until the engine sends again, if it does.
        """
        self.was_paused = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume what was paused. aiohttp resumes what never was, too, after each piece read.

        That costs as much as to read the piece, for each token.
        """
        if self.was_paused:
            super().resume_reading(resume_parser)

    def close(self) -> None:
        """Close; at once where not all has been sent, which an engine may never take."""
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.abort()
        else:
            super().close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the body with the connection.

        aiohttp does so, too, except for malformed chunks: it drops the connection then, and
        whoever reads the body would wait for ever.
        """
        body = self._payload
        super().connection_lost(exc)
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("the connection ended"))
