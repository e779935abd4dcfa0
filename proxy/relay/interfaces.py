"""The relay's two interfaces: engines to ask, and an observer to tell.

In one process `Engines` and `Observer` are these. In a worker their stand-ins are, which ask the
observing process (workers/remote.py). The relay tells its observer through `SafeObserver`.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from slowtok.proxy.relay.exchange import Exchange

T = TypeVar("T")


class EngineRef(Protocol):
    """An engine, as far as a request has to know it."""

    @property
    def name(self) -> str:
        """What the user calls it, or where it is."""
        ...

    @property
    def url(self) -> str:
        """Where it is asked."""
        ...

    @property
    def kind(self) -> str:
        """Which engine it is, "unknown" until it said so."""
        ...

    @property
    def sleeping(self) -> bool | None:
        """Return True if it has unloaded its model; None where it does not tell."""
        ...


class EngineDirectory(Protocol):
    """Says which engine a request goes to."""

    @property
    def several(self) -> bool:
        """Return True if there are several engines to choose from."""
        ...

    @property
    def searched_at(self) -> str:
        """Where engines were looked for, for messages."""
        ...

    async def choose(
        self, model: str | None, path: str, keys: Mapping[str, str]
    ) -> EngineRef | None:
        """Return the engine for a request, None where there is none."""
        ...

    async def merged_list(
        self, method: str, path: str, keys: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        """Return the list of models of several engines; None where the request is for one."""
        ...

    def lose(self, name: str) -> None:
        """Take note that the engine of that name refused a request."""
        ...


class RequestObserver(Protocol):
    """Is told of each step of an exchange, and asked what to say of it.

    `failures` counts what broke, by its place. What is awaited must not take long: the
    client waits, too.
    """

    failures: Counter[str]

    def begin(self, exchange: Exchange) -> None:
        """Note that a request has arrived."""
        ...

    def sent(self, exchange: Exchange) -> None:
        """Note that a request is about to go to its engine."""
        ...

    def note_prompt(self, exchange: Exchange, payload: Mapping[str, Any], size_bytes: int) -> None:
        """Compare the prompt with earlier ones, later and never in the stream's way."""
        ...

    def arrived(self, exchange: Exchange) -> None:
        """Note that the last byte of a reply has come from its engine."""
        ...

    def end(self, exchange: Exchange) -> None:
        """Note that a request is over, however it ended."""
        ...

    async def stream_headers(self, exchange: Exchange) -> dict[str, str]:
        """Return what the head of a stream can say."""
        ...

    async def diagnosis_headers(self, exchange: Exchange) -> dict[str, str]:
        """Diagnose a reply that is here as a whole, and return its headers.

        Waits shortly for the counters of an engine that puts no timings into its replies.
        """
        ...

    async def record_so_far(self, exchange: Exchange) -> dict[str, Any] | None:
        """Return the record of a stream whose last token is here; None where none can be made."""
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
        """Note the prompt of a request."""
        note = self._observer.note_prompt
        self._notify("prompt fingerprint", note, exchange, payload, size_bytes)

    def arrived(self, exchange: Exchange) -> None:
        """Note that the last byte of a reply has come."""
        self._notify("arrived", self._observer.arrived, exchange)

    def end(self, exchange: Exchange) -> None:
        """Note that a request is over."""
        self._notify("end", self._observer.end, exchange)

    async def stream_headers(self, exchange: Exchange) -> Mapping[str, str]:
        """Return what the head of a stream can say."""
        return await self._ask("stream headers", self._observer.stream_headers, exchange) or {}

    async def diagnosis_headers(self, exchange: Exchange) -> Mapping[str, str]:
        """Return what the head of a whole reply can say."""
        ask = self._observer.diagnosis_headers
        return await self._ask("diagnosis headers", ask, exchange) or {}

    async def record_so_far(self, exchange: Exchange) -> dict[str, Any] | None:
        """Return the record of a stream that is about to end."""
        return await self._ask("annotation", self._observer.record_so_far, exchange)

    def _notify(self, place: str, notify: Callable[..., None], *noted: Any) -> None:
        try:
            notify(*noted)
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
