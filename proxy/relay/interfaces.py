"""The relay's two collaborators as protocols: `EngineDirectory` and `RequestObserver`.

In a single process they are `Engines` and `Observer`. In a worker process they are proxies that
send messages to the observing process (workers/remote.py). The relay calls its observer through
`SafeObserver`, so that observing never harms a request.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from slowtok.proxy.relay.exchange import Exchange

T = TypeVar("T")


class EngineRef(Protocol):
    """An inference engine, as much as the relay needs to know about it."""

    @property
    def name(self) -> str:
        """The name that the user gave to the engine, or its address."""
        ...

    @property
    def url(self) -> str:
        """The base URL of the engine."""
        ...

    @property
    def kind(self) -> str:
        """The kind of engine, such as "llama-server"; "unknown" until it has been identified."""
        ...

    @property
    def sleeping(self) -> bool | None:
        """Whether the engine has unloaded its model; None if it does not report that."""
        ...


class EngineDirectory(Protocol):
    """Chooses the engine for each request."""

    @property
    def several(self) -> bool:
        """Whether there are several engines to choose from."""
        ...

    @property
    def searched_at(self) -> str:
        """The addresses where engines were searched, for error messages."""
        ...

    async def choose(
        self, model: str | None, path: str, keys: Mapping[str, str]
    ) -> EngineRef | None:
        """Return the engine for a request; None if there is none.

        `keys` are the client's authentication fields, for asking engines that require them.
        """
        ...

    async def merged_list(
        self, method: str, path: str, keys: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        """Return the merged model list of several engines; None if one engine gets the request."""
        ...

    def lose(self, name: str) -> None:
        """Note that the engine with that name refused a connection."""
        ...


class RequestObserver(Protocol):
    """Receives each step of an exchange, and supplies headers and records about it.

    `failures` counts exceptions by the place where they occurred. A coroutine must return soon,
    because the client waits for it.
    """

    failures: Counter[str]

    def begin(self, exchange: Exchange) -> None:
        """Note that a request has arrived."""
        ...

    def sent(self, exchange: Exchange) -> None:
        """Note that a request is about to go to its engine."""
        ...

    def note_prompt(self, exchange: Exchange, payload: Mapping[str, Any], size_bytes: int) -> None:
        """Compare the prompt with earlier ones; done later, so that the stream is not delayed."""
        ...

    def arrived(self, exchange: Exchange) -> None:
        """Note that the last byte of a reply has arrived from its engine."""
        ...

    def end(self, exchange: Exchange) -> None:
        """Note that a request is over, in whatever way it ended."""
        ...

    async def stream_headers(self, exchange: Exchange) -> dict[str, str]:
        """Return the slowtok headers of a stream, which are sent before its first token."""
        ...

    async def diagnosis_headers(self, exchange: Exchange) -> dict[str, str]:
        """Diagnose a complete reply and return its headers.

        Waits shortly for the counters of an engine that puts no timings into its replies.
        """
        ...

    async def record_so_far(self, exchange: Exchange) -> dict[str, Any] | None:
        """Return the record of a stream after its last token; None if it cannot be made."""
        ...


class SafeObserver:
    """Wraps a `RequestObserver` so that its exceptions never reach the relay.

    A call that fails is counted and returns an empty result.
    """

    __slots__ = ("_observer",)

    def __init__(self, observer: RequestObserver) -> None:
        self._observer = observer

    def begin(self, exchange: Exchange) -> None:
        """Note that a request has arrived."""
        self._notify("begin", self._observer.begin, exchange)

    def sent(self, exchange: Exchange) -> None:
        """Note that a request is about to go to its engine."""
        self._notify("sent", self._observer.sent, exchange)

    def note_prompt(self, exchange: Exchange, payload: Mapping[str, Any], size_bytes: int) -> None:
        """Compare the prompt of a request with earlier ones, later."""
        note = self._observer.note_prompt
        self._notify("prompt fingerprint", note, exchange, payload, size_bytes)

    def arrived(self, exchange: Exchange) -> None:
        """Note that the last byte of a reply has arrived from its engine."""
        self._notify("arrived", self._observer.arrived, exchange)

    def end(self, exchange: Exchange) -> None:
        """Note that a request is over."""
        self._notify("end", self._observer.end, exchange)

    async def stream_headers(self, exchange: Exchange) -> Mapping[str, str]:
        """Return the slowtok headers of a stream."""
        return await self._ask("stream headers", self._observer.stream_headers, exchange) or {}

    async def diagnosis_headers(self, exchange: Exchange) -> Mapping[str, str]:
        """Return the slowtok headers of a complete reply, with its diagnosis."""
        ask = self._observer.diagnosis_headers
        return await self._ask("diagnosis headers", ask, exchange) or {}

    async def record_so_far(self, exchange: Exchange) -> dict[str, Any] | None:
        """Return the record of a stream that is about to end."""
        return await self._ask("annotation", self._observer.record_so_far, exchange)

    def _notify(self, place: str, notify: Callable[..., None], *arguments: Any) -> None:
        try:
            notify(*arguments)
        except Exception:  # noqa: BLE001 - see the class
            self._observer.failures[place] += 1

    async def _ask(
        self, place: str, ask: Callable[[Exchange], Awaitable[T]], exchange: Exchange
    ) -> T | None:
        try:
            return await ask(exchange)
        except Exception:  # noqa: BLE001 - see the class
            self._observer.failures[place] += 1
            return None
