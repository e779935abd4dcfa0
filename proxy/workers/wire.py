"""Messages between the processes as plain values: an exchange, its progress, an engine."""

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.interfaces import EngineRef
from slowtok.proxy.relay.settings import RelaySettings
from slowtok.proxy.stream.apis import Api, find_api
from slowtok.proxy.stream.meter import Meter

_HANG_UP = getattr(signal, "SIGHUP", None)  # Windows has none
STOP_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    *([_HANG_UP] if _HANG_UP and signal.getsignal(_HANG_UP) is not signal.SIG_IGN else []),
)
"""The signals that ask for an orderly end. A closed terminal does, too, except under nohup."""

PASSED_ON = signal.SIGTERM if sys.platform == "win32" else signal.SIGUSR1
"""What the first worker sends to its child for each of `STOP_SIGNALS` that it gets: those may come
to the child as well, from a terminal or a service manager, and would count twice."""

HEARTBEAT_S = 0.25
"""Between two words of a worker on how far its requests are. Heuristic."""

# found again by the path, made in the observing process, or counted by each worker
_KEPT_APART = (
    "api",
    "run",
    "prompt",
    "prefix",
    "parts",
    "repeat",
    "slot",
    "prompt_estimate",
    "held_bytes",
    "awaits_load",
)
_FIELDS = tuple(f.name for f in fields(Exchange) if f.name not in _KEPT_APART)

Packed = tuple[Any, ...]


class Progress(NamedTuple):
    """How far one request is; `recent_tps` as `Meter` has it."""

    request_id: str
    status: int | None
    stream: bool
    headers_at_s: float | None
    first_at_s: float | None
    last_at_s: float | None
    token_events: int
    recent_tps: float | None


class Heartbeat(NamedTuple):
    """What a worker tells every `HEARTBEAT_S`: its requests, and how it fares itself."""

    progress: list[Progress]
    failures: Mapping[str, int]
    refused: int
    loop_lag: Mapping[str, float | None]
    held: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEngine:
    """An engine as a worker knows it."""

    name: str
    url: str
    kind: str
    sleeping: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteDirectory:
    """What a worker knows of the engines by itself. `only`: the one there is, while it answers."""

    several: bool = False
    searched_at: str = ""
    only: RemoteEngine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """All that a new worker is told; the observing process serves its own pages at `pages_path`."""

    settings: RelaySettings
    pages_path: str


class RemoteMeter(Meter):
    """A reply's meter that another process feeds: it is told what that one has counted."""

    def __init__(self, api: Api) -> None:
        super().__init__(api, "")
        self._recent_tps: float | None = None

    def note(self, progress: Progress) -> None:
        """Take note of how far the reply is."""
        self.first_at_s, self.last_at_s = progress.first_at_s, progress.last_at_s
        self.token_events = progress.token_events
        self._recent_tps = progress.recent_tps

    def recent_tps(self, now_s: float) -> float | None:
        """Return the rate as it was told last, at most `HEARTBEAT_S` ago."""
        return self._recent_tps


def packed(exchange: Exchange) -> Packed:
    """Return an exchange as it goes to the observing process."""
    return tuple(getattr(exchange, name) for name in _FIELDS)


def unpacked(values: Packed) -> Exchange:
    """Return the exchange that was packed, without its prompt's fingerprint."""
    given = dict(zip(_FIELDS, values, strict=True))
    return Exchange(**given, api=find_api(given["method"], given["path"]))


def update(copy: Exchange, values: Packed) -> None:
    """Bring a copy up to date; what the observing process added to it stays."""
    for name, value in zip(_FIELDS, values, strict=True):
        setattr(copy, name, value)


def progress_of(exchange: Exchange, now_s: float) -> Progress:
    """Return how far an exchange is."""
    meter = exchange.meter
    return Progress(
        exchange.request_id,
        exchange.status,
        exchange.stream,
        exchange.headers_at_s,
        meter.first_at_s if meter else None,
        meter.last_at_s if meter else None,
        meter.token_events if meter else 0,
        meter.recent_tps(now_s) if meter else None,
    )


def place_of(engine: EngineRef) -> RemoteEngine:
    """Return what a worker is told of an engine."""
    return RemoteEngine(
        name=engine.name, url=engine.url, kind=engine.kind, sleeping=engine.sleeping
    )
