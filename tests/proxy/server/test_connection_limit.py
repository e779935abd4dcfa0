"""Clients that come in one turn of the event loop are counted as they are taken in."""

import asyncio
import contextlib
import socket
import sys

import pytest
import uvloop
from aiohttp import web

from fakes.wire import WAIT_S
from slowtok.proxy.server.connection_limit import ConnectionLimiter
from slowtok.proxy.server.listener import HANDLES, accept, open_listener

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not for Windows")
LIMIT = 2


async def answer(_: web.BaseRequest) -> web.Response:
    return web.Response()


async def crowd_at_once() -> tuple[int, int]:
    """Let more clients come within one turn than fit; return how many were served and refused."""
    server = web.Server(answer)
    limiter = ConnectionLimiter(server, LIMIT, head_timeout_s=60.0, log_event=lambda *_, **__: None)
    listener = open_listener("127.0.0.1", 0, 1.0)
    with contextlib.ExitStack() as opened:
        for listening in await accept(listener, limiter):
            opened.callback(listening.close)
        for _ in range(HANDLES):
            opened.enter_context(socket.create_connection(listener.getsockname()))
        async with asyncio.timeout(WAIT_S):
            while len(server.connections) + limiter.refused < HANDLES:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)
        served = len(server.connections)
    await server.shutdown(0)
    return served, limiter.refused


def test_no_more_clients_are_taken_in_within_a_turn_than_the_limit_allows() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(crowd_at_once()) == (LIMIT, HANDLES - LIMIT)
