"""The expectation of one case, from everything else that the case holds."""

from dataclasses import replace

from slowtok.detectors.case.case import Baseline, Case, Envelope, Neighbours, Tokens
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts
from slowtok.detectors.expectation.envelope import expect, refine
from slowtok.detectors.expectation.speculation import speculates


def with_expectation(case: Case) -> Case:
    """Return the case with what its model should give on its hardware, refined by its baseline."""
    envelope = expectation(
        case.server, case.model, case.device, case.timeline.tokens, case.neighbours
    )
    case = replace(case, envelope=envelope)
    return replace(case, envelope=refined(case, case.baseline))


def expectation(
    server: ServerFacts,
    model: ModelFacts,
    device: DeviceFacts,
    tokens: Tokens,
    neighbours: Neighbours,
) -> Envelope:
    """Return what a model should give on its hardware, by first principles."""
    return expect(
        model,
        device,
        replace(server, speculative=True) if tokens.drafted else server,
        _context(tokens),
        sequences=1 + neighbours.decode_mean,
        processed_tokens=tokens.processed,
    )


def refined(case: Case, baseline: Baseline) -> Envelope:
    """Return a case's expectation that no baseline has refined yet, refined by this one.

    Not refined where tokens are drafted: other text gives other rates there.
    """
    return case.envelope if speculates(case) else refine(case.envelope, baseline)


def _context(tokens: Tokens) -> int | None:
    """Return the mean context of the decode: the prompt and half of the answer."""
    return None if tokens.prompt is None else tokens.prompt + (tokens.completion or 0) // 2
