"""Estimates how far a prefill is: its slot's count against a guess of the prompt's length. Pure."""

from typing import Any

from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.progress import PromptEstimate, Queued, SlotProgress


def prefill_progress(exchange: Exchange, now_s: float) -> dict[str, Any]:
    """Return how far a prompt is read; nothing where nothing is known, or it is over.

    `tokens` have been read, `about_tokens` are in the prompt by guess. `source` says what the rate
    and `eta_s` rest on: `slots` are this prefill's own, `estimate` those of earlier requests.
    `eta_s` is 0 where it takes longer than that. `silent_s` is how long nothing more was read, and
    `step_s` how long this prefill's steps took so far: a slow one has steps, a stuck one has none.
    """
    told = exchange.slot
    if exchange.sent_at_s is None or exchange.last_byte_at_s is not None or _has_token(exchange):
        return {}
    if isinstance(told, SlotProgress):
        return _by_slot(told, exchange.guess, now_s)
    if exchange.guess is None or not exchange.stream:  # the end of such a prefill is not seen
        return {}
    eta_s = None if isinstance(told, Queued) else _estimate_s(exchange.guess, exchange.sent_at_s)
    return {
        "about_tokens": exchange.guess.tokens,
        "tps": exchange.guess.tps,
        "eta_s": None if eta_s is None else max(eta_s - now_s, 0.0),
        "source": "estimate",
    }


def _by_slot(told: SlotProgress, guess: PromptEstimate | None, now_s: float) -> dict[str, Any]:
    if told.slot.decoded_tokens:
        return {}
    done, took_s = told.slot.read_tokens, told.read_at_s - told.begin_s
    own_tps = told.slot.computed_tokens / took_s if told.steps and took_s > 0 else None
    tps = own_tps or (guess.tps if guess else None)
    about = max(guess.tokens, done) if guess else None
    eta_s = None
    if about is not None and tps:
        eta_s = max((about - done) / tps - (now_s - told.read_at_s), 0.0)
    return {
        "tokens": done,
        "about_tokens": about,
        "tps": tps,
        "eta_s": eta_s,
        "silent_s": now_s - told.read_at_s,
        "step_s": took_s / told.steps if told.steps else None,
        "source": "slots" if own_tps else "estimate",
    }


def _estimate_s(guess: PromptEstimate, begin_s: float) -> float | None:
    """Return when it should be done: what the cache may have is not counted."""
    return begin_s + guess.new_tokens / guess.tps if guess.tps else None


def _has_token(exchange: Exchange) -> bool:
    return exchange.stream and exchange.meter is not None and exchange.meter.first_at_s is not None
