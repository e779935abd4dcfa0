"""Findings, the diagnosis, and the interface of a detector: everything that can be said of a case.

A detector is a module: a docstring with the sections Signal, Not to be confused with, Remedy and
Sources; `TITLE` and `TRAITS`; constants with their reasons; one function `detect`. The type checker
accepts a module as a `Detector`, so there is no base class.
"""

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal, Protocol, TypeVar

from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.value import frozen_dataclass

T = TypeVar("T")
Verdict = Literal["slow", "normal", "unknown"]


class Missing(Exception):
    """A fact that a detector needs is not known. `fact` is its name, for `not_visible`."""

    def __init__(self, fact: str) -> None:
        self.fact = fact


def need(value: T | None, fact: str) -> T:
    """Return `value`; stop the detector if it is not known.

    Raises:
        Missing: `value` is None.
    """
    if value is None:
        raise Missing(fact)
    return value


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One number that a finding rests on, with the limit it was compared with."""

    name: str
    value: float
    unit: str
    limit: float | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause with its evidence.

    `lost_s` is the time that the detector predicts its cause to have cost in `phase`. The diagnosis
    replaces it by the part that the cause is charged with, which also replaces `{lost}` in
    `summary` and `remedy`. An `informational` finding explains a normal request and never makes one
    slow. `proof_s`: seconds of the phase that were certainly lost by a direct measurement (a
    counter, a stall), whatever rate was expected.
    """

    phase: Phase
    confidence: float
    lost_s: float
    summary: str
    remedy: str
    evidence: tuple[Evidence, ...]
    informational: bool = False
    proof_s: float = 0.0


UNNAMED = Finding(phase="decode", confidence=0.0, lost_s=0.0, summary="", remedy="", evidence=())
"""A cause that is present without measurable cost: neither named nor ruled out.

A shared constant: many normal requests show such a cause, and to build a text for each would cost
more than the rest of the detector."""


def number(value: float) -> str:
    """Return a number with three significant digits, as people write it: 8.52, 157, 1,036."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def charge(finding: Finding, lost_s: float) -> Finding:
    """Return the finding charged with its part of the loss, in its texts, too."""
    amount = f"{lost_s:.1f} s" if lost_s >= 1 else f"{lost_s * 1000:.0f} ms"
    return replace(
        finding,
        lost_s=lost_s,
        summary=finding.summary.replace("{lost}", amount),
        remedy=finding.remedy.replace("{lost}", amount),
    )


COUNTED_ELSEWHERE = "(counted under its root cause)"


def symptom(finding: Finding) -> Finding:
    """Return the finding as a consequence of a root cause that is charged with all of the loss."""
    summary = finding.summary.replace("{lost}", f"{{lost}} {COUNTED_ELSEWHERE}")
    return replace(charge(replace(finding, summary=summary), finding.lost_s), lost_s=0.0)


EvidenceKind = Literal["server", "counter", "gauge", "inference"]
"""What a piece of evidence is: the engine's or the driver's own word, a counter's difference, a
reading, or something that follows from others."""

EVIDENCE_WEIGHT: Mapping[EvidenceKind, float] = {
    "server": 0.9,
    "counter": 0.8,
    "gauge": 0.5,
    "inference": 0.3,
}
"""How far one piece of evidence alone is believed. Heuristic: proposed, and held against
labelled cases in docs/accuracy.md."""

MAX_CONFIDENCE = 0.97
AGAINST_RATIO = 0.6
"""What each contradicting piece of evidence leaves of the confidence. Heuristic."""


def weigh(*independent: EvidenceKind, against: int = 0) -> float:
    """Return the confidence in a cause from independent pieces of evidence (noisy-or).

    `against` counts pieces that contradict it without ruling it out.
    """
    doubt = math.prod(1 - EVIDENCE_WEIGHT[kind] for kind in independent)
    return round(min(1 - doubt, MAX_CONFIDENCE) * AGAINST_RATIO**against, 2)


Requirement = Literal["gpu", "gpu-use", "host-samples", "kv-reads"]
"""What a detector cannot say anything without, whatever else is known: a GPU in the machine; an
engine that may use one; samples of the host during decode; the bytes of KV cache that a token
reads. Without a GPU the cause is ruled out, without the others a fact is missing."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of a cause that do not depend on the request, used by the diagnosis.

    `phases` are the phases that it can slow. `in_exchange`: it shows in times, tokens and the
    engine's own reports; all other causes show in samples of the machine, and are not ruled out
    without them. `persistent`: it lasts over many requests, so a first sighting is doubted and
    later ones confirm it. `since_load`: it holds from the model's load on, and cannot begin in a
    running engine.
    """

    phases: tuple[Phase, ...] = ("prefill", "decode")
    requires: Requirement | None = None
    in_exchange: bool = False
    persistent: bool = False
    since_load: bool = False


class Detector(Protocol):
    """A module that detects one cause."""

    __name__: str
    TITLE: str
    TRAITS: Traits

    def detect(self, case: Case) -> Finding | None:
        """Return a finding, `UNNAMED` in its place, or None if the cause is ruled out.

        Raises:
            Missing: a fact that the answer depends on is not known.
        """
        ...


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLoss:
    """Time lost in one phase against the expectation; `slow` says that it exceeds the threshold.

    `least_lost_s` is the part of it that is certain, even at the low edge of the expectation.
    """

    phase: Phase
    lost_s: float
    slow: bool
    least_lost_s: float


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The verdict on one request.

    `findings` maps cause to finding, the primary one first. `cleared` are causes that the facts
    contradict, `unused` those that are present without measurable cost. `missing` maps a cause to
    the fact it lacked, `failed` to the error it raised. `budget_ms_per_token` sums to what each
    generated token lost, `unexplained` included.
    """

    verdict: Verdict
    phase: Phase | None = None
    reason: str = ""
    findings: Mapping[str, Finding] = field(default_factory=dict)
    losses: tuple[PhaseLoss, ...] = ()
    budget_ms_per_token: Mapping[str, float] = field(default_factory=dict)
    cleared: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
