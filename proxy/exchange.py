"""One request on its way through: what is noted while it passes, and the `Timeline` made of it.

The relay writes the times, the meter the tokens; nobody reads before the end but the live views.
"""

from dataclasses import dataclass, replace

from slowtok.detectors.case import PromptPrefix, Timeline
from slowtok.proxy.stream.annotate import Mode
from slowtok.proxy.stream.apis import Api
from slowtok.proxy.stream.call import PromptPrint
from slowtok.proxy.stream.meter import Meter

_CUT_SHORT = frozenset(
    {"client-gone", "upstream-error", "upstream-refused", "timeout", "overloaded", "proxy-stopped"}
)


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request and its reply. Times are on the monotonic clock, see `Timeline`."""

    request_id: str
    method: str
    path: str
    started_unix_s: float
    accepted_at_s: float
    api: Api | None = None
    model: str | None = None
    stream: bool = False
    engine_name: str | None = None
    caller_id: str | None = None  # x-request-id: the client's own, else ours
    traceparent: str | None = None  # as the engine gets it
    began_trace: bool = False  # the client sent no traceparent: it is ours
    slept: bool | None = None  # the engine had put its model away when the request went to it
    prompt: PromptPrint | None = None
    asked_for_usage: bool = False
    annotate: Mode | None = None  # put the record into the stream
    assembling: bool = False  # a stream was asked for in place of a whole reply
    meter: Meter | None = None
    observer_errors: int = 0
    status: int | None = None
    ended: str | None = None
    sent_at_s: float | None = None
    headers_at_s: float | None = None
    last_byte_at_s: float | None = None
    delivered_at_s: float | None = None
    ended_at_s: float | None = None
    prefix: PromptPrefix | None = None
    seen_at_s: float | None = None  # the last bytes that went to the client
    client_blocked_s: float = 0.0
    proxy_s: float = 0.0

    def observe(self, chunk: bytes, at_s: float) -> None:
        """Show the meter a chunk that has gone to the client; a meter that breaks is put aside."""
        self.seen_at_s = at_s
        if self.meter is None:
            return
        try:
            self.meter.feed(chunk, at_s)
        except Exception:  # noqa: BLE001 - whatever breaks in observing, the stream goes on
            self.observer_errors += 1
            self.meter = None

    def end(self, ended: str | None, at_s: float) -> None:
        """Close the books: the first word on how it ended stands."""
        if self.ended_at_s is not None:
            return
        self.ended = ended
        self.ended_at_s = at_s
        if self.meter is None:
            return
        if ended == "client-gone" and self.meter.is_complete:
            # Many clients hang up at [DONE], before the engine's last, empty chunk is here.
            self.ended = None
            self.last_byte_at_s = self.last_byte_at_s or self.seen_at_s
        try:
            self.meter.finish(at_s)
        except Exception:  # noqa: BLE001 - as in observe
            self.observer_errors += 1
            self.meter = None

    def timeline(self) -> Timeline:
        """Return what happened, for the case."""
        plain = Timeline(
            request_id=self.request_id,
            path=self.path,
            model=self.model,
            stream=self.stream,
            status=self.status,
            ended=self.ended or self._plain_ending(),
            started_unix_s=self.started_unix_s,
            accepted_at_s=self.accepted_at_s,
            sent_at_s=self.sent_at_s,
            headers_at_s=self.headers_at_s,
            last_byte_at_s=self.last_byte_at_s,
            delivered_at_s=self.delivered_at_s,
            ended_at_s=self.ended_at_s,
            client_blocked_s=self.client_blocked_s,
            proxy_s=self.proxy_s,
            parse_errors=self.observer_errors,
        )
        return plain if self.meter is None else _with_meter(plain, self.meter)

    def _plain_ending(self) -> str:
        """Say how a request ended whose reply is not looked into."""
        if self.status is not None and self.status >= 400:
            return "http-error"
        return "unknown" if self.last_byte_at_s is None else "complete"


def _with_meter(timeline: Timeline, meter: Meter) -> Timeline:
    reply = meter.reply
    gaps_s = meter.gaps_s()
    return replace(
        timeline,
        model=timeline.model or reply.model,
        ended=_ending(timeline, meter),
        first_token_at_s=meter.first_at_s if timeline.stream else None,
        last_token_at_s=meter.last_at_s if timeline.stream else None,
        token_at_s=meter.token_at_s if timeline.stream else (),
        itl_p50_s=_percentile(gaps_s, 0.50),
        itl_p99_s=_percentile(gaps_s, 0.99),
        tokens=reply.tokens(),
        engine=reply.engine(),
        parse_errors=timeline.parse_errors + meter.parse_errors,
    )


def _ending(timeline: Timeline, meter: Meter) -> str:
    """Say how it ended: cut short, else the engine's reason; no reason at all is an error."""
    if timeline.ended in _CUT_SHORT:
        return timeline.ended
    if timeline.status is not None and timeline.status >= 400:
        return "http-error"
    if meter.reply.failed:
        return "upstream-error"
    return meter.reply.finish or ("upstream-error" if timeline.stream else timeline.ended)


def _percentile(ordered: list[float], share: float) -> float | None:
    if len(ordered) < 2:
        return None
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
