"""Messages between the observing process and a worker: told, or asked with an answer.

Strategy: both ends of a socket pair, which nobody else can reach, carry pickles with their length
before them. Nothing here waits for the other side; whoever asks says how long it may take.
"""

import asyncio
import contextlib
import inspect
import itertools
import pickle  # between two processes of one program, over a socket that is theirs alone
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

MAX_UNREAD_BYTES = 32 * 1024 * 1024
"""What may wait for a side that does not read, as one that was stopped. Heuristic."""

FAR_BEHIND_BYTES = 24 * 1024 * 1024
"""From so much on, replies wait for the other side. A short request takes 1.5 KiB: some thousands
of them may come faster than they can be observed. Heuristic."""

GATHER_S = 0.005
"""What is told waits so long for company: each message on its own wakes the other side up, which
costs both more than the message. What is asked goes at once and takes along what waits.
Heuristic."""

_LENGTH_BYTES = 4

Message = tuple[int | None, str | None, Any]
"""The number of a question or its answer, what it is about (None: the answer), and what is said."""

Handlers = Mapping[str, Callable[..., Any]]


class Channel(asyncio.Protocol):
    """One end. `handlers` are called with what the other end tells, or asks.

    One that raises costs only its message: `failed` is given its name, and who asked gets None.
    """

    def __init__(self, handlers: Handlers, failed: Callable[[str], None]) -> None:
        self._handlers = handlers
        self._failed = failed
        self._unread = bytearray()
        self._unsent: list[Message] = []
        self._flushing: asyncio.Handle | None = None
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None
        self.is_silent = False  # an answer did not come in time, and nothing came since
        self._keeps_up = asyncio.Event()
        self._keeps_up.set()
        self.ended = asyncio.get_running_loop().create_future()

    @property
    def is_full(self) -> bool:
        """Return True if the other end is gone, or so much waits for it that it seems stopped."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return True
        return transport.get_write_buffer_size() > MAX_UNREAD_BYTES

    def tell(self, name: str, *arguments: Any) -> None:
        """Send a message within `GATHER_S`; nothing happens where the other end is gone."""
        self._send((None, name, arguments), at_once=False)

    def tell_at_once(self, name: str, *arguments: Any) -> None:
        """Send a message that others go by, with what waits."""
        self._send((None, name, arguments))

    def ask(self, name: str, *arguments: Any) -> asyncio.Future[Any]:
        """Send a question; its answer comes into the future, None where the other end is gone."""
        answer = asyncio.get_running_loop().create_future()
        if self.is_full:
            answer.set_result(None)
            return answer
        number = next(self._numbers)
        self._asked[number] = answer
        answer.add_done_callback(lambda _: self._asked.pop(number, None))
        self._send((number, name, arguments))
        return answer

    async def wait_for_answer(self, asked: asyncio.Future[Any], timeout_s: float) -> Any:
        """Return the answer to what was asked; None where it does not come in time."""
        await asyncio.wait((asked,), timeout=timeout_s)
        if asked.done():
            return asked.result()
        asked.cancel()
        self.is_silent = True
        return None

    async def caught_up(self, timeout_s: float) -> None:
        """Wait while the other side is far behind, so long at most."""
        if not self._keeps_up.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._keeps_up.wait()

    def close(self) -> None:
        """Send what waits, then end."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to speak."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(FAR_BEHIND_BYTES)

    def pause_writing(self) -> None:
        """The other side is far behind."""
        self._keeps_up.clear()

    def resume_writing(self) -> None:
        """The other side has caught up."""
        self._keeps_up.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end is gone: no question will be answered any more."""
        self._keeps_up.set()
        for answer in list(self._asked.values()):
            if not answer.done():
                answer.set_result(None)
        for task in self._answering:
            task.cancel()
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take the messages that are complete."""
        self.is_silent = False
        self._unread += data
        begin = 0
        while len(self._unread) - begin >= _LENGTH_BYTES:
            body = begin + _LENGTH_BYTES
            end = body + int.from_bytes(self._unread[begin:body], "big")
            if len(self._unread) < end:
                break
            for message in pickle.loads(self._unread[body:end]):  # noqa: S301 - see above
                self._take(*message)
            begin = end
        del self._unread[:begin]

    def _send(self, message: Message, *, at_once: bool = True) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._unsent.append(message)
        loop = asyncio.get_running_loop()
        if at_once:
            self._cancel_flush()
            self._flushing = loop.call_soon(self.flush)
        elif self._flushing is None:
            self._flushing = loop.call_later(GATHER_S, self.flush)

    def _cancel_flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None

    def flush(self) -> None:
        """Send now what waits, as one."""
        self._cancel_flush()
        messages, self._unsent = self._unsent, []
        if not messages or self._transport is None or self._transport.is_closing():
            return
        body = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
        self._transport.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)

    def _take(self, number: int | None, name: str | None, said: Any) -> None:
        if name is None:
            answer = self._asked.get(cast(int, number))
            if answer is not None and not answer.done():
                answer.set_result(said)
            return
        found = self._do(name, said)
        if inspect.isawaitable(found):
            task = asyncio.ensure_future(self._answer_later(number, name, found))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif number is not None:
            self._send((number, None, found))

    def _do(self, name: str, said: tuple[Any, ...]) -> Any:
        try:
            return self._handlers[name](*said)
        except Exception:  # noqa: BLE001 - it costs what it was about, and nothing else
            self._failed(name)
            return None

    async def _answer_later(self, number: int | None, name: str, found: Awaitable[Any]) -> None:
        answer = None
        try:
            answer = await found
        except Exception:  # noqa: BLE001 - as in _do
            self._failed(name)
        if number is not None:
            self._send((number, None, answer))
