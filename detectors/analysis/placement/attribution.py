"""Attribution of a model that is not all on the GPU to one root cause, with its reason.

Strategy: the four roots share one answer, so that exactly one of them is found. What they cost and
how sure they are is what holds for their symptom, which is found beside them.
"""

from dataclasses import dataclass, replace

from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu
from slowtok.detectors.analysis.gpu.spill import Spill, may_spill, spill_of, spilled_bytes
from slowtok.detectors.analysis.placement.cost import (
    confidence,
    evidence_of,
    is_fetched,
    lost_s,
    said_cost,
    said_share,
)
from slowtok.detectors.analysis.placement.reasons import Reason, Root, reason_for
from slowtok.detectors.analysis.placement.where import Placement, off_gpu, placement
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Missing
from slowtok.detectors.case.memo import cached_for_last_case

LIKELY_RATIO = 0.8
"""What is left of the confidence where not physics but the engine's margin, or what is held now
instead of at load, decides. Heuristic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """A placement with its reason; `said` is what follows from it, as the end of a summary."""

    placed: Placement
    reason: Reason
    confidence: float
    lost_s: float
    said: str
    evidence: tuple[Evidence, ...]


def attribute(case: Case, root: Root) -> Attribution | None:
    """Return what is not on the GPU and why, where `root` is why; None where all of it is there.

    Raises:
        Missing: a fact that decides it is not known.
    """
    if not case.device.gpus or case.server.gpu_layers == 0 or case.server.local is False:
        return None
    placed = off_gpu(case)
    if placed is None or is_fetched(case, placed):
        spilled = _spilled(case)
        return None if spilled is None else _of_spill(case, root, spilled)
    reason = reason_for(case, placed)
    if reason.root != root:
        return None
    return Attribution(
        placed=placed,
        reason=reason,
        confidence=_certainty(confidence(case, placed), reason),
        lost_s=lost_s(case, placed),
        said=f"{said_share(placed)}: {said_cost(case)}",
        evidence=evidence_of(case, placed),
    )


def _of_spill(case: Case, root: Root, spilled: Spill) -> Attribution | None:
    placed = placement(case)
    fetched = spilled_bytes(case, spilled.bytes_per_token)
    placed = placed if fetched is None else replace(placed, missing_bytes=fetched)
    reason = reason_for(case, placed)
    if reason.root != root:
        return None
    return Attribution(
        placed=placed,
        reason=reason,
        confidence=_certainty(spilled.confidence, reason),
        lost_s=spilled.lost_s,
        said=f"a part of it is in the machine's RAM, from where the GPU fetches it: "
        f"{said_cost(case)}",
        evidence=spilled.evidence[:1],
    )


@cached_for_last_case
def _spilled(case: Case) -> Spill | None:
    """Return what shows that the GPU fetches a part itself; None where that cannot be seen."""
    if may_spill(case) is False:
        return None
    try:
        spilled = spill_of(case) if decodes_on_gpu(case) else None
    except Missing:
        return None
    return spilled if spilled is not None and spilled.is_spill else None


def _certainty(confidence: float, reason: Reason) -> float:
    return round(confidence * (1.0 if reason.sure else LIKELY_RATIO), 2)
