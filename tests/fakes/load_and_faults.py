"""Load for a soak: clients that finish, leave, reset and read slowly, round after round."""

import asyncio
import contextlib
import itertools

from fakes.client import Client, connect
from fakes.paced_engine import whole_stream
from fakes.wire import read_body

TOKENS = 50
CLIENTS = 16


class Load:
    """`rounds` counts whole streams; `wrong` those whose bytes were not the engine's."""

    def __init__(self, port: int) -> None:
        self.whole = 0
        self.wrong = 0
        self.left = 0
        self._port = port

    async def go_on(self, duration_s: float) -> None:
        """Keep the proxy busy for so long; nothing is open afterwards."""
        until_s = asyncio.get_running_loop().time() + duration_s
        await asyncio.gather(*(self._client(number, until_s) for number in range(CLIENTS)))

    async def _client(self, number: int, until_s: float) -> None:
        for turn in itertools.count(number):
            if asyncio.get_running_loop().time() > until_s:
                return
            client = await connect(self._port)
            try:
                await self._once(client, turn)
            finally:
                client.close()

    async def _once(self, client: Client, turn: int) -> None:
        if turn % 5 == 4:  # it leaves before its answer
            await client.chat(max_tokens=TOKENS, gap_s=0.01)
            await client.head()
            (client.reset if turn % 2 else client.close)()
            self.left += 1
        elif turn % 5 == 3:
            await client.chat(stream=False)
            await client.reply()
        elif turn % 5 == 2:  # garbage
            await client.send(b"\x16\x03\x01\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                await client.rest()
        else:
            await client.chat(max_tokens=TOKENS)
            head = await client.head()
            body = await read_body(client.reader, head)
            self.whole += 1
            self.wrong += body != whole_stream(TOKENS)
