"""The connections to engines that a session has, looked at from outside."""

from typing import Any

import aiohttp

from slowtok.proxy.upstream.connection import EngineConnection


def kept(session: aiohttp.ClientSession) -> list[EngineConnection]:
    """Return those that are kept for later: by the connector, or by aiohttp's part of it."""
    connector: Any = session.connector
    return _ours(connector) + [
        connection for idle in connector._conns.values() for connection, _ in idle
    ]


def in_use(session: aiohttp.ClientSession) -> list[Any]:
    """Return those that serve a request."""
    connector: Any = session.connector
    resting = _ours(connector)
    ours = [one for one in connector._opened if one.transport and one not in resting]
    return [*ours, *connector._acquired]


def close_kept(session: aiohttp.ClientSession) -> None:
    """Close those that are kept for later."""
    connector: Any = session.connector
    for address in connector._addresses.values():
        while address.idle:
            address.idle.popleft().close()
    given_back = [connection for idle in connector._conns.values() for connection, _ in idle]
    connector._conns.clear()
    for connection in given_back:
        connection.close()


def _ours(connector: Any) -> list[EngineConnection]:
    return [one for address in connector._addresses.values() for one in address.idle]
