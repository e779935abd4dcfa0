"""From a case to a diagnosis: run every detector, keep what fits, rank it, assign the loss.

The verdict comes from times and counts alone (`detectors/analysis/phase_loss.py`). Detectors then
explain it:

- Each detector predicts what its cause would have cost.
- A cause is named only in a phase that was slow. In prefill and decode its predicted slowdown must
  also be near the observed one.
- The expectation is a band, so the observed slowdown is an interval. A cause explains enough if
  without it the rate would be back at the band's edge, or at what the setup gave just before.
- Standing causes, such as a wrong option, explain the part by which the setup is always slow. They
  cannot have begun in an engine that was healthy a moment ago.
- The loss is assigned in the order of the ranking, and never twice. The rest is unexplained.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from slowtok.detectors.analysis.phase_loss import (
    ALONE_SEQUENCES,
    MIN_DECODE_S,
    MIN_DECODE_TOKENS,
    is_cut_short,
    is_error,
    judge_decode,
    losses,
    slowdown,
    standing_lost_s,
    unexplained_wait,
    wide_expectation,
)
from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.finding import (
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
from slowtok.detectors.diagnosis.catalog import BY_CAUSE, CATALOG, cause_of, causes_with
from slowtok.detectors.diagnosis.clearance import Answers, could_apply, known_beforehand, ruled_out
from slowtok.detectors.diagnosis.confidence import adjusted, adjusted_confidence
from slowtok.detectors.diagnosis.downsample import downsampled
from slowtok.detectors.diagnosis.precedence import IN_ONE_PHASE, SAME_LOSS, roots_of

MIN_CONFIDENCE = 0.5  # below this a cause is a guess
MAX_CONTRIBUTING = 2
FIT_WIDTH = 0.35  # of ln(predicted / observed slowdown); heuristic
MAX_MISFIT = math.log(2.5)  # predicting more than so many times what happened contradicts
MIN_LEAD_SHARE = 0.5  # of the certain slowdown (log) that the first cause explains; heuristic
MIN_TOGETHER_SHARE = 0.75  # of it, that several explain of which none can lead; heuristic
MIDDLE_FIT = 0.7  # of a prediction that just reaches the edge of the expectation; heuristic
HEALTHY_LEAD_RATIO = 1.15  # a healthy past that was hardly faster says little; heuristic
MOSTLY_RATIO = 0.5  # of the certain loss: where less is explained, that comes first, in words
MIN_SHARE = 0.15  # of the middle's slowdown (log) that any cause has to explain; heuristic
MIN_PART = 0.05  # of a phase's loss; less is what ranking left over, no cause. Heuristic
MIN_ROOT_SHARE = 0.5  # a root that explains less is not what cures; heuristic


SINCE_LOAD = causes_with(lambda traits: traits.since_load)


@dataclass(slots=True)
class _Examined:
    """The detectors' answers, sorted by kind."""

    found: dict[str, Finding] = field(default_factory=dict)
    cleared: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def diagnose(
    case: Case, *, catalog: tuple[Detector, ...] = CATALOG, disabled: Collection[str] = ()
) -> Diagnosis:
    """Judge one request and name the causes that explain it; a detector's exception is recorded."""
    if is_error(case):
        return Diagnosis(verdict="unknown", reason=judge_decode(case).reason)
    case = downsampled(_measured(case))
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
    candidates, impossible = _without_impossible(case, candidates)
    lost = losses(case, decode, candidates)
    slow = tuple([loss for loss in lost if loss.slow])
    named, unexplained_s = _name(case, candidates, slow) if slow else ({}, 0.0)
    unjudged = "" if slow else decode.reason or unexplained_wait(case) or ""
    verdict: Verdict = "slow" if slow else "unknown" if unjudged else "normal"
    return Diagnosis(
        verdict=verdict,
        phase=max(slow, key=lambda loss: loss.lost_s).phase if slow else None,
        reason=_mostly_unexplained(named, slow)
        if slow
        else unjudged or drift_of(case) or wide_expectation(case) or "",
        findings={**named, **informing},
        losses=lost,
        budget_ms_per_token=_budget(case, named, unexplained_s) if slow else {},
        cleared=ruled_out(case, verdict, (*examined.cleared, *impossible)),
        unused=(*examined.unused, *(cause for cause in candidates if cause not in named)),
        missing=_missing(case, examined.missing),
        failed=examined.failed,
    )


def _without_impossible(
    case: Case, candidates: Mapping[str, Finding]
) -> tuple[dict[str, Finding], tuple[str, ...]]:
    """Return the candidates that can explain a change, and the causes that cannot.

    A cause that holds since the model's load (`since_load`) was there before this request, too. If
    the setup was healthy a moment ago, it does not explain why decode is slow now. If the setup was
    slow then, it is charged with at most that standing loss.
    """
    rate, healthy_tps = case.phases.decode_tps, case.baseline.decode_tps
    was_healthy = bool(case.baseline.healthy_here and rate and healthy_tps) and (
        (healthy_tps or 0.0) >= HEALTHY_LEAD_RATIO * (rate or 0.0)
    )
    standing_s = standing_lost_s(case)
    possible: dict[str, Finding] = {}
    impossible: list[str] = []
    for cause, finding in candidates.items():
        if finding.phase != "decode" or cause not in SINCE_LOAD:
            possible[cause] = finding
        elif was_healthy:
            impossible.append(cause)
        elif standing_s is not None:
            possible[cause] = replace(finding, lost_s=min(finding.lost_s, standing_s))
        else:
            possible[cause] = finding
    return possible, tuple(impossible)


