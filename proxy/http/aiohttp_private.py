"""All undocumented names of aiohttp that slowtok uses.

`missing` checks them once at start. Without a name that only serves speed, slowtok does without
the speed; without any other, it cannot serve and reports the name.
"""

import asyncio
import importlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import aiohttp
from aiohttp import http, web, web_protocol

if TYPE_CHECKING:
    from aiohttp.base_protocol import BaseProtocol
    from aiohttp.http import RawRequestMessage, StreamWriter

    __all__ = ["BaseProtocol", "RawRequestMessage", "StreamWriter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateName:
    """An undocumented name of aiohttp, and how slowtok calls it.

    `positional` is the number of positional arguments with `self`, None for an attribute;
    `keywords` are the keyword arguments. `is_for_speed`: slowtok can do without it.
    """

    name: str
    positional: int | None = None
    keywords: tuple[str, ...] = ()
    is_for_speed: bool = False


_REQUEST_HANDLER_OPTIONS = (
    *("loop", "keepalive_timeout", "access_log", "max_line_size", "max_field_size"),
    "auto_decompress",
)

USED = (
    # The body of an engine's reply, between the connection and whoever reads it.
    PrivateName(name="aiohttp.StreamReader", positional=2, keywords=("loop",)),
    PrivateName(name="aiohttp.StreamReader.exception", positional=1),
    PrivateName(name="aiohttp.StreamReader.feed_data", positional=2),
    PrivateName(name="aiohttp.StreamReader.feed_eof", positional=1),
    PrivateName(name="aiohttp.StreamReader.on_eof", positional=2),
    PrivateName(name="aiohttp.StreamReader.set_exception", positional=2),
    # Connections from clients.
    PrivateName(name="aiohttp.web.AppRunner._make_server", positional=1),
    PrivateName(
        name="aiohttp.web.Server",
        positional=1,
        keywords=("request_factory", "handler_cancellation"),
    ),
    PrivateName(name="aiohttp.web.Server.connections"),
    PrivateName(name="aiohttp.web.RequestHandler", positional=1, keywords=_REQUEST_HANDLER_OPTIONS),
    PrivateName(name="aiohttp.web.RequestHandler._messages"),
    PrivateName(name="aiohttp.web.RequestHandler._request_count"),
    PrivateName(name="aiohttp.web.RequestHandler._request_in_progress"),
    PrivateName(name="aiohttp.web.RequestHandler.data_received", positional=2),
    PrivateName(name="aiohttp.web.RequestHandler.force_close", positional=1),
    PrivateName(name="aiohttp.web.RequestHandler.max_field_size"),
    PrivateName(name="aiohttp.web.RequestHandler.pause_reading", positional=1),
    PrivateName(name="aiohttp.web.RequestHandler.resume_reading", positional=2),
    PrivateName(name="aiohttp.web.RequestHandler.transport"),
    PrivateName(name="aiohttp.web_protocol.ERROR"),
    # One request from a client, and the reply to it.
    PrivateName(name="aiohttp.http.RawRequestMessage.chunked"),
    PrivateName(name="aiohttp.http.RawRequestMessage.headers"),
    PrivateName(name="aiohttp.http.RawRequestMessage.method"),
    PrivateName(name="aiohttp.http.RawRequestMessage.path"),
    PrivateName(name="aiohttp.http.RawRequestMessage.raw_headers"),
    PrivateName(name="aiohttp.http.RawRequestMessage.should_close"),
    PrivateName(name="aiohttp.http.RawRequestMessage.upgrade"),
    PrivateName(name="aiohttp.http.RawRequestMessage.url"),
    PrivateName(name="aiohttp.http.RawRequestMessage.version"),
    PrivateName(name="aiohttp.http.StreamWriter.drain", positional=1),
    PrivateName(name="aiohttp.http.StreamWriter.enable_chunking", positional=1),
    PrivateName(name="aiohttp.http.StreamWriter.length"),
    PrivateName(name="aiohttp.http.StreamWriter.output_size"),
    PrivateName(name="aiohttp.http.StreamWriter.transport"),
    PrivateName(name="aiohttp.http.StreamWriter.write", positional=2),
    PrivateName(name="aiohttp.http.StreamWriter.write_eof", positional=1),
    # The fast path, on which a stream goes past aiohttp's writer and reader.
    PrivateName(name="aiohttp.StreamReader.read_nowait", positional=1, is_for_speed=True),
    PrivateName(name="aiohttp.web.RequestHandler.writing_paused", is_for_speed=True),
)


def missing() -> Iterator[PrivateName]:
    """Yield the names that the installed aiohttp lacks, or that slowtok could not call."""
    return (used for used in USED if not _is_there(used))


def _is_there(used: PrivateName) -> bool:
    try:
        found = _find(used.name)
    except (ImportError, AttributeError):
        return False
    if used.positional is None:
        return True
    try:
        signature = inspect.signature(found)
    except ValueError:  # compiled code tells none
        return True
    try:
        signature.bind(*[None] * used.positional, **dict.fromkeys(used.keywords))
    except TypeError:
        return False
    return True


def _find(name: str) -> Any:
    """Return the object of a dotted name, importing the longest part that is a module."""
    package, *parts = name.split(".")
    found: Any = importlib.import_module(package)
    for part in parts:
        if not hasattr(found, part) and inspect.ismodule(found):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def make_stream_reader(
    protocol: asyncio.Protocol, limit_bytes: int, loop: asyncio.AbstractEventLoop
) -> aiohttp.StreamReader:
    """Return a reader for a body; it pauses `protocol` when twice the limit is unread.

    `protocol` needs `connected`, `pause_reading` and `resume_reading(resume_parser)`.
    """
    return aiohttp.StreamReader(cast("BaseProtocol", protocol), limit_bytes, loop=loop)


class Runner(web.AppRunner):
    """aiohttp's runner of an application, with the server that `make` returns."""

    def __init__(
        self, pages: web.Application, make: Callable[[web.Server], web.Server], **options: Any
    ) -> None:
        super().__init__(pages, **options)
        self._make = make

    async def _make_server(self) -> web.Server:
        return self._make(await super()._make_server())


def requests_read(connection: web.RequestHandler) -> int:
    """Return how many request heads a client's connection has delivered."""
    return connection._request_count


def has_next(connection: web.RequestHandler) -> bool:
    """Return True if another request is queued, or aiohttp's note that it could not parse one."""
    return bool(connection._messages)


class WaitingHead:
    """The head of a queued request; the first to take it gets it.

    aiohttp's server keeps what it was given until the next request arrives, which may be hours
    later. The head alone would be a thirtieth of the memory of a stream.
    """

    __slots__ = ("_message",)

    def __init__(self, message: "RawRequestMessage") -> None:
        self._message: RawRequestMessage | None = message

    def take(self) -> "RawRequestMessage | None":
        """Return the head; only the first call gets it."""
        message, self._message = self._message, None
        return message


def hold_heads(connection: web.RequestHandler) -> None:
    """Wrap each queued head in a `WaitingHead`."""
    waiting: deque[Any] = connection._messages
    for index, (message, body) in enumerate(waiting):
        if isinstance(message, http.RawRequestMessage):
            waiting[index] = (WaitingHead(message), body)


def taken(head: Any) -> Any:
    """Return the wrapped head; anything else unchanged."""
    return head.take() if isinstance(head, WaitingHead) else head


def body_of_last(connection: web.RequestHandler) -> aiohttp.StreamReader | None:
    """Return the body of the last queued request."""
    return connection._messages[-1][1] if connection._messages else None


def is_answering(connection: web.RequestHandler) -> bool:
    """Return True if a request is being answered."""
    return connection._request_in_progress


def is_no_http(message: "RawRequestMessage") -> bool:
    """Return True if a message is aiohttp's placeholder for one that it could not parse."""
    return message is web_protocol.ERROR
