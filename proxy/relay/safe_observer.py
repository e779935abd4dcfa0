"""A barrier for exceptions of the observer: they are counted, and the relay goes on."""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.ports import RequestObserver


class SafeObserver:
    """Wraps a `RequestObserver` so that its exceptions never reach the relay.

    A call that fails is counted and returns an empty result.
    """

    __slots__ = ("_watch",)

    def __init__(self, watch: RequestObserver) -> None:
        self._watch = watch

    def begin(self, exchange: Exchange) -> None:
        """See `RequestObserver`, as for all that follow."""
        try:
            self._watch.begin(exchange)
        except Exception:  # noqa: BLE001 - see the class
            self._count("begin")

    def sent(self, exchange: Exchange) -> None:
        """A request is about to go to its engine."""
        try:
            self._watch.sent(exchange)
        except Exception:  # noqa: BLE001
            self._count("sent")

    def note_prompt(self, exchange: Exchange, said: Mapping[str, Any], size_bytes: int) -> None:
        """Its prompt is this one."""
        try:
            self._watch.note_prompt(exchange, said, size_bytes)
        except Exception:  # noqa: BLE001
            self._count("prompt fingerprint")

    def arrived(self, exchange: Exchange) -> None:
        """The last byte of its reply has come."""
        try:
            self._watch.arrived(exchange)
        except Exception:  # noqa: BLE001
            self._count("arrived")

    def end(self, exchange: Exchange) -> None:
        """It is over."""
        try:
            self._watch.end(exchange)
        except Exception:  # noqa: BLE001
            self._count("end")

    async def stream_headers(self, exchange: Exchange) -> Mapping[str, str]:
        """Return what the head of a stream can say."""
        try:
            return await self._watch.stream_headers(exchange)
        except Exception:  # noqa: BLE001
            self._count("stream headers")
            return {}

    async def diagnosis_headers(self, exchange: Exchange) -> Mapping[str, str]:
        """Return what the head of a whole reply can say."""
        try:
            return await self._watch.diagnosis_headers(exchange)
        except Exception:  # noqa: BLE001
            self._count("diagnosis headers")
            return {}

    async def record_so_far(self, exchange: Exchange) -> dict[str, Any] | None:
        """Return the record of a stream that is about to end."""
        try:
            return await self._watch.record_so_far(exchange)
        except Exception:  # noqa: BLE001
            self._count("annotation")
            return None

    def _count(self, place: str) -> None:
        self._watch.failures[place] += 1
