"""Sends requests to engines, and maps all exceptions to `UpstreamError`."""

import asyncio
import errno
import ssl
from dataclasses import dataclass
from typing import cast

import aiohttp

from slowtok.detectors.case.ending import WHAT_TO_CHECK
from slowtok.proxy.http.headers import Headers
from slowtok.proxy.upstream.connection import (
    MAX_HEAD_BYTES,
    READ_BUFFER_BYTES,
)
from slowtok.proxy.upstream.connector import RESOLVED_S, EngineConnector
from slowtok.proxy.upstream.reply import EngineReply, ask
from slowtok.proxy.upstream.reply_head import FINAL, BadReply
from slowtok.proxy.upstream.request import Body, make_request

# llama-server and vLLM drop idle connections after 5 s (read in their sources): ours go first.
KEEPALIVE_S = 4.0
MAX_STALE_S = 1.0  # a dropped connection shows in a round trip; later the engine was at work

_EXHAUSTED = frozenset(  # of this machine, which is no fault of the engine's
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)
_CONNECTION_BROKE = aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError


@dataclass(eq=False, kw_only=True)
class UpstreamError(Exception):
    """The engine could not be reached, or did not answer.

    `status` is what the client gets: 502 if the engine refused or broke, 504 if it did not answer.
    `ended` is the ending in the record, `check` what the user should look at.
    """

    status: int
    ended: str
    failed: str
    check: str


def make_session(
    connect_timeout_s: float, max_head_bytes: int = MAX_HEAD_BYTES
) -> aiohttp.ClientSession:
    """Return the session for all engines: it decodes, follows, stores and adds nothing."""
    return aiohttp.ClientSession(
        connector=EngineConnector(
            max_head_bytes,
            KEEPALIVE_S,
            limit=0,
            ttl_dns_cache=RESOLVED_S,
            enable_cleanup_closed=False,
        ),
        # No total time-out: a long prefill is silent for minutes and that is no fault.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        trust_env=False,
        read_bufsize=READ_BUFFER_BYTES,
        max_line_size=max_head_bytes,
        max_field_size=max_head_bytes,
    )


async def send(
    session: aiohttp.ClientSession,
    base_url: str,
    method: str,
    target: str,
    headers: Headers,
    body: Body,
) -> EngineReply:
    """Send one request and return the reply once its head has arrived.

    `target` is the client's own path and query, passed on without being decoded. An engine may
    close an idle connection at the very moment in which it is reused. A request that failed so,
    before any byte of a reply, is sent once more if its body is still at hand. It then uses a new
    connection, on which nothing is repeated: no failure is hidden, and a prompt that crashes the
    engine is not sent again for each idle connection.

    Raises:
        UpstreamError: the engine refused, broke or timed out before its head was complete.
    """
    connector = cast("EngineConnector", session.connector)
    address = connector.address(base_url)
    request = make_request(address, method, target, headers, body)
    now_s = asyncio.get_running_loop().time
    is_repeated = False
    while True:
        began_s = now_s()
        try:
            connection = await connector.get_connection(address, session.timeout, fresh=is_repeated)
        except OSError as error:
            raise _unreachable(error, base_url) from error
        try:
            reply = await ask(connection, request, address.origin)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            at_once = now_s() - began_s < MAX_STALE_S
            resendable = at_once and isinstance(body, bytes | None)
            was_idle = connection.was_idle and not connection.has_reply_bytes
            if not (was_idle and resendable and isinstance(error, _CONNECTION_BROKE)):
                raise _broken(error, base_url) from error
            is_repeated = True
        else:
            if reply.status >= FINAL:
                return reply
            reply.close()  # 101 would make what follows another protocol, which nobody asked for
            raise _no_reply(base_url, f"status {reply.status}")


def _with_usual_advice(status: int, ended: str, failed: str) -> UpstreamError:
    """Return an error with the usual advice for its ending."""
    return UpstreamError(status=status, ended=ended, failed=failed, check=WHAT_TO_CHECK[ended])


def no_engine(searched_at: str) -> UpstreamError:
    """Return the error for a request without an engine, with the addresses that were searched."""
    return _with_usual_advice(502, "no-engine", f"no inference server found ({searched_at})")


def broke_off(reply: EngineReply) -> UpstreamError:
    """Return the error for a whole reply that broke off."""
    return _with_usual_advice(
        502, "upstream-error", f"{reply.origin} broke off in the middle of its reply"
    )


def _unreachable(error: OSError, base_url: str) -> UpstreamError:
    """Return the error for a request without a connection."""
    if isinstance(error, TimeoutError):
        return _with_usual_advice(
            504, "timeout", f"{base_url} did not accept the connection in time"
        )
    why = (error.strerror or str(error) or type(error).__name__)[:160]
    if error.errno in _EXHAUSTED:
        return _with_usual_advice(
            503, "overloaded", f"slowtok cannot open a connection to {base_url} ({why})"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return UpstreamError(
            status=502,
            ended="upstream-refused",
            failed=f"{base_url} shows a certificate that is not trusted here"
            f" ({error.verify_message[:80]})",
            check="trust it (SSL_CERT_FILE names a file of certificates), or ask it over http",
        )
    refused = error.errno == errno.ECONNREFUSED
    what = "refused the connection" if refused else f"cannot be reached ({why})"
    return _with_usual_advice(502, "upstream-refused", f"{base_url} {what}")


def _broken(error: BaseException, base_url: str) -> UpstreamError:
    """Return the error for a request that was sent, at least in part, and got no reply."""
    if isinstance(error, _CONNECTION_BROKE):
        return _with_usual_advice(
            502, "upstream-error", f"{base_url} closed the connection before it answered"
        )
    return _no_reply(base_url, _describe(error))


def _no_reply(base_url: str, description: str) -> UpstreamError:
    return UpstreamError(
        status=502,
        ended="upstream-error",
        failed=f"{base_url} sent no valid HTTP reply ({description})",
        check="check that this is the address of an inference server",
    )


def _describe(error: BaseException) -> str:
    """Name an error without its text, which may hold bytes that the engine sent."""
    if isinstance(error, BadReply):
        return str(error)
    return type(error).__name__
