"""The messages between the processes as plain values: an exchange, its progress, an engine."""

import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from slowtok.proxy.outputs.previous_verdicts import EndedVerdict
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
"""The signal that the first worker sends to its child for each of `STOP_SIGNALS` that it gets.
Those themselves may reach the child, too (from a terminal), and would count twice.
"""

HEARTBEAT_S = 0.25
"""Interval of a worker's reports on the progress of its requests. Heuristic."""

# Fields of an exchange by the step at which the relay sets them: each group is sent at its step.
AT_BEGIN = ("request_id", "method", "path", "started_unix_s", "accepted_at_s", "annotate")
AT_SENDING = (
    "model",
    "stream",
    "max_tokens",
    "caller_id",
    "traceparent",
    "began_trace",
    "clues",
    "engine_name",
    "asked_for_usage",
    "assembling",
    "was_unloaded",
    "sent_at_s",
    "proxy_s",
)
AT_END = (
    "stream",
    "assembling",
    "sent_at_s",
    "meter",
    "status",
    "ended",
    "headers_at_s",
    "last_chunk_at_s",
    "last_byte_at_s",
    "delivered_at_s",
    "ended_at_s",
    "client_blocked_s",
    "proxy_s",
    "loop_lag_s",
    "observer_errors",
    "judged_against",
)
KEPT_APART = (
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
"""Fields that are not sent: derived from the path, set by the observer, or counted per worker."""

Packed = tuple[Any, ...]

Diagnosed = tuple[dict[str, str], EndedVerdict | None]
"""A whole reply's headers, and its verdict for the head of the next reply."""

packed_begin = attrgetter(*AT_BEGIN)
packed_sending = attrgetter(*AT_SENDING)
packed_end = attrgetter(*AT_END)


class Progress(NamedTuple):
    """The progress of one request; `recent_tps` as in `Meter`."""

    request_id: str
    status: int | None
    stream: bool
    headers_at_s: float | None
    first_at_s: float | None
    last_at_s: float | None
    token_events: int
    recent_tps: float | None


class Heartbeat(NamedTuple):
    """A worker's report every `HEARTBEAT_S`: progress of its requests, and its own state."""

    progress: list[Progress]
    failures: Mapping[str, int]
    refused: int
    loop_lag: Mapping[str, float | None]
    held: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEngine:
    """An engine, as much as a worker knows about it."""

    name: str
    url: str
    kind: str
    sleeping: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteDirectory:
    """A worker's copy of the engine directory.

    `only` is a single engine, while it answers; `first` gets what no engine is known to serve.
    """

    several: bool = False
    searched_at: str = ""
    only: RemoteEngine | None = None
    first: RemoteEngine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The first message to a new worker; the observing process serves own pages at `pages_path`."""

    settings: RelaySettings
    pages_path: str


class RemoteMeter(Meter):
    """The meter of a reply that another process counts; it holds what was reported last."""

    def __init__(self, api: Api) -> None:
        super().__init__(api, "")
        self._recent_tps: float | None = None

    def note(self, progress: Progress) -> None:
        """Store the reported progress."""
        self.first_at_s, self.last_at_s = progress.first_at_s, progress.last_at_s
        self.token_events = progress.token_events
        self._recent_tps = progress.recent_tps

    def recent_tps(self, now_s: float) -> float | None:
        """Return the rate in the last report, which is at most `HEARTBEAT_S` old."""
        return self._recent_tps


def begun(values: Packed) -> Exchange:
    """Return the copy of an exchange that has begun."""
    fields = dict(zip(AT_BEGIN, values, strict=True))
    return Exchange(**fields, api=find_api(fields["method"], fields["path"]))


def update(copy: Exchange, names: Iterable[str], values: Packed) -> None:
    """Set these fields of a copy."""
    for name, value in zip(names, values, strict=True):
        setattr(copy, name, value)


def progress_of(exchange: Exchange, now_s: float) -> Progress:
    """Return the progress of an exchange."""
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


def as_remote_engine(engine: EngineRef) -> RemoteEngine:
    """Return an engine as it is sent to a worker."""
    return RemoteEngine(
        name=engine.name, url=engine.url, kind=engine.kind, sleeping=engine.sleeping
    )
