"""A connection to an engine without a network: a test decides what each read brings."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import aiohttp
from aiohttp.base_protocol import BaseProtocol

from fakes.wire import SSE, chunked_head
from slowtok.proxy.relay.backpressure import BacklogRoom, BacklogWatch
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.fast_path import FastPath
from slowtok.proxy.relay.memory_budget import MemoryBudget
from slowtok.proxy.upstream.connection import MAX_HEAD_BYTES, EngineConnection
from slowtok.proxy.upstream.fair_reads import FairReads
from slowtok.proxy.upstream.reply import EngineReply


class _Parsed(EngineConnection):
    """Counts what is taken apart."""

    parsed_bytes = 0

    def process_bytes(self, data: bytes) -> None:
        self.parsed_bytes += len(data)
        super().process_bytes(data)


class _Wire(asyncio.Transport):
    """Either side's transport: takes all, and hands to its protocol what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.protocol: Any = None
        self.closed = False
        self.is_paused = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast("asyncio.BaseProtocol", self.protocol)

    def write(self, data: Any) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class _Seen:
    """Stands for the meter: keeps what it is shown."""

    def __init__(self) -> None:
        self.body = b""

    def feed(self, piece: bytes, _at_s: float) -> None:
        self.body += piece


class EngineLine:
    """An engine's reply that begins with `head`, and comes read by read."""

    def __init__(self, turns: FairReads | None = None) -> None:
        self._wire = _Wire()
        loop = asyncio.get_running_loop()
        turns = turns or FairReads(loop)
        self.connection = _Parsed(loop, MAX_HEAD_BYTES, lambda _: None, turns, deque())
        self.connection.connection_made(self._wire)
        self._wire.protocol = self.connection
        self.connection.expect_reply(with_body=True)

    async def begin(self, head: bytes) -> None:
        """Take a head, and what came with it."""
        self._wire.protocol.data_received(head)
        self._head, self.content = await self.connection.read_head()

    @property
    def parsed_bytes(self) -> int:
        """What was taken apart, the head included."""
        return self.connection.parsed_bytes

    @property
    def is_over(self) -> bool:
        """Whether the reply has ended, well or not."""
        return self.content.is_eof() or self._wire.closed

    @property
    def is_paused(self) -> bool:
        """Whether no more is read from the engine now."""
        return self._wire.is_paused

    def receive(self, data: bytes) -> None:
        """Bring one read."""
        self._wire.protocol.data_received(data)

    def ended(self) -> str:
        """Say how the reply ends when the engine hangs up now."""
        malformed = self._wire.closed
        if not self.content.is_eof():
            self._wire.protocol.connection_lost(None)
        if self.content.is_eof():
            return "complete"
        assert isinstance(self.content.exception(), aiohttp.ClientPayloadError)
        return "malformed" if malformed else "cut off"

    def reply(self) -> EngineReply:
        """Return the reply, of a connection that is never given back."""
        body = self.connection.body
        assert body is not None
        return EngineReply(self._head, body, self.content, self.connection, None, "http://engine")


class TappedLine(EngineLine):
    """The same with the fast path on it, and a client that takes all."""

    def __init__(
        self, *, chunked: bool = True, rewrite: Callable[[bytes], bytes] | None = None
    ) -> None:
        super().__init__()
        self._chunked, self._rewrite = chunked, rewrite
        self._seen = _Seen()
        self.client = _Wire()
        self.flow_control = BaseProtocol(asyncio.get_running_loop())
        self._flowing: asyncio.Task[None] | None = None

    @property
    def seen(self) -> bytes:
        """What the meter was shown."""
        return self._seen.body

    @property
    def is_flowing(self) -> bool:
        """Whether the fast path stands between the engine and its connection."""
        return self._wire.protocol is not self.connection

    async def begin(self, head: bytes = chunked_head(SSE)) -> None:
        """Take a head, and what came with it; then let the rest flow."""
        await super().begin(head)
        exchange = Exchange(
            request_id="1", method="POST", path="/", started_unix_s=0.0, accepted_at_s=0.0
        )
        exchange.meter = cast("Any", self._seen)
        self._fast_path = FastPath(
            self.reply(),
            self.client,
            self.flow_control,
            chunked=self._chunked,
            rewrite=self._rewrite,
            exchange=exchange,
            backlog=BacklogWatch(lambda: 0),
            room=BacklogRoom(self.client, MemoryBudget(0), exchange),
        )
        await self.flow()

    async def flow(self) -> None:
        """Take the fast path, as the relay's loop does."""
        self._flowing = asyncio.create_task(self._fast_path.flow())
        await asyncio.sleep(0)
