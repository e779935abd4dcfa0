"""Why a part of a model is not on a GPU: the one change that would have put all of it there.

Strategy: asked in the order in which a cure helps. Would it fit an empty card at the context that
was used? At the one that is reserved? Did others hold what was missing when it was loaded? Did an
earlier load fit? Else the engine was told so, or guessed too cautiously. First what is sure is
looked for; only then what the gap that engines leave on purpose (1 GiB) makes likely.

Sources: the need is measured where the engine says how much is missing and the driver how much it
holds; elsewhere it is the least of `slowtok.detectors.footprint`.
"""

from dataclasses import dataclass
from typing import Literal

from slowtok.detectors.case import Case
from slowtok.detectors.engine import ServerFacts
from slowtok.detectors.finding import need
from slowtok.detectors.footprint import (
    FIT_MARGIN_BYTES,
    GIB,
    LEAST_OVERHEAD_BYTES,
    WHOLE_ON_GPU,
    kv_bytes,
    reserved_tokens,
)
from slowtok.detectors.placement import (
    MEMORY_SLACK_RATIO,
    MIN_CPU_RATIO,
    TOLD,
    Placement,
    room_bytes,
)
from slowtok.detectors.vram import MODEL_BYTES, Holder, VramSplit

Root = Literal[
    "model-too-big", "context-oversized", "vram-held-by-others", "reload-degradation", "told"
]

CONTEXT_BYTES = int(0.3 * GIB)
"""The CUDA context alone, which no engine counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a part is not on a GPU.

    `needed_bytes` is what all of it takes there at the reserved context, `needed_for_used_bytes` at
    the one that was used, `room_bytes` what empty GPUs have. `others_bytes` is what was not to be
    had at load, because others held it; `at_load` says that this was seen at that time.
    """

    root: Root
    sure: bool
    needed_bytes: float
    needed_for_used_bytes: float
    room_bytes: float
    others_bytes: float
    at_load: bool
    used_tokens: int | None


def why(case: Case, placed: Placement) -> Reason:
    """Return why a part of the model is not on a GPU.

    Raises:
        Missing: the size of the model or of the GPUs' memory is not known.
    """
    needed = needed_bytes(case, placed)
    used = used_tokens(case)
    needed_for_used = needed_bytes(case, placed, used)
    room = need(room_bytes(case, placed.vram), "memory of the GPU")
    others, at_load = others_at_load_bytes(case, placed, room)
    margin = FIT_MARGIN_BYTES if decides_itself(case.server) else 0
    root, sure = _root(
        case, placed, room=room, others=others, margin=margin, needed=needed, used=needed_for_used
    )
    return Reason(
        root=root,
        sure=sure and (at_load or root != "vram-held-by-others"),
        needed_bytes=needed,
        needed_for_used_bytes=needed_for_used,
        room_bytes=room,
        others_bytes=others,
        at_load=at_load,
        used_tokens=used,
    )


def _root(
    case: Case,
    placed: Placement,
    *,
    room: float,
    others: float,
    margin: float,
    needed: float,
    used: float,
) -> tuple[Root, bool]:
    """Return the root, and whether it is sure."""
    if max(used, needed) > room:
        return "model-too-big" if used > room else "context-oversized", True
    if _others_had_it(placed, room=room, others=others, margin=margin, needed=needed):
        return "vram-held-by-others", True
    if better_load_bytes(case, needed + margin) is not None:
        return "reload-degradation", True
    if max(used, needed) + margin > room:
        return "model-too-big" if used + margin > room else "context-oversized", False
    return "told", True


def _others_had_it(
    placed: Placement, *, room: float, others: float, margin: float, needed: float
) -> bool:
    """Say whether the others' memory is what was missing, not the margin alone."""
    if others < MODEL_BYTES or needed + margin <= room - others:
        return False
    missing = placed.missing_bytes
    return needed + margin <= room or (missing is not None and missing <= others)


