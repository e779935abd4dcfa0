"""Other programs held the GPU's memory when the model was loaded.

Signal:
A part of what each token reads is not on the GPU. The model would fit an empty GPU, and the memory
that others held when it was loaded is what was missing. Only that moment matters: an engine divides
the model once, so a program that has left since still explains today's split.

Not to be confused with:
- `model-too-big` and `context-oversized`: the model would not fit an empty GPU either.
- `gpu-shared`: another program computes on the GPU, instead of only holding memory.
- `reload-degradation`: nobody holds what is missing, or a leftover of this engine does.
- A desktop holds a few hundred MiB, which is normal.

Remedy:
Stop those programs, then load the model again.

Sources:
- ollama/ollama#10823 (a 62-layer model that needs 23.4 GiB: 17.8 GiB free at load, 49 of 63 layers
  on the GPU; 21.7 GiB free later, 62 of 63), #6529.
"""

from slowtok.detectors.analysis.placement.attribution import Attribution, attribute
from slowtok.detectors.analysis.placement.reasons import holders, is_larger_context, siblings_bytes
from slowtok.detectors.analysis.placement.remedies import (
    engine_name,
    holders_named,
    load_again,
    smaller_context,
    smaller_kv,
    steps,
    stop_others,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits
from slowtok.detectors.expectation.footprint import FIT_MARGIN_BYTES, GIB

TITLE = "GPU memory held by other programs at load"
TRAITS = Traits(requires="gpu-use", since_load=True)

SAME_RATIO = 0.5
"""Those that hold this much of it now are named as those that held it at load. Heuristic."""


def detect(case: Case) -> Finding | None:
    """Fire when the others' memory is what the model lacked."""
    cause = attribute(case, "vram-held-by-others")
    if cause is None:
        return None
    reason = cause.reason
    held = "held" if reason.at_load else "hold"
    when = " when the model was loaded" if reason.at_load else ""
    return Finding(
        phase="decode",
        confidence=cause.confidence,
        lost_s=cause.lost_s,
        summary=(
            f"{_who(case, cause)} {held} {reason.others_bytes / GIB:.1f} of the "
            f"GPU's {reason.room_bytes / GIB:.1f} GiB{when} and the model needs "
            f"{reason.needed_bytes / GIB:.1f}, so {cause.said}"
        ),
        remedy=_remedy(case, cause),
        evidence=(
            Evidence(
                name="held by others",
                value=reason.others_bytes / GIB,
                unit="GiB",
                limit=max(reason.room_bytes - reason.needed_bytes - reason.margin_bytes, 0.0) / GIB,
            ),
            Evidence(
                name="memory needed",
                value=reason.needed_bytes / GIB,
                unit="GiB",
                limit=max(reason.room_bytes - reason.others_bytes, 0.0) / GIB,
            ),
            *cause.evidence,
        ),
    )


def _who(case: Case, cause: Attribution) -> str:
    """Return who they are, by name where those that are there now held it."""
    if siblings_bytes(case, cause.placed) >= SAME_RATIO * cause.reason.others_bytes:
        return f"Other models of {engine_name(case.server)}"
    now = sum(other.memory_bytes or 0 for other in holders(case, cause.placed))
    names = holders_named(case, cause.placed)
    known = now >= SAME_RATIO * cause.reason.others_bytes
    return f"Other programs ({', '.join(names)})" if known else "Other programs"


def _remedy(case: Case, cause: Attribution) -> str:
    context = smaller_context(case, cause.reason) if is_larger_context(case) else None
    again = load_again(case)
    if _has_room_now(cause):
        return steps(f"{again}: there is room for all of it now")
    return steps(
        f"{stop_others(case, cause.placed)}, then {again}: how much of the model goes to the GPU "
        f"is decided when it is loaded",
        context and f"if they must stay, {context}",
        smaller_kv(case),
    )


def _has_room_now(cause: Attribution) -> bool:
    held, missing = cause.placed.vram, cause.placed.missing_bytes
    return held is not None and missing is not None and held.free_bytes > missing + FIT_MARGIN_BYTES
