"""All names of aiohttp that slowtok uses and aiohttp does not document.

The names are looked at once, at start (`missing`). What only makes streams fast is left unused
where it is gone; without the rest slowtok cannot serve, and says which name it misses.
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
    """A name of aiohttp's, and how it is called: with so many arguments, and these keywords.

    `positional` counts `self`; None is an attribute. `is_for_speed`: what it serves can be left.
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
    """Yield what is used of aiohttp and is not there, or can no longer be called as it is."""
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
    """Return what a dotted name stands for; its longest part that is a module is imported."""
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
    """Return what a body is read from; it pauses `protocol` at twice the limit.

    `protocol` needs `connected`, `pause_reading` and `resume_reading(resume_parser)`.
    """
    return aiohttp.StreamReader(cast("BaseProtocol", protocol), limit_bytes, loop=loop)


class Runner(web.AppRunner):
    """aiohttp's runner of an application, whose clients are served by what `make` returns."""

    def __init__(
        self, pages: web.Application, make: Callable[[web.Server], web.Server], **options: Any
    ) -> None:
        super().__init__(pages, **options)
        self._make = make

    async def _make_server(self) -> web.Server:
        return self._make(await super()._make_server())


def requests_read(connection: web.RequestHandler) -> int:
    """Return how many heads of requests have come over a client's connection."""
    return connection._request_count


def has_next(connection: web.RequestHandler) -> bool:
    """Return True if a request waits for its turn, or aiohttp's note that what came is none."""
    return bool(connection._messages)


class WaitingHead:
    """The head of a request that waits for its turn; whoever takes it is the only one to have it.

    aiohttp's server keeps what it was given until the next request comes, which may be hours later:
    the head itself would be a thirtieth of the memory that a stream takes.
    """

    __slots__ = ("_message",)

    def __init__(self, message: "RawRequestMessage") -> None:
        self._message: RawRequestMessage | None = message

    def take(self) -> "RawRequestMessage | None":
        """Return the head, once."""
        message, self._message = self._message, None
        return message


def hold_heads(connection: web.RequestHandler) -> None:
    """Put a `WaitingHead` in place of each head that waits for its turn."""
    waiting: deque[Any] = connection._messages
    for index, (message, body) in enumerate(waiting):
        if isinstance(message, http.RawRequestMessage):
            waiting[index] = (WaitingHead(message), body)


def taken(head: Any) -> Any:
    """Return the head that waited; another is returned as it is."""
    return head.take() if isinstance(head, WaitingHead) else head


def body_of_last(connection: web.RequestHandler) -> aiohttp.StreamReader | None:
    """Return the body of the last request that waits for its turn."""
    return connection._messages[-1][1] if connection._messages else None


def is_answering(connection: web.RequestHandler) -> bool:
    """Return True if a request is being answered."""
    return connection._request_in_progress


def is_no_http(message: "RawRequestMessage") -> bool:
    """Return True if a message is aiohttp's stand-in for one that it could not read."""
    return message is web_protocol.ERROR
