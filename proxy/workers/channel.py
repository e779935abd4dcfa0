"""Message channel between the observing process and a worker: one-way messages and requests.

Strategy: a socket pair, which no other process can reach, carries pickled lists of messages, each
with its length in front. Sending never blocks; whoever makes a request sets its time-out.
"""

import asyncio
import contextlib
import inspect
import itertools
import pickle  # between two processes of one program, over a socket that is theirs alone
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

MAX_UNREAD_BYTES = 32 * 1024 * 1024
"""Most that may wait for an end that does not read, for example a stopped process. Heuristic."""

FAR_BEHIND_BYTES = 24 * 1024 * 1024
"""With so much unread, replies wait for the other end (`wait_until_caught_up`). A short request
takes 1.5 KiB: some thousands of them may arrive faster than they can be observed. Heuristic."""

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
        self._unread = bytearray()
        self._unsent: list[Message] = []
        self._flushing: asyncio.Handle | None = None
        self._numbers = itertools.count()
        self._pending_answers: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None
        self.is_silent = False  # an answer did not come in time, and nothing came since
        self._has_caught_up = asyncio.Event()
        self._has_caught_up.set()
        self.ended = asyncio.get_running_loop().create_future()

    @property
    def is_full(self) -> bool:
        """Whether the other end is gone, or has so much unread that it seems stopped."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return True
        return transport.get_write_buffer_size() > MAX_UNREAD_BYTES

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
        """Wait while the other end is far behind, `timeout_s` at most."""
        if not self._has_caught_up.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._has_caught_up.wait()

    def close(self) -> None:
        """Send the pending messages, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(FAR_BEHIND_BYTES)

    def pause_writing(self) -> None:
        """Note that the other end is far behind."""
        self._has_caught_up.clear()

    def resume_writing(self) -> None:
        """Note that the other end has caught up."""
        self._has_caught_up.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Answer all pending requests with None: the other end is gone."""
        self._has_caught_up.set()
        for answer in list(self._pending_answers.values()):
            if not answer.done():
                answer.set_result(None)
        for task in self._answering:
            task.cancel()
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Handle the messages that are complete."""
        self.is_silent = False
        self._unread += data
        begin = 0
        while len(self._unread) - begin >= _LENGTH_BYTES:
            body = begin + _LENGTH_BYTES
            end = body + int.from_bytes(self._unread[begin:body], "big")
            if len(self._unread) < end:
                break
            for message in pickle.loads(self._unread[body:end]):  # noqa: S301 - see above
                self._dispatch(*message)
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
        """Send the pending messages now, as one write."""
        self._cancel_flush()
        messages, self._unsent = self._unsent, []
        if not messages or self._transport is None or self._transport.is_closing():
            return
        body = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
        self._transport.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)

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
        except Exception:  # noqa: BLE001 - as in _do
            self._failed(name)
        if number is not None:
            self._send((number, None, answer))
