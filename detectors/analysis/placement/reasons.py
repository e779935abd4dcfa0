"""The reason why a model is partly in RAM: the one change that would have put it on the GPU.

Strategy: asked in the order in which a cure helps. Would it fit an empty card at the context that
was used? At the one that is reserved? Did others hold what was missing when it was loaded? Did an
earlier load fit? Else the engine was told so, or guessed too cautiously. Each one is the reason
only if it frees most of what is missing: 2 GiB too many do not explain that 12 are in RAM. First
what is sure is looked for; only then what the gap that engines leave on purpose (1 GiB on each GPU)
makes likely.

Sources: the need is measured where the engine says how much is missing and the driver how much it
holds; elsewhere it is the least of `slowtok.detectors.expectation.footprint`.
"""

from dataclasses import dataclass
from typing import Literal

from slowtok.detectors.analysis.gpu.vram import MODEL_BYTES, Holder, VramSplit
from slowtok.detectors.analysis.placement.where import (
    MEMORY_SLACK_RATIO,
    MIN_CPU_RATIO,
    NOTHING_RATIO,
    TOLD,
    Placement,
    room_bytes,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import WHOLE_ON_GPU, ServerFacts
from slowtok.detectors.case.finding import need
from slowtok.detectors.expectation.footprint import (
    FIT_MARGIN_BYTES,
    GIB,
    kv_bytes,
    reserved_tokens,
)

Root = Literal[
    "model-too-big", "context-oversized", "vram-held-by-others", "reload-degradation", "told"
]

LEAST_CUDA_CONTEXT_BYTES = int(0.3 * GIB)
"""The CUDA context alone, which no engine counts."""

MAX_RATIO = 0.5
"""A root frees more than half of what is missing, or another one has to explain it. Heuristic: half
is what "most" means."""

GOOD_PART_RATIO = 0.1
"""So much of a model is worth a GPU: engines that split a model put even a few of its layers there.
Heuristic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a part is not on a GPU.

    `needed_bytes` is what all of it takes there at the reserved context, `needed_for_used_bytes` at
    the one that was used, `room_bytes` what empty GPUs have. `others_bytes` is what was not to be
    had at load, because others held it; `at_load` says that this was seen at that time.
    `margin_bytes` is what the engine leaves free on purpose.
    """

    root: Root
    sure: bool
    needed_bytes: float
    needed_for_used_bytes: float
    room_bytes: float
    others_bytes: float
    at_load: bool
    used_tokens: int | None
    margin_bytes: float = 0.0

    @property
    def limit_bytes(self) -> float:
        """What the model had to fit into: what engines leave free counts where it decided."""
        return self.room_bytes - (0.0 if self.sure else self.margin_bytes)


def reason_for(case: Case, placed: Placement) -> Reason:
    """Return why a part of the model is not on a GPU.

    Raises:
        Missing: the size of the model or of the GPUs' memory is not known.
    """
    size = need(placed.need, "size of the model file")
    used = used_tokens(case)
    room = need(room_bytes(case, placed.vram), "memory of the GPU")
    others, at_load = others_at_load_bytes(case, placed, room)
    memory = _Memory(
        needed_bytes=needed_bytes(case, placed),
        used_bytes=needed_bytes(case, placed, used),
        room_bytes=room,
        others_bytes=others,
        margin_bytes=FIT_MARGIN_BYTES * size.gpus if decides_itself(case.server) else 0,
        slack_bytes=size.most_overhead_bytes - size.least_overhead_bytes,
        missing_bytes=placed.missing_bytes,
    )
    root, sure = _root(case, placed, memory)
    return Reason(
        root=root,
        sure=sure and (at_load or root != "vram-held-by-others"),
        needed_bytes=memory.needed_bytes,
        needed_for_used_bytes=memory.used_bytes,
        room_bytes=room,
        others_bytes=others,
        at_load=at_load,
        used_tokens=used,
        margin_bytes=memory.margin_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """What is needed (at the reserved context, at the one used), what there is, what is missing.

    `margin_bytes` is what the engine leaves free on purpose, `slack_bytes` by how much its buffers
    may be larger than the least that is counted in what is needed.
    """

    needed_bytes: float
    used_bytes: float
    room_bytes: float
    others_bytes: float
    margin_bytes: float
    slack_bytes: float
    missing_bytes: float | None

    @property
    def over_bytes(self) -> float:
        """What of the context in use does not fit empty GPUs."""
        return self.used_bytes - self.room_bytes

    @property
    def reserve_bytes(self) -> float:
        """What does not fit because more context is reserved than used."""
        return self.needed_bytes - max(self.used_bytes, self.room_bytes)

    def is_most(self, freed_bytes: float) -> bool:
        """Return True if that much is most of what is missing."""
        return self.missing_bytes is None or freed_bytes >= MAX_RATIO * self.missing_bytes

    def explains(self, freed_bytes: float) -> bool:
        """Return True if that much, with the margin of an engine, is most of what is missing."""
        return freed_bytes > 0 and self.is_most(freed_bytes + self.margin_bytes + self.slack_bytes)


def _root(case: Case, placed: Placement, memory: _Memory) -> tuple[Root, bool]:
    """Return the root, and whether it is sure: the first that explains most of what is missing."""
    margin, itself = memory.margin_bytes, decides_itself(case.server)
    left_out = is_left_out(placed, memory.others_bytes)
    counts = {"model-too-big": not left_out, "context-oversized": itself or not left_out}
    over: dict[Root, float] = {
        "model-too-big": memory.over_bytes,
        "context-oversized": memory.reserve_bytes,
    }
    capacity = {root: freed for root, freed in over.items() if counts[root]}
    for root, freed in capacity.items():
        if memory.explains(freed):
            return root, True
    if (found := _by_load(case, placed, memory)) is not None:
        return found, True
    for root, freed in capacity.items():
        if memory.explains(freed + margin):
            return root, False
    return "told", True


def _by_load(case: Case, placed: Placement, memory: _Memory) -> Root | None:
    """Return what was wrong when it was loaded; None where nothing was."""
    if _is_worse_load(case, placed, memory):
        return "reload-degradation"
    if _others_had_it(memory):
        return "vram-held-by-others"
    better = better_load_bytes(case, memory.needed_bytes + memory.margin_bytes)
    return None if better is None else "reload-degradation"


def is_left_out(placed: Placement, others_bytes: float) -> bool:
    """Return True if nothing is on a GPU although a good part of it would have found room there.

    Then it is not the model's size that keeps it away. `others_bytes` is what was not to be had.
    """
    held, size = placed.vram, placed.need
    if placed.cpu_ratio < NOTHING_RATIO or held is None or size is None:
        return False
    left = held.usable_bytes - others_bytes - size.most_overhead_bytes
    return left >= GOOD_PART_RATIO * size.placed_bytes


def _others_had_it(memory: _Memory) -> bool:
    """Return True if the others' memory is what was missing, not the margin alone."""
    others, wanted = memory.others_bytes, memory.needed_bytes + memory.margin_bytes
    if others < MODEL_BYTES or wanted <= memory.room_bytes - others:
        return False
    missing = memory.missing_bytes
    fits = wanted <= memory.room_bytes or (missing is not None and missing <= others)
    return fits and memory.is_most(others)


def _is_worse_load(case: Case, placed: Placement, memory: _Memory) -> bool:
    """Return True if an earlier load fitted, and nobody but this engine holds what is missing now.

    Memory on nobody's name, or on that of a runner that Ollama has left behind.
    """
    held, best = placed.vram, better_load_bytes(case, memory.needed_bytes + memory.margin_bytes)
    if best is None or held is None or held.server_bytes is None:
        return False
    own = {p.name for s in case.gpu for p in s.processes or () if p.is_server and p.name}
    left = own if case.server.kind == "ollama" else set()
    rest = sum(other.memory_bytes or 0 for other in held.others if other.name in left)
    foreign = sum(other.memory_bytes or 0 for other in held.others if other.name not in left)
    unowned = rest + (held.hidden_bytes or 0)
    return memory.is_most(unowned) and not memory.is_most(foreign + siblings_bytes(case, placed))


def needed_bytes(case: Case, placed: Placement, context_tokens: int | None = None) -> float:
    """Return what the whole model takes on GPUs, at the reserved context or at another one.

    Raises:
        Missing: the size of the model is not known.
    """
    size = need(placed.need, "size of the model file")
    measured = _measured_bytes(case, placed)
    whole = size.least_bytes if measured is None else max(measured, size.placed_bytes)
    if case.server.kind in WHOLE_ON_GPU:  # the cache is what was left
        whole = size.placed_bytes - (size.kv_bytes or 0.0) + size.least_overhead_bytes
        kv = kv_bytes(case.model, case.server, context_tokens or 0)
        return whole + (kv or 0.0)
    if context_tokens is None or size.kv_bytes is None:
        return whole
    kv = kv_bytes(case.model, case.server, context_tokens)
    if kv is None:
        return whole
    beside = whole - size.kv_bytes
    if case.server.slots is None:  # what buffers cannot be is the cache of slots that nobody told
        beside = min(beside, size.placed_bytes - size.kv_bytes + size.most_overhead_bytes)
    return beside + min(kv, size.kv_bytes)


def used_tokens(case: Case) -> int | None:
    """Return the tokens of context in use: this request's, as often as others ran beside it."""
    prompt, completion = case.timeline.tokens.prompt, case.timeline.tokens.completion
    if prompt is None:
        return None
    return (prompt + (completion or 0)) * (1 + case.neighbours.decode_max)


def decides_itself(server: ServerFacts) -> bool:
    """Return True if the engine chose the split: Ollama hands its own guess to its child, too."""
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
    beside = (held.server_bytes or 0) - server.loaded_gpu_bytes - LEAST_CUDA_CONTEXT_BYTES
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
    """Return True if more context is reserved than this request used."""
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
        sums.append(server.loaded_gpu_bytes + LEAST_CUDA_CONTEXT_BYTES + missing)
    return min(sums, default=None)
