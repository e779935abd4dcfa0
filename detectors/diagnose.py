"""From a case to a diagnosis: run every detector, keep what fits, rank it, budget the loss.

Strategy: the verdict comes from times alone (phases.py). Detectors then explain it: each one
predicts what its cause would have cost. A cause is named only in a phase that was slow, and in
decode only where its predicted slowdown is near the observed one. The loss is handed out in the
order of the ranking and never more than once; what nobody explains stays unexplained.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from slowtok.detectors.belief import believed, deserved
from slowtok.detectors.case import Case, Phase
from slowtok.detectors.catalog import BY_CAUSE, CATALOG, cause_of
from slowtok.detectors.drift import drift_of
from slowtok.detectors.finding import (
    UNNAMED,
    Detector,
    Diagnosis,
    Finding,
    Missing,
    PhaseLoss,
    Verdict,
    charge,
    symptom,
)
from slowtok.detectors.phases import (
    is_cut_short,
    is_error,
    judge_decode,
    losses,
    slowdown,
    unexplained_wait,
)
from slowtok.detectors.roots import SAME_LOSS, roots_of
from slowtok.detectors.ruled_out import Answers, could_apply, known_beforehand, ruled_out
from slowtok.detectors.thinning import thinned

MIN_CONFIDENCE = 0.5  # below this a cause is a guess
MAX_CONTRIBUTING = 2
FIT_WIDTH = 0.35  # of ln(predicted / observed slowdown); no published source
MAX_MISFIT = math.log(2.5)  # a primary's prediction is within this factor, or explains ...
MIN_LEAD_SHARE = 0.5  # ... this much of the slowdown (log); neither has a published source
MIN_SHARE = 0.15  # of the slowdown (log) that a contributing cause has to explain
MIN_PART = 0.05  # of a phase's loss; less is what ranking left over, no cause. No published source
MIN_ROOT_SHARE = 0.5  # a root that explains less is not what cures; no published source


@dataclass(slots=True)
class _Examined:
    """What the detectors said, sorted by kind of answer."""

    found: dict[str, Finding] = field(default_factory=dict)
    cleared: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def diagnose(
    case: Case, *, catalog: tuple[Detector, ...] = CATALOG, disabled: Collection[str] = ()
) -> Diagnosis:
    """Judge one request and name the causes that explain it; never raises for a detector."""
    if is_error(case):
        return Diagnosis(verdict="unknown", reason=judge_decode(case).reason)
    case = thinned(_measured(case))
    known = known_beforehand(case) if catalog is CATALOG else {}
    examined = _examine(case, _enabled(catalog, disabled), known)
    decode = judge_decode(case)
    candidates: dict[str, Finding] = {}
    informing: dict[str, Finding] = {}
    for cause, finding in examined.found.items():
        if finding.informational:
            informing[cause] = finding
        elif _is_likely(case, cause, finding):
            candidates[cause] = finding
    lost = losses(case, decode, candidates)
    slow = tuple([loss for loss in lost if loss.slow])
    named, unexplained_s = _name(case, candidates, slow) if slow else ({}, 0.0)
    unjudged = "" if slow else decode.reason or unexplained_wait(case) or ""
    verdict: Verdict = "slow" if slow else "unknown" if unjudged else "normal"
    return Diagnosis(
        verdict=verdict,
        phase=max(slow, key=lambda loss: loss.lost_s).phase if slow else None,
        reason="" if slow else unjudged or drift_of(case) or "",
        findings={**named, **informing},
        losses=lost,
        budget_ms_per_token=_budget(case, named, unexplained_s) if slow else {},
        cleared=ruled_out(case, verdict, examined.cleared),
        missing=_missing(case, examined.missing),
        failed=examined.failed,
    )


def _is_likely(case: Case, cause: str, finding: Finding) -> bool:
    """Say whether a finding is more than a guess: what will not be named makes nothing slow."""
    after_all = deserved(finding, cause, misfit=0.0, history=case.history)
    return min(finding.confidence, after_all) >= MIN_CONFIDENCE


def _measured(case: Case) -> Case:
    """Return the case without estimated times: nothing may be concluded from them."""
    if case.phases.source != "estimate":
        return case
    phases = replace(case.phases, prefill_s=None, decode_s=None, prefill_tps=None, decode_tps=None)
    return replace(case, phases=phases)


def _enabled(catalog: tuple[Detector, ...], disabled: Collection[str]) -> Mapping[str, Detector]:
    detectors = BY_CAUSE if catalog is CATALOG else {cause_of(d): d for d in catalog}
    if not disabled:
        return detectors
    return {cause: detector for cause, detector in detectors.items() if cause not in disabled}


def _examine(case: Case, detectors: Mapping[str, Detector], known: Answers) -> _Examined:
    """Ask the detectors, save those whose answer is `known`."""
    examined = _Examined()
    for cause, detector in detectors.items():
        if cause in known:
            if (fact := known[cause]) is None:
                examined.cleared.append(cause)
            else:
                examined.missing[cause] = fact
            continue
        try:
            finding = detector.detect(case)
        except Missing as missing:
            examined.missing[cause] = missing.fact
        except Exception as error:  # noqa: BLE001 - one broken detector costs only itself
            examined.failed[cause] = type(error).__name__
        else:
            if finding is None:
                examined.cleared.append(cause)
            elif finding is not UNNAMED:
                examined.found[cause] = finding
    return examined


def _missing(case: Case, missing: Mapping[str, str]) -> Mapping[str, str]:
    """Return what was missing for the causes that the request got far enough for."""
    if not is_cut_short(case):
        return missing
    return {cause: fact for cause, fact in missing.items() if could_apply(case, cause)}


def _name(
    case: Case, candidates: Mapping[str, Finding], slow: tuple[PhaseLoss, ...]
) -> tuple[dict[str, Finding], float]:
    """Return the causes to name, best first, each with its part of the loss, and what is left."""
    lost_s: dict[Phase, float] = {loss.phase: loss.lost_s for loss in slow}
    left_s = dict(lost_s)
    named: dict[str, Finding] = {}
    ranked = {phase: _ranked(case, candidates, phase, lost_s[phase]) for phase in lost_s}

    def order(phase: Phase) -> tuple[bool, float]:
        return _follows(phase, ranked), -lost_s[phase]

    for phase in sorted(
        lost_s, key=order
    ):  # what follows from elsewhere last, then the worst first
        for cause, finding in ranked[phase]:
            if len(named) > MAX_CONTRIBUTING:
                break
            if finding.confidence < MIN_CONFIDENCE:
                continue
            part_s = min(finding.lost_s, left_s[phase])
            if _is_same_loss(cause, named, phase):
                named[cause] = symptom(finding)
            elif part_s >= MIN_PART * lost_s[phase]:
                left_s[phase] -= part_s
                named[cause] = charge(finding, part_s)
            elif finding.lost_s > 0 and any(root in named for root in roots_of(cause)):
                named[cause] = symptom(finding)
    return named, sum(left_s.values())


def _follows(phase: Phase, ranked: Mapping[Phase, list[tuple[str, Finding]]]) -> bool:
    """Say whether the first cause of a phase is a symptom of one that leads in another phase."""
    leads = {p: next(iter(found))[0] for p, found in ranked.items() if found}
    roots = roots_of(leads[phase]) if phase in leads else ()
    return any(lead in roots for other, lead in leads.items() if other != phase)


def _is_same_loss(cause: str, named: Mapping[str, Finding], phase: Phase) -> bool:
    roots = SAME_LOSS.get(cause, ())
    return any(root in named and named[root].phase == phase for root in roots)


def _ranked(
    case: Case, candidates: Mapping[str, Finding], phase: Phase, lost_s: float
) -> list[tuple[str, Finding]]:
    """Order the causes of one phase: roots first, then by fit times confidence."""
    observed = math.log(slowdown(case, lost_s, phase)) if phase in ("decode", "prefill") else None
    fits: dict[str, float] = {}
    for cause, finding in candidates.items():
        if finding.phase == phase:
            fits[cause] = 1.0 if observed is None else _fit(case, finding, observed)
    fitting = {c: fit for c, fit in fits.items() if fit > 0}
    if not any(_can_lead(case, candidates[c], observed) for c in fitting):
        return []
    scores = {c: fit * candidates[c].confidence for c, fit in fitting.items()}

    def order(cause: str) -> tuple[bool, bool, float]:
        roots = (candidates[root] for root in roots_of(cause) if root in fitting)
        symptom = any(_share(case, root, observed) >= MIN_ROOT_SHARE for root in roots)
        return symptom, not _can_lead(case, candidates[cause], observed), -scores[cause]

    return [
        (
            cause,
            believed(
                candidates[cause],
                cause,
                misfit=_misfit(case, candidates[cause], observed),
                history=case.history,
            ),
        )
        for cause in sorted(fitting, key=order)
    ]


def _misfit(case: Case, finding: Finding, observed: float | None) -> float:
    """Return by how much the prediction is above what happened, as a share of what is let by."""
    if observed is None:
        return 0.0
    return (math.log(slowdown(case, finding.lost_s, finding.phase)) - observed) / MAX_MISFIT


def _fit(case: Case, finding: Finding, observed: float) -> float:
    """Return how well a predicted slowdown explains the observed one, 0 to 1.

    Explaining a part counts for that part; predicting far more than happened contradicts.
    """
    predicted = math.log(slowdown(case, finding.lost_s, finding.phase))
    if observed <= 0:
        return 0.0
    if predicted < observed:
        share = predicted / observed
        return share if share >= MIN_SHARE else 0.0
    over = predicted - observed
    return math.exp(-over / FIT_WIDTH) if over <= MAX_MISFIT else 0.0


def _share(case: Case, finding: Finding, observed: float | None) -> float:
    """Return the share of the observed slowdown (log) that a finding predicts, at most 1."""
    if not observed:
        return 1.0
    return min(math.log(slowdown(case, finding.lost_s, finding.phase)) / observed, 1.0)


def _can_lead(case: Case, finding: Finding, observed: float | None) -> bool:
    if observed is None:
        return True
    predicted = math.log(slowdown(case, finding.lost_s, finding.phase))
    if predicted - observed > MAX_MISFIT or predicted < MIN_SHARE * observed:
        return False
    return observed - predicted <= MAX_MISFIT or predicted >= MIN_LEAD_SHARE * observed


def _budget(case: Case, named: Mapping[str, Finding], unexplained_s: float) -> dict[str, float]:
    tokens = case.timeline.tokens.completion
    if not tokens or (not named and unexplained_s <= 0):
        return {}
    parts_s = {cause: finding.lost_s for cause, finding in named.items()}
    return {
        cause: lost_s * 1000 / tokens
        for cause, lost_s in {**parts_s, "unexplained": unexplained_s}.items()
    }
