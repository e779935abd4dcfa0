"""One request in flight: what is recorded while it passes, and the `Timeline` built from it.

The relay records the times, the meter the tokens. Before the end, only the live views read it.
"""

from dataclasses import dataclass, replace

from slowtok.detectors.case.case import (
    Baseline,
    Envelope,
    PromptParts,
    PromptPrefix,
    Repeat,
    Timeline,
    Tokens,
)
from slowtok.detectors.case.ending import CUT_SHORT
from slowtok.proxy.engines.counters.slots import WorkingSlot
from slowtok.proxy.http.run_clues import Clues
from slowtok.proxy.runs.run_register import RunPosition
from slowtok.proxy.stream.annotate import Mode
from slowtok.proxy.stream.apis import Api
from slowtok.proxy.stream.meter import Meter
from slowtok.proxy.stream.prompt_fingerprint import PromptFingerprint
from slowtok.proxy.stream.reply import Reply

NO_TOKENS = Tokens()  # of a reply that was not looked into


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotProgress:
    """Progress of a request's slot, as reported by the engine.

    `begin_s` is when prefill began, as far as known. `read_at_s` is when prefill was last seen to
    have advanced, in the `steps`th step; `decoded_at_s` is the same for decode, of which
    `first_tokens` tokens were there at `first_at_s`.
    """

    slot: WorkingSlot
    begin_s: float
    read_at_s: float
    steps: int = 0
    first_at_s: float | None = None
    first_tokens: int = 0
    decoded_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The request has no slot yet: all `slots` of the engine work for other requests."""

    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEstimate:
    """Estimated prompt length in tokens, from earlier requests of the model.

    `new_tokens` excludes the prefix shared with an earlier prompt, which may come from the prompt
    cache. `tps` is the rate of the model's last prefill, if one was long enough.
    """

    tokens: int
    new_tokens: int
    tps: float | None


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request and its reply. Times are on the monotonic clock, see `Timeline`."""

    # What the client sent.
    request_id: str
    method: str
    path: str
    started_unix_s: float
    accepted_at_s: float
    api: Api | None = None
    model: str | None = None
    stream: bool = False
    max_tokens: int | None = None  # of its answer, as far as the client set a limit
    caller_id: str | None = None  # x-request-id: the client's own, else ours
    traceparent: str | None = None  # as the engine gets it
    began_trace: bool = False  # the client sent no traceparent: it is ours
    clues: Clues | None = None  # what it says of its run and its client

    # What the relay does with it.
    engine_name: str | None = None
    asked_for_usage: bool = False
    annotate: Mode | None = None  # put the record into the stream
    assembling: bool = False  # a stream was asked for in place of a whole reply
    held_bytes: int = 0  # of its body and its whole reply, in memory: see memory_budget.py
    was_unloaded: bool | None = None  # the engine's model, when the request went to it

    # The reply, and when what happened.
    meter: Meter | None = None
    status: int | None = None
    ended: str | None = None
    sent_at_s: float | None = None
    headers_at_s: float | None = None
    last_chunk_at_s: float | None = None  # the last bytes that went to the client
    last_byte_at_s: float | None = None
    delivered_at_s: float | None = None
    ended_at_s: float | None = None
    client_blocked_s: float = 0.0
    proxy_s: float = 0.0
    loop_lag_s: float | None = None  # of the worker that relayed it; else the proxy's own is asked
    observer_errors: int = 0
    judged_against: tuple[Envelope, Baseline] | None = None  # by the worker, in its header

    # What the observer finds out meanwhile.
    awaits_load: bool | None = None  # another program has to load the model first
    run: RunPosition | None = None
    prompt: PromptFingerprint | None = None
    parts: PromptParts | None = None
    prefix: PromptPrefix | None = None
    repeat: Repeat | None = None
    prompt_estimate: PromptEstimate | None = None
    slot: SlotProgress | Queued | None = None  # by the engine's word, while it is at work

    def observe(self, chunk: bytes, at_s: float) -> None:
        """Feed the meter a chunk that was passed to the client; a meter that raises is dropped."""
        self.last_chunk_at_s = at_s
        if self.meter is None:
            return
        try:
            self.meter.feed(chunk, at_s)
        except Exception:  # noqa: BLE001 - whatever breaks in observing, the stream goes on
            self.observer_errors += 1
            self.meter = None

    def end(self, ended: str | None, at_s: float) -> None:
        """Record how and when the request ended; only the first call counts.

        A client that hangs up after a complete answer has not broken it off.
        """
        if self.ended_at_s is not None:
            return
        self.ended = ended
        self.ended_at_s = at_s
        if self.meter is None:
            return
        if ended == "client-gone" and self.meter.is_complete:
            # Many clients hang up at [DONE], before the engine's last, empty chunk is here.
            self.ended = None
            self.last_byte_at_s = self.last_byte_at_s or self.last_chunk_at_s
        try:
            self.meter.finish(at_s)
        except Exception:  # noqa: BLE001 - as in observe
            self.observer_errors += 1
            self.meter = None

    def timeline(self, loop_lag_s: float | None = None) -> Timeline:
        """Return the `Timeline` of the request, for the case."""
        meter = self.meter
        reply = meter.reply if meter else None
        arrivals = meter if self.stream else None
        gaps_s = arrivals.gaps_s() if arrivals else []
        return Timeline(
            request_id=self.request_id,
            path=self.path,
            model=self.model or (reply.model if reply else None),
            stream=self.stream,
            status=self.status,
            ended=self._ending(reply) if reply else self.ended or self._ending_by_status(),
            started_unix_s=self.started_unix_s,
            accepted_at_s=self.accepted_at_s,
            sent_at_s=self.sent_at_s,
            headers_at_s=self.headers_at_s,
            first_token_at_s=arrivals.first_at_s if arrivals else None,
            last_token_at_s=arrivals.last_at_s if arrivals else None,
            last_byte_at_s=self.last_byte_at_s,
            delivered_at_s=self.delivered_at_s,
            ended_at_s=self.ended_at_s,
            token_at_s=arrivals.token_at_s if arrivals else (),
            itl_p50_s=_percentile(gaps_s, 0.50),
            itl_p99_s=_percentile(gaps_s, 0.99),
            tokens=_tokens(meter) if meter else NO_TOKENS,
            engine=reply.engine() if reply else None,
            client_blocked_s=self.client_blocked_s,
            proxy_s=self.proxy_s,
            loop_lag_s=loop_lag_s if self.loop_lag_s is None else self.loop_lag_s,
            parse_errors=self.observer_errors + (meter.parse_errors if meter else 0),
        )

    def _ending_by_status(self) -> str:
        """Return the ending of a request whose reply was not parsed."""
        if self.status is not None and self.status >= 400:
            return "http-error"
        return "unknown" if self.last_byte_at_s is None else "complete"

    def _ending(self, reply: Reply) -> str:
        """Return the ending: what cut the request short, else the engine's finish reason.

        A stream without a finish reason or an end marker is an `upstream-error`.
        """
        ending = self.ended or self._ending_by_status()
        if ending in CUT_SHORT:
            return ending
        if self.status is not None and self.status >= 400:
            return "http-error"
        if reply.failed:
            return "upstream-error"
        if reply.finish is not None or not self.stream:
            return reply.finish or ending
        is_done = self.meter is not None and self.meter.done  # all of it is here, without a why
        return ending if is_done else "upstream-error"


def _tokens(meter: Meter) -> Tokens:
    """Return the token counts of a reply, with those of its reasoning."""
    tokens, reasoning = meter.reply.tokens(), meter.reasoning_tokens()
    return tokens if reasoning is None else replace(tokens, reasoning=reasoning)


def _percentile(ordered: list[float], share: float) -> float | None:
    if len(ordered) < 2:
        return None
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
