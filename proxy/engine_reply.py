"""An engine's reply to one request: no more than relaying needs.

aiohttp's session would take three times as long for it: it makes a URL, a request and a response
with cookies, time-outs and traces, which are not used here, and a task to send each body.
"""

import asyncio
from typing import cast

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage

from slowtok.proxy.engine_connection import EngineConnection
from slowtok.proxy.engine_request import EngineRequest, write

_INTERIM = frozenset({100, *range(102, 200)})  # announce a reply; none comes after 101


class EngineReply:
    """A reply whose head is there, and the connection that its body comes over.

    The connection is given back as soon as the body is complete. One that is left early is closed:
    what is still to come would be in the way of the next reply.
    """

    __slots__ = ("_sending", "connection", "content", "headers", "origin", "reason", "status")

    def __init__(
        self,
        message: RawResponseMessage,
        content: aiohttp.StreamReader,
        connection: Connection,
        sending: asyncio.Task[None] | None,
        origin: str,
    ) -> None:
        self.status = message.code
        self.reason = message.reason
        self.headers = message.headers
        self.content = content
        self.connection: Connection | None = connection
        self.origin = origin  # of the engine, for messages
        self._sending = sending
        content.on_eof(self._complete)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, unless it has been given back."""
        connection, self.connection = self.connection, None
        if connection is not None:
            self._stop(connection)
            self.content.set_exception(aiohttp.ClientConnectionError("the reply was left"))

    def _complete(self) -> None:
        """Give the connection back; not where the engine did not want the whole request."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        protocol = cast("EngineConnection", connection.protocol)
        if protocol.writing_paused or (self._sending is not None and not self._sending.done()):
            self._stop(connection)
            return
        protocol.rest()

    def _stop(self, connection: Connection) -> None:
        if self._sending is not None:
            self._sending.cancel()
        connection.close()


async def ask(connection: Connection, request: EngineRequest, origin: str) -> EngineReply:
    """Send a request and return its reply once the head is there; else close the connection.

    Raises:
        aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError: no reply came.
        ValueError: the request's head would have held a control character.
    """
    protocol = cast("EngineConnection", connection.protocol)
    sending = None
    try:
        protocol.expect_reply(with_body=request.method != "HEAD")
        sending = await write(request, connection)
        message, content = await protocol.read()
        while message.code in _INTERIM:
            message, content = await protocol.read()
    except BaseException:
        if sending is not None:
            sending.cancel()
        connection.close()
        raise
    return EngineReply(message, content, connection, sending, origin)
