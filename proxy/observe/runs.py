"""Watches exchanges for the runs they belong to: begun, fingerprinted, ended, published."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from slowtok.detectors.case.ending import CUT_SHORT
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.runs.chain import Messages, message_hashes_of, new_chars
from slowtok.proxy.runs.ledger import Ledger
from slowtok.proxy.runs.run_register import RunRegister
from slowtok.proxy.runs.turn import Turn
from slowtok.proxy.stream.prompt_fingerprint import PromptFingerprint

_FAILED = frozenset({*CUT_SHORT, "http-error"})

FIELDS = frozenset({"run", "since_previous_ms", "client", "retry"})
"""Fields of a record that tell of its run and its client, not of the request's own case."""


class Runs:
    """Places each generation in its run, and keeps the account of all runs."""

    def __init__(self, key: bytes) -> None:
        self._book = RunRegister(key)
        self.ledger = Ledger()

    def restore(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take up what the log tells, the oldest record first."""
        kept = [record for record in records if "run" in record]
        self._book.restore(kept, time.monotonic(), time.time())
        for record in kept:
            self.ledger.add(record)

    def sent(self, exchange: Exchange) -> None:
        """A generation is about to go to its engine: its own ids may tell its run."""
        at_s, unix_s = exchange.accepted_at_s, exchange.started_unix_s
        exchange.run = self._book.place(exchange.request_id, exchange.clues, at_s, unix_s)

    def fingerprinted(self, exchange: Exchange, prompt: PromptFingerprint) -> None:
        """Its prompt is known: it tells what the request goes on from."""
        self._place(exchange, message_hashes_of(prompt))

    def ended(self, exchange: Exchange) -> None:
        """A generation is over."""
        ended_s = exchange.ended_at_s
        if exchange.api is None or ended_s is None:
            return
        reply = exchange.meter.reply if exchange.meter else None
        failed = exchange.ended in _FAILED or (exchange.status or 500) >= 400
        response = reply.response_id if reply else None
        self._book.end(exchange.request_id, ended_s, failed=failed, response=response)

    def fields(self, exchange: Exchange) -> dict[str, Any]:
        """Return what a record says of its run and its client."""
        if exchange.api is None:
            return {}
        clues = exchange.clues
        if exchange.run is None and (exchange.prompt is not None or (clues and clues.ids)):
            # its fingerprint came late, or there is none, as of what is to be embedded
            self._place(exchange, message_hashes_of(exchange.prompt) if exchange.prompt else None)
        self.ended(exchange)
        found: dict[str, Any] = {}
        if exchange.run is not None:
            found["run"] = _known(exchange.run._asdict()) | self._reads(exchange)
            since_s = self._book.since_previous_s(exchange.request_id)
            if since_s is not None:
                found["since_previous_ms"] = round(since_s * 1000, 3)
        if clues is not None:
            found |= _known({"client": clues.client, "retry": clues.retry})
        return found

    def _reads(self, exchange: Exchange) -> dict[str, Any]:
        """Return what its prompt had that the one before had not: shares by role."""
        if exchange.prompt is None:
            return {}
        chars = new_chars(exchange.prompt, self._book.earlier_messages(exchange.request_id))
        total = sum(chars.values())
        return {"reads": {r: round(c / total, 4) for r, c in chars.items()}} if total else {}

    def newest_first(self, live: Iterable[Exchange], limit: int) -> list[dict[str, Any]]:
        """Return the runs in short, the newest first."""
        return self.ledger.newest_first(self._live(live), limit)

    def one(self, wanted: str, live: Iterable[Exchange]) -> dict[str, Any] | None:
        """Return one run in full."""
        return self.ledger.one(wanted, self._live(live))

    def _place(self, exchange: Exchange, prompt: Messages | None) -> None:
        exchange.run = self._book.place_by_prompt(
            exchange.request_id,
            exchange.clues,
            prompt,
            exchange.accepted_at_s,
            exchange.started_unix_s,
        )

    def _live(self, exchanges: Iterable[Exchange]) -> list[Turn]:
        now_s = time.monotonic()
        return [turn for one in exchanges if (turn := live_turn(one, now_s)) is not None]


def live_turn(exchange: Exchange, now_s: float) -> Turn | None:
    """Return a request that is on its way as a turn; None where it belongs to no run yet.

    Until its first token it waits, and reads its prompt: which of both is told at its end.
    """
    run, sent_s = exchange.run, exchange.sent_at_s
    if exchange.api is None or run is None or sent_s is None:
        return None
    first_s = exchange.meter.first_at_s if exchange.meter else None
    waits_s = (first_s if first_s is not None else now_s) - sent_s
    parts_s = {"prefill": max(waits_s, 0.0)}
    if first_s is not None:
        parts_s["decode"] = max(now_s - first_s, 0.0)
    return Turn(
        run=run.id,
        by=run.by,
        name=run.name,
        turn=run.turn,
        parent=run.parent,
        how=run.how,
        request=exchange.request_id,
        started_s=exchange.started_unix_s,
        total_s=now_s - exchange.accepted_at_s,
        parts_s=parts_s,
        slowtok_s=exchange.proxy_s,
        again_s=0.0,
        client_s=None,
        tokens={},
        verdict=None,
        causes=(),
        lost_s={},
        phases={},
        remedies={},
        usual_decode_s=None,
        reads={},
        model=exchange.model,
        client=exchange.clues.client if exchange.clues else None,
        ended="",
        live=True,
    )


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
