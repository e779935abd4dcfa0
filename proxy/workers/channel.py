"""Message channel between the observing process and a worker: one-way messages and requests.

Strategy: a socket pair, which no other process can reach, carries pickled lists of messages, each
with its length in front. Sending never blocks; whoever makes a request sets its time-out.
"""

import asyncio
import inspect
import itertools
import math
import pickle  # between two processes of one program, over a socket that is theirs alone
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

MAX_UNREAD_BYTES = 32 * 1024 * 1024
"""Most that may wait for an end that does not read, for example a stopped process. Heuristic."""

FAR_BEHIND_BYTES = 24 * 1024 * 1024
"""With so much unread, replies wait for the other end (`wait_until_caught_up`). A short request
with a short prompt takes 1.5 KiB, one with hundreds of messages 50 KiB: some thousands of them may
arrive faster than they can be observed. Heuristic."""

CAUGHT_UP_BYTES = FAR_BEHIND_BYTES - 1024 * 1024
"""With so much unread, replies wait no longer. Heuristic."""

TURN_S = 0.02
"""Most time that one turn of the event loop spends on messages, so that whatever else the loop
carries goes on beside a burst of them. With less, records would be made while replies wait for
their diagnosis. Heuristic."""

READ_AHEAD_BYTES = 64 * 1024
"""With so much read and not handled yet, no more is read: it waits at the other end, which counts
it. Heuristic."""

GATHER_S = 0.005
"""One-way messages are collected for so long and sent together, because waking the other process
for each one would cost both more than the message. A request is sent at once, with all that is
pending. Heuristic."""

_LENGTH_BYTES = 4

Message = tuple[int | None, str | None, Any]
"""Number of a request or its answer (None: one-way), handler name (None: an answer), payload."""

Handlers = Mapping[str, Callable[..., Any]]


