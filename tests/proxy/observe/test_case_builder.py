"""What the case of a relayed request holds beside the request."""

from pathlib import Path

from fakes.client import Client
from fakes.proxy import Served, serving
from fakes.upstream import Upstream
from fakes.wire import LAST_CHUNK, SSE, chunk, chunked_head, until
from slowtok.proxy.app import Proxy
from slowtok.proxy.runtime.loop_lag import LoopLag

SAID = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'


class LateLoop(LoopLag):
    """A loop that woke 0.7 s late since any request came."""

    def most_since(self, from_s: float) -> float | None:
        return 0.7 if from_s > 0 else None


async def ask(served: Served, client: Client, engine: Upstream) -> None:
    engine.reply = chunked_head(SSE) + chunk(SAID) + LAST_CHUNK
    await client.chat()
    await client.reply()
    await until(lambda: served.cases)


async def test_lateness_of_the_loop_is_in_the_case(tmp_path: Path, engine: Upstream) -> None:
    def late(proxy: Proxy) -> None:
        proxy.lag = LateLoop()

    async with serving(tmp_path, engine.url, change=late) as served:
        await ask(served, await served.connect(), engine)

        assert served.cases[-1].timeline.loop_lag_s == 0.7


async def test_a_loop_that_was_not_measured_meanwhile_is_not_known(
    proxy: Served, client: Client, engine: Upstream
) -> None:
    await ask(proxy, client, engine)

    assert proxy.cases[-1].timeline.loop_lag_s is None
