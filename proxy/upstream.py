"""The way to one engine: its client session, and foreign exceptions mapped to `UpstreamError`."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from yarl import URL

from slowtok.proxy.headers import Headers
from slowtok.proxy.outputs.errors import WHAT_TO_CHECK

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.tracing import Trace

# llama-server and vLLM drop idle connections after 5 s (read in their sources): ours go first.
KEEPALIVE_S = 4.0
READ_BUFFER_BYTES = 64 * 1024  # asyncio's 256 KiB costs an mmap per read
MAX_HEAD_BYTES = 64 * 1024
FIRST_FINAL_STATUS = 200  # what is below announces a reply and is none
MAX_STALE_S = 1.0  # a dropped connection shows in a round trip; later the engine was at work
PIECE_BYTES = 256 * 1024  # of a request body; aiohttp warns from 1 MiB on

_EXHAUSTED = frozenset(  # of this machine, which is no fault of the engine's
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)
_CONNECTION_BROKE = aiohttp.ClientOSError | ConnectionError

Body = bytes | AsyncIterator[bytes] | None


@dataclass(eq=False, kw_only=True)
class UpstreamError(Exception):
    """The engine could not be asked, or did not answer.

    `status` is ours towards the client: 502 where the engine refused or broke, 504 where it kept
    silent. `ended` is the record's word, `check` what the user should look at.
    """

    status: int
    ended: str
    failed: str
    check: str


def make_session(connect_timeout_s: float) -> aiohttp.ClientSession:
    """Return the session that all upstreams share: nothing decoded, followed, kept or added."""
    return aiohttp.ClientSession(
        connector=_Connector(
            limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=60, enable_cleanup_closed=False
        ),
        # No total time-out: a long prefill is silent for minutes and that is no fault.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        trust_env=False,
        read_bufsize=READ_BUFFER_BYTES,
        max_line_size=MAX_HEAD_BYTES,
        max_field_size=MAX_HEAD_BYTES,
    )


async def send(
    session: aiohttp.ClientSession,
    base_url: str,
    method: str,
    target: str,
    headers: Headers,
    body: Body,
) -> aiohttp.ClientResponse:
    """Send one request and return the reply once its head is there.

    `target` is the client's own path and query, passed without being decoded. An engine may drop
    an idle connection at the very moment in which we use it: a request that met no other answer
    than that is sent again where its body still can be. On a fresh connection nothing is repeated,
    so that no failure is hidden and no prompt is run twice.

    Raises:
        UpstreamError: the engine refused, broke or timed out before its head was complete.
    """
    url = URL(base_url.rstrip("/") + target, encoded=True)
    if isinstance(body, bytes):
        headers["Content-Length"] = str(len(body))
    while True:
        attempt = _Attempt()
        _ATTEMPT.set(attempt)
        began_s = asyncio.get_running_loop().time()
        try:
            reply = await session.request(
                method,
                url,
                headers=headers,
                data=_data(body),
                allow_redirects=False,
            )
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            at_once = asyncio.get_running_loop().time() - began_s < MAX_STALE_S
            resendable = at_once and isinstance(body, bytes | None)
            if not (attempt.reused and resendable and _is_silent_end(error)):
                raise _error_for(error, base_url) from error
        else:
            if reply.status >= FIRST_FINAL_STATUS:
                return reply
            reply.close()  # 101 would make what follows another protocol, which nobody asked for
            raise _no_reply(base_url, f"status {reply.status}")


class _Connector(aiohttp.TCPConnector):
    """Keeps connections for later; one that was spoken on meanwhile is closed and not used.

    aiohttp takes what an engine says too much, as after a wrong Content-Length, for the answer to
    the next request: one client would get what was meant for another.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(_Reading, loop=self._loop))

    async def _get(self, key: "ConnectionKey", traces: list["Trace"]) -> Connection | None:
        while (kept := await super()._get(key, traces)) is not None:
            if kept.protocol is not None and not kept.protocol.should_close:
                break
            kept.close()
        if (attempt := _ATTEMPT.get()) is not None:
            attempt.reused = kept is not None
        return kept


class _Reading(ResponseHandler):
    """An engine's connection. aiohttp resumes one that was never paused after each piece read.

    That costs as much as to read the piece, for each token.
    """

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused:
            super().resume_reading(resume_parser)


