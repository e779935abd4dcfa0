"""An engine whose every received byte is kept, connection by connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fakes.upstream import Upstream, listening
from fakes.wire import JSON, reply

HEALTHY = b'{"healthy":true}'


class Recorder:
    """Stands before an engine made of bytes and hears all that it is sent."""

    def __init__(self, engine: Upstream) -> None:
        self.engine = engine
        self.url = ""
        self.heard: list[bytearray] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def relayed(self) -> list[bytes]:
        """What came over each connection on which something was relayed: looks carry no ID."""
        return [bytes(one) for one in self.heard if b"x-request-id:" in bytes(one).lower()]

    def everything(self) -> bytes:
        return b"".join(self.heard)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        heard = bytearray()
        self.heard.append(heard)
        port = int(self.engine.url.rpartition(":")[2])
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(_pass(reader, forth, heard), _pass(back, writer, bytearray()))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            forth.transport.abort()
            self._tasks.discard(task)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: bytearray
) -> None:
    while data := await reader.read(1 << 16):
        heard += data
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def recording(kind: str = "llama-server") -> AsyncIterator[Recorder]:
    """An engine of that kind that answers every relayed request as a healthy one does."""
    async with listening(kind) as engine:
        engine.reply = reply(HEALTHY, JSON)
        recorder = Recorder(engine)
        server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0, limit=1 << 20)
        recorder.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield recorder
        finally:
            server.close()
            await recorder.stop()