def _mostly_unexplained(named: Mapping[str, Finding], slow: tuple[PhaseLoss, ...]) -> str:
    """Return a note if the named causes explain less than half of the certain loss."""
    lost_s, explained_s = (
        sum(loss.least_lost_s for loss in slow),
        sum(finding.lost_s for finding in named.values()),
    )
    if not named or explained_s >= MOSTLY_RATIO * lost_s:
        return ""
    return (
        f"mostly unexplained: what is named accounts for {explained_s:.1f} of the "
        f"{lost_s:.1f} s that were lost for certain"
    )


def _is_likely(case: Case, cause: str, finding: Finding) -> bool:
    """Return True if a finding is confident enough to be named; others make no phase slow."""
    confidence = adjusted_confidence(finding, cause, misfit=0.0, history=case.history)
    return min(finding.confidence, confidence) >= MIN_CONFIDENCE


def _measured(case: Case) -> Case:
    """Return the case without estimated times, because no verdict may be based on them."""
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
    """Run the detectors, except those whose answer is `known`."""
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
            elif finding is UNNAMED:
                examined.unused.append(cause)
            else:
                examined.found[cause] = finding
    return examined


def _missing(case: Case, missing: Mapping[str, str]) -> Mapping[str, str]:
    """Return the missing facts of the causes whose phases the request reached."""
    if not is_cut_short(case):
        return missing
    return {cause: fact for cause, fact in missing.items() if could_apply(case, cause)}


def _name(
    case: Case, candidates: Mapping[str, Finding], slow: tuple[PhaseLoss, ...]
) -> tuple[dict[str, Finding], float]:
    """Return the causes to name, best first, each with its part of the loss, and the rest."""
    lost_s: dict[Phase, float] = {loss.phase: loss.lost_s for loss in slow}
    left_s = dict(lost_s)
    named: dict[str, Finding] = {}
    ranked = {loss.phase: _ranked(case, candidates, loss) for loss in slow}

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
    """Return True if a phase's first cause is a symptom of one that leads in another phase."""
    leads = {p: next(iter(ranking))[0] for p, ranking in ranked.items() if ranking}
    cause = leads.get(phase)
    roots = () if cause is None or cause in IN_ONE_PHASE else roots_of(cause)
    return any(lead in roots for other, lead in leads.items() if other != phase)


def _is_same_loss(cause: str, named: Mapping[str, Finding], phase: Phase) -> bool:
    roots = SAME_LOSS.get(cause, ())
    return any(root in named and named[root].phase == phase for root in roots)


@dataclass(frozen=True, slots=True)
class _Observed:
    """Observed slowdown of a phase, actual by expected time, as logarithms.

    `least_log` is the certain slowdown, `middle_log` that against the middle of the expectation.
    """

    least_log: float
    middle_log: float


def _observed(case: Case, loss: PhaseLoss) -> _Observed | None:
    """Return the observed slowdown of prefill or decode; None for a wait, which is all lost."""
    if loss.phase not in ("decode", "prefill"):
        return None
    return _Observed(
        least_log=math.log(slowdown(case, loss.least_lost_s, loss.phase)),
        middle_log=math.log(slowdown(case, loss.lost_s, loss.phase)),
    )


def _ranked(
    case: Case, candidates: Mapping[str, Finding], loss: PhaseLoss
) -> list[tuple[str, Finding]]:
    """Rank the causes of one phase: root causes first, then by fit times confidence.

    If none can lead, all are kept if they explain most of the slowdown together; else only those
    with a direct measurement (`proof_s`), which always counts.
    """
    observed = _observed(case, loss)
    fits = {c: _fit(case, f, observed) for c, f in candidates.items() if f.phase == loss.phase}
    fitting = {c: fit for c, fit in fits.items() if fit > 0}
    leads = any(_can_lead(case, candidates[c], observed) for c in fitting)
    if not leads and not _explain_together(case, {c: candidates[c] for c in fitting}, observed):
        fitting = {c: fit for c, fit in fitting.items() if candidates[c].proof_s > 0}
    scores = {c: fit * candidates[c].confidence for c, fit in fitting.items()}

    def order(cause: str) -> tuple[bool, bool, float]:
        roots = (candidates[root] for root in roots_of(cause) if root in fitting)
        symptom = any(_share(case, root, observed) >= MIN_ROOT_SHARE for root in roots)
        return symptom, not _can_lead(case, candidates[cause], observed), -scores[cause]

    return [
        (
            cause,
            adjusted(
                candidates[cause],
                cause,
                misfit=_misfit(case, candidates[cause], observed),
                history=case.history,
            ),
        )
        for cause in sorted(fitting, key=order)
    ]


