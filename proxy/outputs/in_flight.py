"""A request in flight, as `/slowtok/status` shows it. Pure.

The engine's own timings arrive with the end of a reply. Until then there are arrivals of tokens,
and the progress of slots if the engine has them. Without slots, queue, load and prefill are one
phase: waiting.
"""

from collections.abc import Iterable
from typing import Any, Literal

from slowtok.proxy.relay.exchange import Exchange, PromptEstimate, Queued, SlotProgress

Stage = Literal["receiving", "waiting", "queue", "prefill", "decode", "whole", "delivery"]
"""`receiving`: not at the engine yet. `waiting`: no token yet, and more is not known. `queue`: all
slots work for others. `prefill`: its slot reads the prompt. `whole`: a reply that is not streamed,
of which nothing arrives before its end."""


def running(exchanges: Iterable[Exchange], now_s: float) -> list[dict[str, Any]]:
    """Return an entry for each generation in flight, oldest first."""
    return [running_entry(exchange, now_s) for exchange in exchanges if exchange.api is not None]


def running_entry(exchange: Exchange, now_s: float) -> dict[str, Any]:
    """Return the progress of one request at `now_s` (monotonic), without unknown fields.

    `tokens` counts events that carried text; an engine that puts several tokens into one event has
    generated more. `silent_s` is how long nothing arrived, which tells a stuck request from a slow
    one.
    """
    entry = {
        "id": exchange.request_id,
        "model": exchange.model,
        "engine": exchange.engine_name,
        "path": exchange.path,
        "stream": exchange.stream,
        "phase": stage(exchange),
        "since_s": now_s - exchange.accepted_at_s,
        "sent_s": _since(exchange.sent_at_s, now_s),
        "queue_slots": exchange.slot.slots if isinstance(exchange.slot, Queued) else None,
        "prefill": _rounded(prefill_progress(exchange, now_s)) or None,
        **_decode(exchange, now_s),
        **_non_streamed_decode(exchange, now_s),
    }
    return _rounded(entry)


def stage(exchange: Exchange) -> Stage:
    """Return the stage that a request is in."""
    if exchange.last_byte_at_s is not None:
        return "delivery"
    if exchange.sent_at_s is None:
        return "receiving"
    if exchange.meter is not None and exchange.meter.first_at_s is not None and exchange.stream:
        return "decode"
    if isinstance(exchange.slot, Queued):
        return "queue"
    if not exchange.stream:
        return "whole"
    return "waiting" if exchange.slot is None else "prefill"


def _decode(exchange: Exchange, now_s: float) -> dict[str, float | None]:
    """Return the decode progress of a stream; empty before its first token."""
    meter = exchange.meter
    if not exchange.stream or meter is None or meter.first_at_s is None or meter.last_at_s is None:
        return {}
    took_s, count = meter.last_at_s - meter.first_at_s, meter.token_events
    left = (exchange.max_tokens or 0) - count  # one that was passed was no limit
    return {
        "tokens": count,
        "remaining_tokens": left if left > 0 and stage(exchange) == "decode" else None,
        "ttft_s": _since(exchange.accepted_at_s, meter.first_at_s),
        "silent_s": _since(meter.last_at_s, now_s),
        "decode_tps": (count - 1) / took_s if count > 1 and took_s > 0 else None,
        "recent_tps": meter.recent_tps(now_s) if stage(exchange) == "decode" else None,
    }


def _non_streamed_decode(exchange: Exchange, now_s: float) -> dict[str, float | None]:
    """Return the decode progress of a non-streamed reply, from its slot."""
    progress = exchange.slot
    if (
        stage(exchange) != "whole"
        or not isinstance(progress, SlotProgress)
        or progress.first_at_s is None
    ):
        return {}
    count, last_s = progress.slot.decoded_tokens, progress.decoded_at_s
    took_s = (last_s or progress.first_at_s) - progress.first_at_s
    return {
        "tokens": count,
        "remaining_tokens": progress.slot.remaining_tokens,
        "silent_s": _since(last_s, now_s),
        "decode_tps": (count - progress.first_tokens) / took_s if took_s > 0 else None,
    }


def _since(from_s: float | None, to_s: float | None) -> float | None:
    return None if from_s is None or to_s is None else max(to_s - from_s, 0.0)


def _rounded(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in entry.items()
        if value is not None
    }


def prefill_progress(exchange: Exchange, now_s: float) -> dict[str, Any]:
    """Return the progress of prefill; empty if it is unknown or over.

    `tokens` are done, of about `about_tokens` (estimated). `source` is the origin of the rate and
    of `eta_s`: `slots` for this prefill's own progress, `estimate` for earlier requests. `eta_s` is
    0 if it takes longer than estimated. `silent_s` is the time without progress, and `step_s` the
    mean time of this prefill's steps: a slow prefill has steps, a stuck one has none.
    """
    progress, estimate = exchange.slot, exchange.prompt_estimate
    if exchange.sent_at_s is None or exchange.last_byte_at_s is not None or _has_token(exchange):
        return {}
    if isinstance(progress, SlotProgress):
        return _by_slot(progress, estimate, now_s)
    if estimate is None or not exchange.stream:  # the end of such a prefill is not seen
        return {}
    eta_s = None if isinstance(progress, Queued) else _estimate_s(estimate, exchange.sent_at_s)
    return {
        "about_tokens": estimate.tokens,
        "tps": estimate.tps,
        "eta_s": None if eta_s is None else max(eta_s - now_s, 0.0),
        "source": "estimate",
    }


def _by_slot(progress: SlotProgress, guess: PromptEstimate | None, now_s: float) -> dict[str, Any]:
    if progress.slot.decoded_tokens:
        return {}
    done, took_s = progress.slot.read_tokens, progress.read_at_s - progress.begin_s
    own_tps = progress.slot.computed_tokens / took_s if progress.steps and took_s > 0 else None
    tps = own_tps or (guess.tps if guess else None)
    about = max(guess.tokens, done) if guess else None
    eta_s = None
    if about is not None and tps:
        eta_s = max((about - done) / tps - (now_s - progress.read_at_s), 0.0)
    return {
        "tokens": done,
        "about_tokens": about,
        "tps": tps,
        "eta_s": eta_s,
        "silent_s": now_s - progress.read_at_s,
        "step_s": took_s / progress.steps if progress.steps else None,
        "source": "slots" if own_tps else "estimate",
    }


def _estimate_s(guess: PromptEstimate, begin_s: float) -> float | None:
    """Return when prefill should end; tokens that may come from the cache do not count."""
    return begin_s + guess.new_tokens / guess.tps if guess.tps else None


def _has_token(exchange: Exchange) -> bool:
    return exchange.stream and exchange.meter is not None and exchange.meter.first_at_s is not None
