"""Checks what fits where: weights, KV cache and free memory, on the GPUs or in RAM."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slowtok.detectors.analysis.gpu.gpu_window import by_gpu
from slowtok.detectors.analysis.gpu.vram import MODEL_BYTES, Holder, VramSplit, newest_split
from slowtok.detectors.analysis.placement.remedies import (
    engine_name,
    gpu_advice,
    layers_option,
    layers_said,
)
from slowtok.detectors.analysis.placement.where import MIN_CPU_RATIO
from slowtok.detectors.case.machine import GpuSample, GpuVendor
from slowtok.detectors.case.named_facts import how_to_enable
from slowtok.detectors.expectation.footprint import Footprint, context_that_fits, footprint
from slowtok.proxy.inspection.check import Check, State, gib, measured
from slowtok.proxy.inspection.seen import EngineSeen, Seen, ServingSeen

SURELY_MISSING_RATIO = 0.85
"""A server that holds less VRAM than this share of its weights has some of them elsewhere: token
embeddings alone stay in RAM by design, and are less. Heuristic."""

SHOWN_HOLDERS = 5
NOT_ATTRIBUTED = (
    "the driver names nobody for it: another container (run slowtok with --pid=host), a display, "
    "or memory that programs share with the CPU"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBeside:
    """The part of a model that is not on GPUs, who says so, and whether it was asked for."""

    cpu_ratio: float
    source: str
    asked: bool = False


def check_memory(seen: Seen) -> Iterator[Check]:
    """Yield the machine's and each GPU's memory, then whether each model fits."""
    yield from _ram(seen)
    for index, samples in seen.gpu_samples().items():
        yield from _vram(f"GPU {index}", samples)
    for engine in seen.engines:
        if engine.is_here:
            for serving in engine.serving:
                yield _fit(seen, engine, serving)


def _vram(about: str, samples: Sequence[GpuSample]) -> Iterator[Check]:
    room = newest_split(samples)
    if room is None:
        return
    driver_bytes = room.total_bytes - room.usable_bytes
    held = [f"engines {gib(room.server_bytes)}"] if room.server_bytes else []
    held += [f"{_name(other)} {gib(other.memory_bytes)}" for other in _largest(room)]
    held += [f"not attributed {gib(room.hidden_bytes)}"] if room.hidden_bytes else []
    held += [f"driver {gib(driver_bytes)}"] if driver_bytes else []
    hides_much = (room.hidden_bytes or 0) > MODEL_BYTES
    yield Check(
        area="memory", name="vram", about=about, state="note" if hides_much else "ok",
        advice=NOT_ATTRIBUTED if hides_much else None,
        said=f"{gib(room.total_bytes)}: {', '.join([*held, f'free {gib(room.free_bytes)}'])}",
        numbers=measured(
            total_bytes=room.total_bytes,
            usable_bytes=room.usable_bytes,
            free_bytes=room.free_bytes,
            server_bytes=room.server_bytes,
            others_bytes=room.others_bytes,
            unassigned_bytes=room.unassigned_bytes,
            hidden_bytes=room.hidden_bytes,
        ),
    )  # fmt: skip


def _largest(room: VramSplit) -> Sequence[Holder]:
    return room.others[:SHOWN_HOLDERS]


def _name(process: Holder) -> str:
    return f"{process.name} (pid {process.pid})" if process.name else f"pid {process.pid}"


def _others_bytes(room: VramSplit) -> int:
    """Return what the others are known to hold, at least."""
    return sum(other.memory_bytes or 0 for other in room.others)


def _ram(seen: Seen) -> Iterator[Check]:
    total = seen.device.ram_bytes
    available = next((s.available_bytes for s in reversed(seen.host) if s.available_bytes), None)
    if total is None or available is None:
        return
    yield Check(
        area="memory", name="ram", state="ok",
        said=f"{gib(total)}, of which {gib(available)} are available",
        numbers={"total_bytes": total, "available_bytes": available},
    )  # fmt: skip


def _fit(seen: Seen, engine: EngineSeen, serving: ServingSeen) -> Check:
    need = footprint(serving.model, serving.server)
    if need is None:
        return Check(
            area="memory", name="fit", about=engine.name, state="unknown",
            said=f"{serving.label}: what it needs is not known{_why(serving)}",
            advice=how_to_enable("size of the model file"),
        )  # fmt: skip
    if _is_left_out(seen, serving):
        return Check(
            area="memory", name="fit", about=engine.name, state="warn", numbers=_numbers(need),
            said=f"{_needs(serving, need)}: none of it is on a GPU, although this machine has one",
            advice=gpu_advice(serving.server.kind, _vendor(seen)),
        )  # fmt: skip
    gpus = seen.gpus_of(serving.server)
    if not gpus or any(gpu.unified_memory for gpu in gpus):
        return _fit_ram(seen, engine, serving, need)
    samples = by_gpu(engine.gpu)
    rooms = [room for gpu in gpus if (room := newest_split(samples.get(gpu.index, ())))]
    return _fit_vram(engine, serving, need, rooms)


def _is_left_out(seen: Seen, serving: ServingSeen) -> bool:
    """Return True if the engine surely uses no GPU without having been told so."""
    server = serving.server
    own_memory = any(gpu.unified_memory is False for gpu in seen.device.gpus or ())
    return own_memory and server.gpu_indices == () and server.gpu_layers != 0 and not server.slept


def _vendor(seen: Seen) -> GpuVendor | None:
    """Return the maker of the first GPU that has memory of its own."""
    gpus = seen.device.gpus or ()
    return next((gpu.vendor for gpu in gpus if gpu.unified_memory is False), None)


def _why(serving: ServingSeen) -> str:
    return f" ({serving.unreadable})" if serving.unreadable else ""


def _needs(serving: ServingSeen, need: Footprint) -> str:
    kv = "KV cache of unknown size"
    if need.kv_bytes is not None and need.context_tokens is not None:
        kind = serving.server.kv_type_k or "16-bit"
        kv = f"KV {gib(need.kv_bytes)} for {need.context_tokens:,} tokens ({kind})"
    return f"{serving.label}: weights {gib(need.weights_bytes)} + {kv}"


def _numbers(need: Footprint, **more: float | None) -> dict[str, float]:
    return measured(
        weights_bytes=need.weights_bytes,
        kv_bytes=need.kv_bytes,
        context_tokens=need.context_tokens,
        **more,
    )


def _fit_ram(seen: Seen, engine: EngineSeen, serving: ServingSeen, need: Footprint) -> Check:
    least = need.weights_bytes + (need.kv_bytes or 0)
    total = seen.device.ram_bytes
    available = next((s.available_bytes for s in reversed(seen.host) if s.available_bytes), None)
    anonymous = next((s.server_anon_bytes for s in reversed(engine.host) if s.server_anon_bytes), 0)
    # what the server has taken for itself is no longer available, but it is there
    room = None if available is None else available + anonymous
    numbers = _numbers(need, room_bytes=room, total_bytes=total)
    said = f"{_needs(serving, need)}, in RAM"
    if total is not None and least > total:
        return Check(
            area="memory", name="fit", about=engine.name, state="warn", numbers=numbers,
            said=f"{said}: more than the machine has ({gib(total)})",
            advice="weights are then read from the disk again and again: take a smaller "
            "quantisation or a smaller context",
        )  # fmt: skip
    if room is not None and least > room and not serving.server.slept:
        return Check(
            area="memory", name="fit", about=engine.name, state="warn", numbers=numbers,
            said=f"{said}: only {gib(room)} are left for it",
            advice="stop other programs that hold RAM, or take a smaller quantisation or context",
        )  # fmt: skip
    return Check(
        area="memory", name="fit", about=engine.name, state="ok", said=said, numbers=numbers
    )


def _fit_vram(
    engine: EngineSeen, serving: ServingSeen, need: Footprint, rooms: Sequence[VramSplit]
) -> Check:
    usable = sum(room.usable_bytes for room in rooms)
    held = [room.server_bytes for room in rooms]
    server_bytes = None if not rooms or None in held else sum(size or 0 for size in held)
    beside = beside_gpu(serving, need, server_bytes)
    said = f"{_needs(serving, need)} + buffers of 0.6-2.1 GiB, on {gib(usable)} of VRAM"
    numbers = _numbers(
        need,
        usable_bytes=usable or None,
        server_bytes=server_bytes,
        cpu_ratio=beside.cpu_ratio if beside else None,
    )
    state: State = "ok"
    advice = None
    if serving.server.slept:
        said += "; it is unloaded now"
    elif beside is None:
        state, advice = "unknown", how_to_enable("GPU memory of the server")
        said += "; how much of the model is there cannot be seen"
    elif beside.cpu_ratio > MIN_CPU_RATIO:
        state = "note" if beside.asked else "warn"
        said += f": about {beside.cpu_ratio:.0%} of the model is not there ({beside.source})"
        advice = _cure(serving, need, rooms)
    return Check(
        area="memory", name="fit", about=engine.name, state=state, said=said, advice=advice,
        numbers=numbers,
    )  # fmt: skip


def beside_gpu(
    serving: ServingSeen, need: Footprint, server_bytes: float | None
) -> MemoryBeside | None:
    """Return how much of a loaded model is not on GPUs; None where nothing tells.

    By the engine's word, else by its command line, else by what its processes hold: less than the
    weights alone is a proof that some are elsewhere, more proves nothing.
    """
    server, layers = serving.server, serving.model.layers
    if server.slept:
        return None
    if server.loaded_bytes and server.loaded_gpu_bytes is not None:
        ratio = 1 - server.loaded_gpu_bytes / server.loaded_bytes
        source = f"{engine_name(server)} says so"
        return MemoryBeside(cpu_ratio=max(ratio, 0.0), source=source)
    if server.gpu_layers is not None and layers and 0 <= server.gpu_layers < layers:
        ratio = 1 - server.gpu_layers / (layers + 1)  # the output counts as one more
        source = f"{layers_option(server.kind)} is {server.gpu_layers}"
        return MemoryBeside(cpu_ratio=ratio, source=source, asked=True)
    if server_bytes is None or server.unified_memory:
        return None
    if server_bytes >= SURELY_MISSING_RATIO * need.weights_bytes:
        return MemoryBeside(cpu_ratio=0.0, source="its processes hold enough VRAM")
    ratio = 1 - server_bytes / need.weights_bytes
    source = f"its processes hold {gib(server_bytes)} of VRAM"
    return MemoryBeside(cpu_ratio=ratio, source=source, asked=bool(server.cpu_moe_layers))


def _cure(serving: ServingSeen, need: Footprint, rooms: Sequence[VramSplit]) -> str:
    usable = sum(room.usable_bytes for room in rooms)
    if need.fits(usable) is False:
        tokens = context_that_fits(serving.model, serving.server, usable)
        if tokens:
            return (
                f"it would fit with a context of {tokens:,} tokens over all slots: set that, then "
                "load the model again"
            )
        return "it cannot fit at any context: take a smaller quantisation or a smaller model"
    others = sum(_others_bytes(room) for room in rooms)
    if need.fits(usable - others) is not True and others:
        names = ", ".join(_name(other) for room in rooms for other in _largest(room)[:3])
        return f"others hold {gib(others)} ({names}): end those, then load the model again"
    would = "may" if need.fits(usable) is None else "would"
    how = layers_said(serving.server.kind, None, serving.model.layers)
    return f"it {would} fit: {how}, then load the model again"
