"""Loads of one model again and again: how many there were, and why the newest one was needed.

Invariant: only loads that were noticed count; what happened before slowtok looked is not known.
"""

from dataclasses import dataclass
from typing import Literal

from slowtok.detectors.case import Case, ModelLoad
from slowtok.detectors.footprint import GIB

THRASH_S = 600.0
THRASH_LOADS = 2
"""Two loads of one model within ten minutes. Proposed, no published source."""

FILLED_RATIO = 0.95
"""Of a GPU's memory, beyond which nothing more fits. No published source."""

MAX_NAME_CHARS = 60

Why = Literal["other-model", "other-context", "restarted", "put-away"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """`count` loads of a model within ten minutes, of which `newest` followed `before`.

    `other` is the model that was loaded between the two, where there was one.
    """

    count: int
    why: Why
    newest: ModelLoad
    before: ModelLoad
    other: ModelLoad | None = None


def reload_of(case: Case) -> Reload | None:
    """Return the loads of the case's model, None where there were fewer than `THRASH_LOADS`."""
    recent = [load for load in case.history.loads if load.age_s <= THRASH_S]
    mine = [load for load in recent if load.model == recent[0].model]
    if len(mine) < THRASH_LOADS or recent[0] is not case.history.loads[0]:
        return None
    newest, before = mine[:2]
    between = recent[recent.index(newest) + 1 : recent.index(before)]
    other = next(iter(between), None)
    why: Why = "put-away"
    if other is not None:
        why = "other-model"
    elif _differ(newest.context_tokens, before.context_tokens):
        why = "other-context"
    elif case.server.uptime_s is not None and case.server.uptime_s < before.age_s:
        why = "restarted"
    return Reload(count=len(mine), why=why, newest=newest, before=before, other=other)


def because(reload: Reload) -> str:
    """Return the reason as the end of a sentence."""
    return {
        "other-model": f"{_name(reload.other)} was loaded in between and took its place",
        "other-context": (
            f"a context of {reload.newest.context_tokens} tokens was asked for, and one of "
            f"{reload.before.context_tokens} before"
        ),
        "restarted": "the engine was started again",
        "put-away": "the engine had put it away in between",
    }[reload.why]


def remedy(case: Case, reload: Reload) -> str | None:
    """Return what ends the loads, None where it is what ends a single one, too."""
    if reload.why == "other-model":
        return _room_for_both(case, reload)
    if reload.why == "other-context":
        most = max(reload.newest.context_tokens or 0, reload.before.context_tokens or 0)
        how = {
            "ollama": f" (num_ctx {most} in each request, or in none and OLLAMA_CONTEXT_LENGTH)",
        }.get(case.server.kind, "")
        return f"Let all clients ask for the same context length, {most} tokens{how}."
    if reload.why == "restarted":
        return "See in the engine's own log why it started again (a crash, too little memory)."
    return None


def _room_for_both(case: Case, reload: Reload) -> str:
    one_for_all = "use one model for both purposes, or a smaller quantisation or context"
    mine, total = reload.newest.server_gpu_bytes, _gpu_bytes(case)
    other = None if reload.other is None else reload.other.server_gpu_bytes
    keep = {
        "ollama": "set OLLAMA_MAX_LOADED_MODELS=2 and keep_alive: -1",
        "llama-server": "let llama-server keep both (--models-max 2)",
    }.get(case.server.kind, "let the engine keep both in memory")
    if mine is None or other is None or total is None:
        return f"{keep[0].upper()}{keep[1:]} if both fit; else {one_for_all}."
    sums = f"{mine / GIB:.1f} + {other / GIB:.1f} of {total / GIB:.1f} GiB"
    if mine + other <= FILLED_RATIO * total:
        return f"Both models fit at once ({sums}): {keep}."
    return f"The two models do not fit at once ({sums}): {one_for_all}, so that both stay loaded."


def _gpu_bytes(case: Case) -> int | None:
    mine = case.server.gpu_indices
    totals = [g.total_bytes for g in case.device.gpus or () if not mine or g.index in mine]
    known = [total for total in totals if total is not None]
    return sum(known) if known and len(known) == len(totals) else None


def _differ(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one != other


def _name(load: ModelLoad | None) -> str:
    name = load.model if load is not None else None
    if not name:
        return "another model"
    return name[:MAX_NAME_CHARS].encode("ascii", "replace").decode().replace("\n", " ")
