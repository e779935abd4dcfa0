"""A client's request, with no more than relaying needs.

aiohttp's server creates one for each message, in place of its own request class with cookies,
forms, state and routes.
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
    """One request. `raw_path` is its target, `path` the decoded path of it.

    Both exclude the run name of a base URL `…/run/NAME/v1`, which is in `run_name`.

    `own_fields` are the lower-case names of fields meant for the proxy itself. `_task`, `_cancel`
    and `_finish` are what aiohttp's server requires of a request.
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
        """The client's transport; None once the connection has ended."""
        return self.protocol.transport

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open for more requests: the client wants it, and we stay.

        Not after an `Upgrade` offer: aiohttp loses what arrived in the same read.
        """
        message = self.message
        return not (message.should_close or message.upgrade or self._is_stopping())

    @property
    def fields(self) -> CIMultiDictProxy[str]:
        """The header as the client spelled it; `headers` has aiohttp's spelling of known names."""
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
        """Whether there is a body, even an empty one."""
        return self.content is not EMPTY_PAYLOAD

    @property
    def content_type(self) -> str:
        """The media type of the body, in lower case and without parameters."""
        return (
            self.headers.get("Content-Type", DEFAULT_CONTENT_TYPE).partition(";")[0].strip().lower()
        )

    @property
    def query(self) -> Mapping[str, str]:
        """The decoded query."""
        return self.message.url.query

    @property
    def target(self) -> str:
        """Path and query exactly as the client sent them; `*` means the whole server."""
        target = self.raw_path
        if target.startswith("/"):
            return target
        return "/" if target == "*" else self.message.url.raw_path_qs

    def forget_head(self) -> None:
        """Release what the reply does not need, to save memory: a stream may last for hours."""
        self.headers = NO_FIELDS
        del self.message

    async def send_continue(self) -> None:
        """Send `100 Continue` to a client that waits for it before it sends the body."""
        if self.version == HttpVersion11:  # older ones know no such word
            await self.writer.write(CONTINUE)
            self.writer.output_size = 0  # no reply has begun yet

    def _cancel(self, error: BaseException) -> None:
        self.content.set_exception(error)

    def _finish(self) -> None:
        pass
