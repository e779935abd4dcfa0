"""What every case ends with: the next healthy request works."""

from fakes.client import Client
from fakes.proxy import Served
from fakes.recorder import HEALTHY


async def works_on(client: Client) -> None:
    """A healthy request on a connection that is open."""
    await client.ask("GET", "/healthy")
    head, body = await client.reply()
    assert (head.status, body) == (200, HEALTHY)


async def works_anew(proxy: Served) -> None:
    """A healthy request on a new connection, to an engine and to slowtok itself."""
    await works_on(await proxy.connect())
    assert await proxy.own("/slowtok/health") == {"status": "ok"}
