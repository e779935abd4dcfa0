"""A client's request, no more of it than relaying needs.

aiohttp's server makes one for each message, in place of its own request, which would bring what is
not needed here: cookies, forms, a mapping of state, routes.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from aiohttp import EMPTY_PAYLOAD, HttpVersion, HttpVersion10, HttpVersion11, StreamReader, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from slowtok.proxy.http.headers import NO_FIELDS
from slowtok.proxy.http.run_clues import URL_PREFIX, split_run

if TYPE_CHECKING:
    from slowtok.proxy.http.aiohttp_private import RawRequestMessage, StreamWriter

DEFAULT_CONTENT_TYPE = "application/octet-stream"  # RFC 9110, section 8.3
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientRequest:
    """One request. `raw_path` is its target, `path` the decoded path in it.

    Both are without the run that a base URL `…/run/NAME/v1` names, which is in `run_name`.

    `own_fields` are those that were meant for the proxy itself, in lower case. `_task`, `_cancel`
    and `_finish` are what aiohttp's server asks of a request.
    """

    __slots__ = (
        "_is_stopping",
        "_task",
        "content",
        "headers",
        "message",
        "method",
        "own_fields",
        "path",
        "protocol",
        "raw_path",
        "run_name",
        "version",
        "writer",
    )

    def __init__(
        self,
        message: "RawRequestMessage",
        content: StreamReader,
        protocol: web.RequestHandler,
        writer: "StreamWriter",
        task: "asyncio.Task[None]",
        *,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._is_stopping = is_stopping
        self.message = message
        self._task = task
        self.method: str = message.method
        self.path: str = message.url.path
        self.raw_path: str = message.path
        self.run_name: str | None = None
        if message.path.startswith(URL_PREFIX):
            self.run_name, self.raw_path = split_run(message.path)
            if self.run_name is not None:
                # Behind a host: alone, a path that begins with two slashes would name one.
                self.path = URL(f"//host{self.raw_path}", encoded=True).path
        self.headers: CIMultiDictProxy[str] = message.headers
        # A version that nobody here speaks is refused in the words of one that all understand.
        self.version: HttpVersion = max(HttpVersion10, min(message.version, HttpVersion11))
        self.content = content
        self.protocol = protocol
        self.writer = writer
        self.own_fields: frozenset[str] = frozenset()

    @property
    def transport(self) -> asyncio.Transport | None:
        """The connection; None once it has ended."""
        return self.protocol.transport

    @property
    def keep_alive(self) -> bool:
        """Return True if the connection stays open for more: the client wants it, and we stay.

        Not after an offer of another protocol: aiohttp forgets what came in one read with it.
        """
        message = self.message
        return not (message.should_close or message.upgrade or self._is_stopping())

    @property
    def fields(self) -> CIMultiDictProxy[str]:
        """The header as it was spelled; `headers` has aiohttp's spelling of the names it knows."""
        return CIMultiDictProxy(
            CIMultiDict(
                [
                    (name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))
                    for name, value in self.message.raw_headers
                ]
            )
        )

    @property
    def body_exists(self) -> bool:
        """Return True if there is a body, be it an empty one."""
        return self.content is not EMPTY_PAYLOAD

    @property
    def content_type(self) -> str:
        """The type of the body, in lower case and without parameters."""
        return (
            self.headers.get("Content-Type", DEFAULT_CONTENT_TYPE).partition(";")[0].strip().lower()
        )

    @property
    def query(self) -> Mapping[str, str]:
        """The decoded query."""
        return self.message.url.query

    @property
    def target(self) -> str:
        """Path and query exactly as the client sent them; `*` asks of the whole server."""
        target = self.raw_path
        if target.startswith("/"):
            return target
        return "/" if target == "*" else self.message.url.raw_path_qs

    def forget_head(self) -> None:
        """Let go of what the reply does not need: a stream may last for hours."""
        self.headers = NO_FIELDS
        del self.message

    async def send_continue(self) -> None:
        """Tell a client to send the body that it holds back until it hears that it may."""
        if self.version == HttpVersion11:  # older ones know no such word
            await self.writer.write(CONTINUE)
            self.writer.output_size = 0  # no reply has begun yet

    def _cancel(self, error: BaseException) -> None:
        self.content.set_exception(error)

    def _finish(self) -> None:
        pass