def _predicted(case: Case, finding: Finding) -> float:
    return math.log(slowdown(case, finding.lost_s, finding.phase))


def _misfit(case: Case, finding: Finding, observed: _Observed | None) -> float:
    """Return how far the prediction exceeds the observed slowdown, as a share of MAX_MISFIT."""
    if observed is None or finding.proof_s > 0:
        return 0.0
    return (_predicted(case, finding) - observed.middle_log) / MAX_MISFIT


def _fit(case: Case, finding: Finding, observed: _Observed | None) -> float:
    """Return how well a predicted slowdown explains the observed one, 0 to 1.

    A prediction that reaches the edge of the expectation suffices, and is better the nearer to its
    middle. A smaller one counts for its part. A much larger one contradicts, unless a direct
    measurement proves it.
    """
    if observed is None:
        return 1.0
    least_fit = MIN_SHARE if finding.proof_s > 0 else 0.0
    if observed.middle_log <= 0:
        return least_fit
    return max(_fit_of(_predicted(case, finding), observed), least_fit)


def _fit_of(predicted: float, observed: _Observed) -> float:
    if predicted < MIN_SHARE * observed.middle_log:
        return 0.0
    if predicted < observed.least_log:
        return MIDDLE_FIT * predicted / observed.least_log
    if predicted <= observed.middle_log:
        uncertain = observed.middle_log - observed.least_log
        above = (predicted - observed.least_log) / uncertain if uncertain > 0 else 1.0
        return MIDDLE_FIT + (1 - MIDDLE_FIT) * above
    over = predicted - observed.middle_log
    return math.exp(-over / FIT_WIDTH) if over <= MAX_MISFIT else 0.0


def _share(case: Case, finding: Finding, observed: _Observed | None) -> float:
    """Return the share of the middle slowdown (log) that a finding predicts, at most 1."""
    if observed is None or observed.middle_log <= 0:
        return 1.0
    return min(_predicted(case, finding) / observed.middle_log, 1.0)


def _can_lead(case: Case, finding: Finding, observed: _Observed | None) -> bool:
    """Return True if a cause explains enough of a phase to be its first cause."""
    if observed is None:
        return True
    predicted = _predicted(case, finding)
    if predicted - observed.middle_log > MAX_MISFIT:
        return finding.proof_s > 0
    return predicted >= max(MIN_LEAD_SHARE * observed.least_log, MIN_SHARE * observed.middle_log)


def _explain_together(
    case: Case, findings: Mapping[str, Finding], observed: _Observed | None
) -> bool:
    """Return True if causes that cannot lead explain most of the certain slowdown together.

    Slowdowns multiply, so their logarithms are added. Symptoms of other candidates are left out:
    they are the same loss once more.
    """
    if observed is None or observed.least_log <= 0:
        return False
    own = [
        _predicted(case, finding)
        for cause, finding in findings.items()
        if finding.confidence >= MIN_CONFIDENCE
        if not any(root in findings for root in roots_of(cause))
    ]
    return sum(own) >= MIN_TOGETHER_SHARE * observed.least_log


def _budget(case: Case, named: Mapping[str, Finding], unexplained_s: float) -> dict[str, float]:
    tokens = case.timeline.tokens.completion
    if not tokens or (not named and unexplained_s <= 0):
        return {}
    parts_s = {cause: finding.lost_s for cause, finding in named.items()}
    return {
        cause: lost_s * 1000 / tokens
        for cause, lost_s in {**parts_s, "unexplained": unexplained_s}.items()
    }


# Drift: the same setup gives less than it gave before, though it is still what is expected.
#
# No cause by itself: the rate is inside its band, so nothing is slow. It is worth a word, because a
# card that slowly gets hotter, or a new version of an engine, shows like that first.

MIN_DRIFT_RATIO = 0.10
"""Of the rate of the days before. Heuristic: a tenth is what is worth a word."""


def drift_of(case: Case) -> str | None:
    """Return a note on how much slower decode was than its median of the weeks before, or None."""
    rate_tps, before_tps = case.phases.decode_tps, case.history.week_ago_decode_tps
    took_s, tokens = case.phases.decode_s, case.timeline.tokens.completion
    if rate_tps is None or not before_tps or case.neighbours.decode_mean > ALONE_SEQUENCES:
        return None
    if (took_s or 0.0) < MIN_DECODE_S or (tokens or 0) < MIN_DECODE_TOKENS:
        return None
    drift_ratio, noise_tps = 1 - rate_tps / before_tps, case.baseline.decode_p10_tps
    if drift_ratio < MIN_DRIFT_RATIO or (noise_tps is not None and rate_tps >= noise_tps):
        return None
    return (
        f"{100 * drift_ratio:.0f} % slower than before for the same model at such a context "
        f"({rate_tps:.1f} tokens/s, {before_tps:.1f} the days before)"
    )
