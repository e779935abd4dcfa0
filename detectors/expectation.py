"""A case's expectation, from everything else that the case holds."""

from dataclasses import replace

from slowtok.detectors.case import Baseline, Case, Envelope, Tokens
from slowtok.detectors.drafts import speculates
from slowtok.detectors.envelope import expect, refine


def with_expectation(case: Case) -> Case:
    """Return the case with what its model should give on its hardware, refined by its baseline."""
    envelope = expect(
        case.model,
        case.device,
        replace(case.server, speculative=True) if speculates(case) else case.server,
        _context(case.timeline.tokens),
        gpu_indices=case.server.gpu_indices or None,
        sequences=1 + case.neighbours.decode_mean,
        processed_tokens=case.timeline.tokens.processed,
    )
    return replace(case, envelope=_refined(case, envelope, case.baseline))


def with_baseline(case: Case, baseline: Baseline) -> Case:
    """Return a case whose expectation no baseline has refined yet, refined by this one.

    Not refined where tokens are drafted: other text gives other rates there.
    """
    if baseline == case.baseline:
        return case
    return replace(case, baseline=baseline, envelope=_refined(case, case.envelope, baseline))


def _refined(case: Case, envelope: Envelope, baseline: Baseline) -> Envelope:
    return envelope if speculates(case) else refine(envelope, baseline)


def _context(tokens: Tokens) -> int | None:
    """Return the mean context of the decode: the prompt and half of the answer."""
    return None if tokens.prompt is None else tokens.prompt + (tokens.completion or 0) // 2
