"""Judges short requests in the worker that relayed them: their replies wait for no other process.

A request of less than half a second cannot have lost what counts as slow
(`slowtok.detectors.diagnosis.short_request`). What it is held against the observing process told
of the last request of its setup; the record is still made there.
"""

from collections.abc import Mapping
from dataclasses import replace

from slowtok.detectors.analysis.phase_loss import MIN_WAIT_S
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.detectors.diagnosis.short_request import judge_short
from slowtok.detectors.expectation.envelope import expectation, refined
from slowtok.proxy.observe.setups import MAX_SETUPS, SetupKey, setup_key
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.runtime.bounded_map import BoundedMap
from slowtok.proxy.stream.phases import split


class ShortRequests:
    """The judge of short requests, for as many setups as it was told of."""

    def __init__(self) -> None:
        self._setups: BoundedMap[SetupKey, Case] = BoundedMap(MAX_SETUPS)

    def learn(self, setups: Mapping[SetupKey, Case]) -> None:
        """Take note of what requests of these setups are held against."""
        for key, facts in setups.items():
            self._setups[key] = facts

    def judge(self, exchange: Exchange) -> tuple[Case, Diagnosis] | None:
        """Return the case of a request, as far as it matters, and its verdict.

        None where it was not short, where nothing is known of its setup yet, and where more than
        the reply is needed to tell what its time went into.
        """
        until_s = exchange.delivered_at_s or exchange.ended_at_s or exchange.accepted_at_s
        if until_s - exchange.accepted_at_s >= MIN_WAIT_S or not _tells_all(exchange):
            return None
        timeline = exchange.timeline()
        facts = self._setups.get(
            setup_key(exchange.engine_name or "", timeline.model, timeline.tokens)
        )
        if facts is None:
            return None
        tokens = timeline.tokens
        envelope = expectation(facts.server, facts.model, facts.device, tokens, facts.neighbours)
        case = replace(facts, timeline=timeline, phases=split(timeline), envelope=envelope)
        if (learned := refined(case, case.baseline)) is not envelope:
            case = replace(case, envelope=learned)
        diagnosis = judge_short(case)
        return None if diagnosis is None else (case, diagnosis)


def _tells_all(exchange: Exchange) -> bool:
    """Return True if a reply has its own timings and counts, and its engine had the model."""
    reply = exchange.meter.reply if exchange.meter else None
    if reply is None or reply.choices_seen != 1 or exchange.slept:
        return False
    engine, tokens = reply.engine(), reply.tokens()
    if engine is None or engine.prefill_s is None or engine.decode_s is None:
        return False
    return None not in (tokens.prompt, tokens.cached, tokens.completion)
