"""An engine's reply to one request, with no more than relaying needs.

aiohttp's session would take three times as long: it creates a URL, a request and a response with
cookies, time-outs and traces, which are not used here, and a task to send each body.
"""

import asyncio
from typing import cast

import aiohttp

from slowtok.proxy.http.headers import NO_FIELDS
from slowtok.proxy.upstream.connection import EngineConnection
from slowtok.proxy.upstream.reply_body import ReplyBody
from slowtok.proxy.upstream.reply_head import BadReply, ReplyHead
from slowtok.proxy.upstream.request import EngineRequest, write


class EngineReply:
    """A reply whose head has arrived, and the connection that delivers its body.

    The connection is released as soon as the body is complete. If the reply is left early, the
    connection is closed, because the rest of the body would precede the next reply.
    """

    __slots__ = (
        "_sending",
        "body",
        "connection",
        "content",
        "headers",
        "origin",
        "reason",
        "status",
    )

    def __init__(
        self,
        head: ReplyHead,
        body: ReplyBody,
        content: aiohttp.StreamReader,
        connection: EngineConnection,
        sending: asyncio.Task[None] | None,
        origin: str,
    ) -> None:
        self.status = head.status
        self.reason = head.reason
        self.headers = head.headers
        self.body = body  # where it stands
        self.content = content
        self.connection: EngineConnection | None = connection
        self.origin = origin  # of the engine, for messages
        self._sending = sending
        content.on_eof(self._complete)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget_head(self) -> None:
        """Release the header fields, which have been forwarded: a stream may last for hours."""
        self.headers = NO_FIELDS

    def close(self) -> None:
        """Close the connection, unless it has been released."""
        connection, self.connection = self.connection, None
        if connection is not None:
            self._stop(connection)
            self.content.set_exception(aiohttp.ClientConnectionError("the reply was left"))

    def _complete(self) -> None:
        """Release the connection; close it if the engine did not read the whole request."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        if connection.writing_paused or (self._sending is not None and not self._sending.done()):
            self._stop(connection)
            return
        connection.release()

    def _stop(self, connection: EngineConnection) -> None:
        if self._sending is not None:
            self._sending.cancel()
        connection.close()


async def ask(connection: EngineConnection, request: EngineRequest, origin: str) -> EngineReply:
    """Send a request and return its reply once the head has arrived.

    On failure the connection is closed.

    Raises:
        aiohttp.ClientError, OSError: no reply arrived.
        BadReply: the engine's bytes are no valid reply.
        ValueError: the request's head would have held a control character.
    """
    sending = None
    try:
        if connection.should_close:
            raise BadReply("bytes before a request was sent")
        connection.expect_reply(with_body=request.method != "HEAD")
        sending = await write(request, connection)
        head, content = await connection.read_head()
    except BaseException:
        if sending is not None:
            sending.cancel()
        connection.close()
        raise
    body = cast("ReplyBody", connection.body)
    return EngineReply(head, body, content, connection, sending, origin)
