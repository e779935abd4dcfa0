"""The connections to engines that a session has, looked at from outside."""

from typing import Any

import aiohttp

from slowtok.proxy.engine_connection import EngineConnection


def kept(session: aiohttp.ClientSession) -> list[EngineConnection]:
    """Return those that are kept for later: by the connector, or by aiohttp's part of it."""
    connector: Any = session.connector
    ours = [connection for idle in connector._idle.values() for connection in idle]
    return ours + [connection for idle in connector._conns.values() for connection, _ in idle]


def in_use(session: aiohttp.ClientSession) -> list[Any]:
    """Return those that serve a request, or are being opened for one."""
    connector: Any = session.connector
    return list(connector._acquired.difference(*connector._idle.values()))


def close_kept(session: aiohttp.ClientSession) -> None:
    """Close those that are kept for later."""
    connector: Any = session.connector
    for idle in connector._idle.values():
        while idle:
            idle.popleft().lease.close()
    given_back = [connection for idle in connector._conns.values() for connection, _ in idle]
    connector._conns.clear()
    for connection in given_back:
        connection.close()
