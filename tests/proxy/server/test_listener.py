"""How many clients one turn of the event loop takes in."""

import asyncio
import contextlib
import socket
import sys

import pytest
import uvloop

from slowtok.proxy.server.listener import HANDLES, accept, open_listener

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="asyncio's own loop takes all")


class Taken(asyncio.Protocol):
    """Counts the clients that were taken in."""

    count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Taken.count += 1


async def taken_in_one_turn() -> int:
    """Let many clients come while the loop is busy; return how many its next turns take in."""
    Taken.count = 0
    listener = open_listener("127.0.0.1", 0, 1.0)
    with contextlib.ExitStack() as opened:
        for server in await accept(listener, Taken):
            opened.callback(server.close)
        for _ in range(3 * HANDLES):
            opened.enter_context(socket.create_connection(listener.getsockname()))
        await asyncio.sleep(0)  # ends this turn
        await asyncio.sleep(0)  # ends the one in which they were found
        return Taken.count


def test_several_clients_that_come_at_once_are_taken_in_at_once() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(taken_in_one_turn()) >= HANDLES