@contextlib.contextmanager
def held(reply: aiohttp.ClientResponse) -> Iterator[None]:
    """Hold a reply's connection: given back after a complete body, closed when left early.

    A connection that ends ends the body, too. aiohttp sees to that itself, except for malformed
    chunks: it drops the connection then, and whoever reads the body would wait for ever.
    """
    content = reply.content

    def end_body(closed: asyncio.Future[None]) -> None:
        if not closed.cancelled() and not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection ended"))

    closed = _closed(reply)
    if closed is not None:
        closed.add_done_callback(end_body)
    try:
        yield
    finally:
        if closed is not None:
            closed.remove_done_callback(end_body)
        if content.at_eof() and content.exception() is None:
            reply.release()
        else:
            reply.close()


def _closed(reply: aiohttp.ClientResponse) -> asyncio.Future[None] | None:
    """Return what tells of the connection's end; None where the reply needs it no more."""
    protocol = reply.connection.protocol if reply.connection is not None else None
    closed = protocol.closed if protocol is not None else None
    if closed is not None:
        closed.remove_done_callback(_acknowledge)  # once for each connection, not each reply
        closed.add_done_callback(_acknowledge)
    return closed


def _acknowledge(closed: asyncio.Future[None]) -> None:
    """Take note of how a connection ended: asyncio complains where nobody does."""
    if not closed.cancelled():
        closed.exception()


@dataclass(slots=True)
class _Attempt:
    reused: bool = False  # it went out on a connection that had been idle


_ATTEMPT: ContextVar[_Attempt | None] = ContextVar("attempt", default=None)


def _is_silent_end(error: BaseException) -> bool:
    """Say whether the connection ended without a byte of a reply, as far as can be told."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return isinstance(error.message, str)  # else it is the head as far as it had come
    return isinstance(error, _CONNECTION_BROKE)


def _data(body: Body) -> Body:
    if isinstance(body, bytes) and len(body) > PIECE_BYTES:
        return _pieces(body)
    return body or None


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """Cut a large body, so that sending it neither copies it whole nor holds up other streams."""
    for begin in range(0, len(body), PIECE_BYTES):
        yield body[begin : begin + PIECE_BYTES]


def no_engine(looked_at: str) -> UpstreamError:
    """Return the error of a request for which there is no engine; `looked_at` says where."""
    return UpstreamError(
        status=502,
        ended="no-engine",
        failed=f"no inference server found ({looked_at})",
        check=WHAT_TO_CHECK["no-engine"],
    )


def broke_off(reply: aiohttp.ClientResponse) -> UpstreamError:
    """Return the error of a whole reply that ended before its end."""
    return UpstreamError(
        status=502,
        ended="upstream-error",
        failed=f"{reply.url.origin()} broke off in the middle of its reply",
        check=WHAT_TO_CHECK["upstream-error"],
    )


def _error_for(error: BaseException, base_url: str) -> UpstreamError:
    if isinstance(error, asyncio.TimeoutError):
        return UpstreamError(
            status=504,
            ended="timeout",
            failed=f"{base_url} did not accept the connection in time",
            check=WHAT_TO_CHECK["timeout"],
        )
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        return UpstreamError(
            status=503,
            ended="overloaded",
            failed=f"slowtok cannot open a connection to {base_url} ({_words(error)})",
            check=WHAT_TO_CHECK["overloaded"],
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        refused = error.os_error.errno == errno.ECONNREFUSED
        what = "refused the connection" if refused else f"cannot be reached ({_words(error)})"
        return UpstreamError(
            status=502,
            ended="upstream-refused",
            failed=f"{base_url} {what}",
            check=WHAT_TO_CHECK["upstream-refused"],
        )
    if isinstance(error, aiohttp.ServerDisconnectedError | _CONNECTION_BROKE):
        return UpstreamError(
            status=502,
            ended="upstream-error",
            failed=f"{base_url} closed the connection before it answered",
            check=WHAT_TO_CHECK["upstream-error"],
        )
    return _no_reply(base_url, _words(error))


def _no_reply(base_url: str, words: str) -> UpstreamError:
    return UpstreamError(
        status=502,
        ended="upstream-error",
        failed=f"{base_url} sent no valid HTTP reply ({words})",
        check="is this address an inference server?",
    )


def _words(error: BaseException) -> str:
    """Name an error without its text, which may hold bytes that the engine sent."""
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.strerror:
        return error.os_error.strerror[:80]
    return type(error).__name__
