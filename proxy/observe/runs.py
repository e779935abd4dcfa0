"""Assigns exchanges to agent runs at each step: sent, fingerprinted, ended, published."""

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
    """Assigns each generation to its run, and keeps the ledger of all runs."""

    def __init__(self, key: bytes) -> None:
        self._register = RunRegister(key)
        self.ledger = Ledger()

    def restore(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Restore runs from the records of the log, oldest first."""
        kept = [record for record in records if "run" in record]
        self._register.restore(kept, time.monotonic(), time.time())
        for record in kept:
            self.ledger.add(record)

    def sent(self, exchange: Exchange) -> None:
        """Place a generation that is about to be sent, by the ids in the request."""
        at_s, unix_s = exchange.accepted_at_s, exchange.started_unix_s
        exchange.run = self._register.place(exchange.request_id, exchange.clues, at_s, unix_s)

    def fingerprinted(self, exchange: Exchange, prompt: PromptFingerprint) -> None:
        """Place a generation by its prompt, which shows the turn that it continues."""
        self._place(exchange, message_hashes_of(prompt))

    def ended(self, exchange: Exchange) -> None:
        """Record the end of a generation."""
        ended_s = exchange.ended_at_s
        if exchange.api is None or ended_s is None:
            return
        reply = exchange.meter.reply if exchange.meter else None
        failed = exchange.ended in _FAILED or (exchange.status or 500) >= 400
        response = reply.response_id if reply else None
        self._register.end(exchange.request_id, ended_s, failed=failed, response=response)

    def fields(self, exchange: Exchange) -> dict[str, Any]:
        """Return the fields of a record about its run and its client."""
        if exchange.api is None:
            return {}
        clues = exchange.clues
        if exchange.run is None and (exchange.prompt is not None or (clues and clues.ids)):
            # its fingerprint came late, or there is none, as of what is to be embedded
            self._place(exchange, message_hashes_of(exchange.prompt) if exchange.prompt else None)
        self.ended(exchange)
        fields: dict[str, Any] = {}
        if exchange.run is not None:
            fields["run"] = _known(exchange.run._asdict()) | self._reads(exchange)
            since_s = self._register.since_previous_s(exchange.request_id)
            if since_s is not None:
                fields["since_previous_ms"] = round(since_s * 1000, 3)
        if clues is not None:
            fields |= _known({"client": clues.client, "retry": clues.retry})
        return fields

    def _reads(self, exchange: Exchange) -> dict[str, Any]:
        """Return the new part of a prompt since the previous turn: its shares by role."""
        if exchange.prompt is None:
            return {}
        chars = new_chars(exchange.prompt, self._register.earlier_messages(exchange.request_id))
        total = sum(chars.values())
        return {"reads": {r: round(c / total, 4) for r, c in chars.items()}} if total else {}

    def newest_first(self, live: Iterable[Exchange], limit: int) -> list[dict[str, Any]]:
        """Return summaries of the runs, newest first."""
        return self.ledger.newest_first(self._live(live), limit)

    def one(self, wanted: str, live: Iterable[Exchange]) -> dict[str, Any] | None:
        """Return one run in detail."""
        return self.ledger.one(wanted, self._live(live))

    def _place(self, exchange: Exchange, prompt: Messages | None) -> None:
        exchange.run = self._register.place_by_prompt(
            exchange.request_id,
            exchange.clues,
            prompt,
            exchange.accepted_at_s,
            exchange.started_unix_s,
        )

    def _live(self, exchanges: Iterable[Exchange]) -> list[Turn]:
        now_s = time.monotonic()
        return [turn for exchange in exchanges if (turn := live_turn(exchange, now_s)) is not None]


def live_turn(exchange: Exchange, now_s: float) -> Turn | None:
    """Return a request in flight as a turn of its run; None if it belongs to no run yet.

    Until its first token, queue and prefill cannot be told apart; they count as prefill.
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