def needed_bytes(case: Case, placed: Placement, context_tokens: int | None = None) -> float:
    """Return what the whole model takes on GPUs, at the reserved context or at another one.

    Raises:
        Missing: the size of the model is not known.
    """
    size = need(placed.need, "size of the model file")
    measured = _measured_bytes(case, placed)
    whole = size.least_bytes if measured is None else max(measured, size.placed_bytes)
    if case.server.kind in WHOLE_ON_GPU:  # the cache is what was left
        whole = size.placed_bytes - (size.kv_bytes or 0.0) + LEAST_OVERHEAD_BYTES
        kv = kv_bytes(case.model, case.server, context_tokens or 0)
        return whole + (kv or 0.0)
    if context_tokens is None or size.kv_bytes is None:
        return whole
    kv = kv_bytes(case.model, case.server, context_tokens)
    return whole if kv is None else whole - size.kv_bytes + min(kv, size.kv_bytes)


def used_tokens(case: Case) -> int | None:
    """Return the tokens of context in use: this request's, as often as others ran beside it."""
    prompt, completion = case.timeline.tokens.prompt, case.timeline.tokens.completion
    if prompt is None:
        return None
    return (prompt + (completion or 0)) * (1 + case.neighbours.decode_max)


def decides_itself(server: ServerFacts) -> bool:
    """Say whether the engine chose the split: Ollama hands its own guess to its child, too."""
    return server.kind in {"ollama", "lm-studio"} or server.gpu_layers in (None, -1)


def others_at_load_bytes(case: Case, placed: Placement, room: float) -> tuple[float, bool]:
    """Return what others held when the model was loaded, and whether that was seen.

    Where it was not seen, what they hold now. Other models of the same engine are others.
    """
    load = case.history.loads[0] if case.history.loads else None
    if load is not None and load.others_bytes is not None:
        return float(load.others_bytes), True
    if load is not None and load.free_before_bytes is not None:
        return max(room - load.free_before_bytes, 0.0), True
    if placed.vram is None:
        return 0.0, False
    return float(_held_by_others(placed.vram) + siblings_bytes(case, placed)), False


def siblings_bytes(case: Case, placed: Placement) -> int:
    """Return what other models of the same engine hold on the GPUs."""
    server, held = case.server, placed.vram
    if len(server.loaded_models or ()) < 2 or held is None or server.loaded_gpu_bytes is None:
        return 0
    beside = (held.server_bytes or 0) - server.loaded_gpu_bytes - CONTEXT_BYTES
    return beside if beside > MODEL_BYTES else 0


def holders(case: Case, placed: Placement) -> tuple[Holder, ...]:
    """Return who else holds a notable part of the GPUs' memory now, the largest first."""
    known = () if placed.vram is None else placed.vram.others
    return tuple(other for other in known if (other.memory_bytes or 0) >= MODEL_BYTES // 4)


def better_load_bytes(case: Case, needed: float = 0.0) -> int | None:
    """Return what an earlier load of the same configuration held on GPUs, if clearly more.

    None where there was room for `needed` and the engine took none of it: that is no question of
    memory.
    """
    if not case.history.loads or case.history.loads[0].server_gpu_bytes is None:
        return None
    now, *before = case.history.loads
    held = now.server_gpu_bytes or 0
    had_room = now.free_before_bytes is not None and now.free_before_bytes >= needed > 0
    if had_room and held < MIN_CPU_RATIO * needed:
        return None
    alike = [
        load.server_gpu_bytes
        for load in before
        if load.model == now.model
        and load.context_tokens == now.context_tokens
        and load.server_gpu_bytes is not None
    ]
    best = max(alike, default=None)
    return best if best is not None and held < MEMORY_SLACK_RATIO * best else None


def is_larger_context(case: Case) -> bool:
    """Say whether more context is reserved than this request used."""
    used, reserved = used_tokens(case), reserved_tokens(case.server)
    return used is not None and reserved is not None and reserved > used


def _held_by_others(held: VramSplit) -> int:
    known = sum(other.memory_bytes or 0 for other in held.others)
    if held.server_bytes is None:  # what is hidden may be the server's own
        return known
    return known + (held.hidden_bytes or 0)


def _measured_bytes(case: Case, placed: Placement) -> float | None:
    """Return what the engine holds together with what it says is missing; None if either is not."""
    missing, server = placed.missing_bytes, case.server
    if placed.source not in TOLD or missing is None:
        return None
    sums = []
    if placed.vram is not None and placed.vram.server_bytes and not siblings_bytes(case, placed):
        sums.append(placed.vram.server_bytes + missing)
    if server.loaded_bytes and server.loaded_gpu_bytes is not None:
        sums.append(server.loaded_gpu_bytes + CONTEXT_BYTES + missing)
    return min(sums, default=None)
