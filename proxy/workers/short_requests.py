"""Judges short requests in the worker that relayed them, so that their replies need not wait.

A request of less than half a second cannot have lost enough time to count as slow
(`slowtok.detectors.diagnosis.short_request`). It is judged against the facts of the last request of
the same setup, which the observing process sent. The record is still made there.
"""

from collections.abc import Mapping
from dataclasses import replace

from slowtok.detectors.analysis.phase_loss import MIN_WAIT_S
from slowtok.detectors.case.case import Baseline, Case, Envelope
from slowtok.detectors.case.finding import Diagnosis
from slowtok.detectors.diagnosis.short_request import judge_short
from slowtok.detectors.expectation.envelope import expectation, refined
from slowtok.proxy.observe.setups import MAX_SETUPS, SetupKey, setup_key
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.runtime.bounded_map import BoundedMap
from slowtok.proxy.stream.phases import split


class ShortRequests:
    """Judges short requests of the setups whose facts are known."""

    def __init__(self) -> None:
        self._setups: BoundedMap[SetupKey, Case] = BoundedMap(MAX_SETUPS)

    def learn(self, setups: Mapping[SetupKey, Case | None]) -> None:
        """Store the facts that requests of these setups are judged against; None: drop them."""
        for key, facts in setups.items():
            if facts is None:
                self._setups.pop(key, None)
            else:
                self._setups[key] = facts

    def judge(self, exchange: Exchange) -> tuple[Case, Diagnosis] | None:
        """Return the reduced case of a short request, and its verdict.

        None if it was not short, if the facts of its setup are not known yet, or if its reply alone
        does not tell what its time was spent on.
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
        baseline, phases = _at(envelope, facts), split(timeline)
        case = replace(
            facts, timeline=timeline, phases=phases, envelope=envelope, baseline=baseline
        )
        if (learned := refined(case, baseline)) is not envelope:
            case = replace(case, envelope=learned)
        diagnosis = judge_short(case)
        return None if diagnosis is None else (case, diagnosis)


def _at(envelope: Envelope, facts: Case) -> Baseline:
    """Return the baseline of a setup's facts as it would be at the context of this request."""
    baseline, there, here = facts.baseline, facts.envelope.roofline_tps, envelope.roofline_tps
    if not there or not here or baseline.decode_tps is None or baseline.decode_p10_tps is None:
        return baseline
    return replace(
        baseline,
        decode_tps=baseline.decode_tps * here / there,
        decode_p10_tps=baseline.decode_p10_tps * here / there,
    )


def _tells_all(exchange: Exchange) -> bool:
    """Return True if the reply has its own timings and counts, and the model was loaded before."""
    reply = exchange.meter.reply if exchange.meter else None
    if reply is None or reply.choices_seen != 1 or exchange.was_unloaded:
        return False
    engine, tokens = reply.engine(), reply.tokens()
    if engine is None or engine.prefill_s is None or engine.decode_s is None:
        return False
    return None not in (tokens.prompt, tokens.cached, tokens.completion)