class Channel(asyncio.Protocol):
    """One end of the channel. `handlers` are called by name for the messages of the other end.

    A handler that raises costs only its message: `failed` is called with the name, and a request is
    answered with None.
    """

    def __init__(self, handlers: Handlers, failed: Callable[[str], None]) -> None:
        self._handlers = handlers
        self._failed = failed
        self._unread = bytearray()  # received, and not unpacked yet
        self._unhandled: deque[Message] = deque()
        self._handling: asyncio.Handle | None = None
        self._unsent: list[Message] = []
        self._flushing: asyncio.Handle | None = None
        self._numbers = itertools.count()
        self._pending_answers: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None
        self.is_silent = False  # an answer did not come in time, and nothing came since
        self._has_caught_up = asyncio.Event()
        self._has_caught_up.set()
        self._written_bytes = 0
        self._stuck_at_bytes = -1  # how much had been taken when a wait for more was given up
        self.ended = asyncio.get_running_loop().create_future()

    @property
    def is_full(self) -> bool:
        """Whether the other end is gone, or has so much unread that it seems stopped."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return True
        return transport.get_write_buffer_size() > MAX_UNREAD_BYTES

    @property
    def is_responsive(self) -> bool:
        """Whether a request would probably be answered in time."""
        return not (self.is_silent or self.is_full)

    def tell(self, name: str, *arguments: Any) -> None:
        """Send a one-way message within `GATHER_S`; dropped if the other end is gone."""
        self._send((None, name, arguments), at_once=False)

    def tell_at_once(self, name: str, *arguments: Any) -> None:
        """Send a one-way message, and all pending ones, at once: other processes rely on it."""
        self._send((None, name, arguments))

    def ask(self, name: str, *arguments: Any) -> asyncio.Future[Any]:
        """Send a request; the future gets its answer, or None if the other end is gone."""
        answer = asyncio.get_running_loop().create_future()
        if self.is_full:
            answer.set_result(None)
            return answer
        number = next(self._numbers)
        self._pending_answers[number] = answer
        answer.add_done_callback(lambda _: self._pending_answers.pop(number, None))
        self._send((number, name, arguments))
        return answer

    async def wait_for_answer(self, answer: asyncio.Future[Any], timeout_s: float) -> Any:
        """Return the answer to a request; None if it does not arrive in time."""
        await asyncio.wait((answer,), timeout=timeout_s)
        if answer.done():
            return answer.result()
        answer.cancel()
        self.is_silent = True
        return None

    async def wait_until_caught_up(self, timeout_s: float) -> None:
        """Wait while the other end is far behind, `timeout_s` at most.

        Not for one that seems stopped: it has taken nothing since such a wait was given up.
        """
        if self._has_caught_up.is_set() or self._taken_bytes() == self._stuck_at_bytes:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_caught_up.wait()
        except TimeoutError:
            self._stuck_at_bytes = self._taken_bytes()

    def close(self) -> None:
        """Send the pending messages, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(FAR_BEHIND_BYTES, CAUGHT_UP_BYTES)

    def pause_writing(self) -> None:
        """Note that the other end is far behind."""
        self._has_caught_up.clear()

    def resume_writing(self) -> None:
        """Note that the other end has caught up."""
        self._has_caught_up.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle what is still here, and answer all pending requests with None."""
        self._handle_until(math.inf)
        self._has_caught_up.set()
        for answer in list(self._pending_answers.values()):
            if not answer.done():
                answer.set_result(None)
        for task in self._answering:
            task.cancel()
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Handle the messages that are complete, in this turn of the loop or the next ones."""
        self.is_silent = False
        self._unread += data
        if self._handling is None:
            self._handle_some()

    def _handle_some(self) -> None:
        """Handle messages for `TURN_S`, and go on in the next turn if there are more."""
        self._handling = None
        if not self._handle_until(time.monotonic() + TURN_S):
            self._handling = asyncio.get_running_loop().call_soon(self._handle_some)
        self._limit_reading()

    def _handle_until(self, until_s: float) -> bool:
        """Handle messages until this time; return True if all that are complete are handled."""
        while self._unhandled or self._unpack():
            self._dispatch(*self._unhandled.popleft())
            if time.monotonic() >= until_s:
                return False
        return True

    def _unpack(self) -> bool:
        """Take the next list of messages apart; return False if none is complete."""
        end = _LENGTH_BYTES + int.from_bytes(self._unread[:_LENGTH_BYTES], "big")
        if len(self._unread) < end:
            return False
        self._unhandled.extend(pickle.loads(self._unread[_LENGTH_BYTES:end]))  # noqa: S301 - above
        del self._unread[:end]
        return True

    def _limit_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._handling is not None and len(self._unread) > READ_AHEAD_BYTES:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _taken_bytes(self) -> int:
        """Return how much the other end, or the kernel, has taken of what was written."""
        unsent = self._transport.get_write_buffer_size() if self._transport else 0
        return self._written_bytes - unsent

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
        """Send the pending messages now, as one write."""
        self._cancel_flush()
        messages, self._unsent = self._unsent, []
        if not messages or self._transport is None or self._transport.is_closing():
            return
        body = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
        self._transport.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
        self._written_bytes += _LENGTH_BYTES + len(body)

    def _dispatch(self, number: int | None, name: str | None, payload: Any) -> None:
        if name is None:
            answer = self._pending_answers.get(cast(int, number))
            if answer is not None and not answer.done():
                answer.set_result(payload)
            return
        result = self._call_handler(name, payload)
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(self._answer_later(number, name, result))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif number is not None:
            self._send((number, None, result))

    def _call_handler(self, name: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return self._handlers[name](*arguments)
        except Exception:  # noqa: BLE001 - it costs what it was about, and nothing else
            self._failed(name)
            return None

    async def _answer_later(self, number: int | None, name: str, result: Awaitable[Any]) -> None:
        answer = None
        try:
            answer = await result
        except Exception:  # noqa: BLE001 - as in _call_handler
            self._failed(name)
        if number is not None:
            self._send((number, None, answer))
