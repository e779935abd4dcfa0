"""Loads of models that were noticed, by engine, with a server's GPU memory over time.

Strategy: a load shows in the request that waited for it, in an engine that was started again, or
in the GPU memory that its processes took. What was there before the first request is remembered
too, to compare later loads with, but is no load that was noticed: nobody knows when it was. What a
process holds is its own from the moment it is known to be the server's, also in samples from
before: a server that is loading may not have been recognised yet.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slowtok.detectors.analysis.gpu.vram import MODEL_BYTES, VramSplit, split_vram, sum_if_all
from slowtok.detectors.analysis.phase_loss import MIN_LOAD_S
from slowtok.detectors.case.case import Case, ModelLoad
from slowtok.detectors.case.machine import GpuProcess, GpuSample
from slowtok.proxy.history.keys import gpus_of, model_of
from slowtok.proxy.runtime.bounded_map import BoundedMap

MAX_LOADS = 20
MAX_ENGINES = 64
MAX_PIDS = 32
MAX_AGE_S = 24 * 3600.0  # of loads before the one that counts

LOOK_BACK_S = 600.0  # samples are kept so long

OVERLAP_S = 5.0
"""Idle samples come every 2 s: so far back the one just before a moment surely lies."""

ASKED_AGAIN_S = 35.0
"""Engines are asked every 30 s what they have loaded: an older load is in their answer."""

RISE_RATIO = 0.5
"""Below this share of what it holds now, a server did not have its model. Heuristic."""

RISEN_RATIO = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The memory of the GPUs that serve at `at_s`: the server's, everyone else's, free.

    `by_pid` has those processes of the server that tell what they hold.
    """

    at_s: float
    server_bytes: int | None
    others_bytes: int | None
    free_bytes: int
    by_pid: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """A load seen from outside: what was there just before, and when it was done."""

    before: Held
    done_at_s: float


def held_over_time(
    samples: Iterable[GpuSample], gpus: Collection[int], pids: Collection[int]
) -> list[Held]:
    """Return what was held at each listing of processes, oldest first.

    `gpus` are those that serve; `pids` are the server's, also those it had before.
    """
    newest: dict[int, GpuSample] = {}
    held = []
    for sample in sorted(samples, key=lambda sample: sample.at_s):
        if sample.processes is None or sample.index not in gpus:
            continue
        seen = tuple([_seen(p, pids) for p in sample.processes])
        newest[sample.index] = (
            sample if seen == sample.processes else replace(sample, processes=seen)
        )
        if len(newest) == len(gpus) and (found := _together(sample.at_s, newest.values())):
            held.append(found)
    return held


def last_rise(held: Sequence[Held]) -> Rise | None:
    """Return the load that what is held at the end comes from; None where none was seen."""
    known = [(h, h.server_bytes) for h in held if h.server_bytes is not None]
    if not known or known[-1][1] < MODEL_BYTES:
        return None
    now = known[-1][1]
    low = next((i for i in reversed(range(len(known))) if known[i][1] < RISE_RATIO * now), None)
    if low is None:
        return None
    risen = next(h for h, count in known[low + 1 :] if count >= RISEN_RATIO * now)
    while low > 0 and known[low - 1][1] < known[low][1]:
        low -= 1
    if now - known[low][1] < MODEL_BYTES:
        return None
    return Rise(before=known[low][0], done_at_s=risen.at_s)


def lowest(held: Sequence[Held], from_s: float, to_s: float) -> Held | None:
    """Return the moment between two times at which the server held least, the latest such."""
    known = [h for h in held if from_s <= h.at_s <= to_s and h.server_bytes is not None]
    return min(reversed(known), key=lambda h: h.server_bytes or 0, default=None)


def _seen(process: GpuProcess, pids: Collection[int]) -> GpuProcess:
    is_server = process.pid in pids
    if process.is_server in (None, is_server):
        return process
    return replace(process, is_server=is_server)


def _together(at_s: float, samples: Iterable[GpuSample]) -> Held | None:
    seen = tuple(samples)
    known = [memory for memory in map(split_vram, seen) if memory is not None]
    if len(known) < len(seen):
        return None
    by_pid: Counter[int] = Counter()
    for process in (p for sample in seen for p in sample.processes or () if p.is_server):
        by_pid[process.pid] += process.memory_bytes or 0
    return Held(
        at_s=at_s,
        server_bytes=sum_if_all(memory.server_bytes for memory in known),
        others_bytes=sum_if_all(_others(memory) for memory in known),
        free_bytes=sum(memory.free_bytes for memory in known),
        by_pid=by_pid,
    )


def _others(memory: VramSplit) -> int | None:
    """Return what is neither free nor the server's; None where that cannot be told apart."""
    if memory.server_bytes is None:
        return None
    if memory.hidden_bytes is None:
        return memory.others_bytes
    return max(memory.usable_bytes - memory.free_bytes - memory.server_bytes, 0)


@dataclass(slots=True, kw_only=True)
class _Load:
    """One load, from `begin_s` to `at_s`; `noticed` says that these times are known.

    `seen_bytes` is what the driver said that the model took, `told_bytes` the engine's word.
    `others_bytes` and `free_bytes` are from just before it; other models of the engine are others.
    """

    key: str
    model: str | None
    begin_s: float
    at_s: float
    noticed: bool = True
    context_tokens: int | None = None
    load_s: float | None = None
    seen_bytes: int | None = None
    told_bytes: int | None = None
    before: Held | None = None
    others_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(slots=True)
class _Engine:
    """What was seen of one engine."""

    loads: deque[_Load] = field(default_factory=lambda: deque(maxlen=MAX_LOADS))
    pids: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_PIDS))
    pid: int | None = None
    uptime_s: float | None = None
    seen_to_s: float = 0.0

    def newest(self, key: str) -> _Load | None:
        """Return the newest load of a model."""
        for load in reversed(self.loads):
            if load.key == key:
                return load
        return None


class Loads:
    """The loads of all engines; nothing of it outlives the process."""

    def __init__(self) -> None:
        self._engines: BoundedMap[str, _Engine] = BoundedMap(MAX_ENGINES)

    def of(self, case: Case, idle: Sequence[GpuSample] = ()) -> tuple[ModelLoad, ...]:
        """Take note of what the case shows, and return the engine's loads, the newest first.

        The first one is the one that the case's model runs on; empty where that was not noticed.
        `idle` are GPU samples from before the request, as far back as there are any.
        """
        engine = self._engine(case)
        held = _held(engine, case, idle) if idle or case.gpu else []
        key = model_of(case)
        current = engine.newest(key)
        load = _noticed(engine, case, held, key, current)
        if load is not None and not _is_known(load, current):
            engine.loads.append(load)
            current = load
        if current is not None:
            _complete(current, case, held[-1] if held else None)
        engine.pid, engine.uptime_s = case.server.pid, case.server.uptime_s
        engine.seen_to_s = max(engine.seen_to_s, _ended_at_s(case))
        if current is None or not current.noticed:
            return ()
        return _told(engine, current, case.timeline.accepted_at_s)

    def since_s(self, case: Case) -> float:
        """Return from when on idle samples are of use: since the engine's last request."""
        engine = self._engine(case)
        return max(_from_s(engine, case), case.timeline.accepted_at_s - LOOK_BACK_S)

    def _engine(self, case: Case) -> _Engine:
        name = case.server.url or case.server.name or case.server.kind
        engine = self._engines[name] = self._engines.get(name) or _Engine()
        return engine


def _held(engine: _Engine, case: Case, idle: Sequence[GpuSample]) -> list[Held]:
    """Return the memory since the engine's last request; earlier loads were noticed then."""
    listing = [s for s in (*idle, *case.gpu) if s.processes is not None]
    if not listing:
        return []
    listed = [p for s in case.gpu for p in s.processes or () if p.is_server]
    for pid in dict.fromkeys([process.pid for process in listed]):
        if pid not in engine.pids:
            engine.pids.append(pid)
    from_s = _from_s(engine, case)
    samples = [s for s in listing if s.at_s >= from_s]
    return held_over_time(samples, gpus_of(case).keys(), engine.pids)


def _from_s(engine: _Engine, case: Case) -> float:
    return min(engine.seen_to_s, case.timeline.accepted_at_s) - OVERLAP_S


def _noticed(
    engine: _Engine, case: Case, held: list[Held], key: str, current: _Load | None
) -> _Load | None:
    """Return the load that the case runs on, where anything speaks for a new one."""
    server = case.server
    if case.phases.load_s is not None or server.slept:
        waited = _waited_for(case, held)
        if waited is not None:
            return waited
    rise = last_rise(held) if held else None
    if rise is not None and _serves_one_model(case):
        at_s = min(rise.done_at_s, case.timeline.accepted_at_s)
        begin_s = min(rise.before.at_s, at_s)
        return _Load(key=key, model=_name(case), begin_s=begin_s, at_s=at_s, before=rise.before)
    accepted_at_s = case.timeline.accepted_at_s
    restarted = _was_restarted(engine, case)
    if restarted and server.uptime_s is not None and server.loaded_models is None:
        at_s = accepted_at_s - server.uptime_s
        return _Load(key=key, model=_name(case), begin_s=at_s, at_s=at_s)
    if restarted or current is None or _is_other_context(current, case):
        at_s = accepted_at_s - (server.uptime_s or 0.0)
        return _Load(key=key, model=_name(case), begin_s=accepted_at_s, at_s=at_s, noticed=False)
    return None


def _waited_for(case: Case, held: list[Held]) -> _Load | None:
    """Return the load that lies within a request that waited for one; None for a short one."""
    load_s = case.phases.load_s
    if load_s is not None and load_s < MIN_LOAD_S:
        return None
    accepted_at_s = case.timeline.accepted_at_s
    end_s = case.phases.prefill_from_at_s or accepted_at_s + (load_s or 0.0)
    begin_s = end_s - load_s if load_s is not None else accepted_at_s
    return _Load(
        key=model_of(case),
        model=_name(case),
        begin_s=max(begin_s, accepted_at_s),
        at_s=end_s,
        load_s=load_s,
        before=lowest(held, begin_s - OVERLAP_S, end_s),
    )


def _was_restarted(engine: _Engine, case: Case) -> bool:
    server = case.server
    if engine.pid is not None and server.pid is not None:
        return engine.pid != server.pid
    if engine.uptime_s is None or server.uptime_s is None:
        return False
    return server.uptime_s < engine.uptime_s


def _is_known(load: _Load, current: _Load | None) -> bool:
    """Return True if a load is the newest one again, seen by another request."""
    if current is None or not current.noticed or not load.noticed:
        return False
    return load.begin_s <= current.at_s


def _is_other_context(current: _Load, case: Case) -> bool:
    known, now = current.context_tokens, case.server.context_tokens
    return known is not None and now is not None and known != now


def _complete(load: _Load, case: Case, held: Held | None) -> None:
    """Fill in what could not be known at once: sizes are the first ones seen after the load."""
    server = case.server
    if load.context_tokens is None:
        load.context_tokens = server.context_tokens
    is_done = held is not None and held.at_s >= load.at_s  # no look at a model half loaded
    if load.seen_bytes is None and held is not None and is_done and held.server_bytes is not None:
        _weigh(load, case, held, held.server_bytes)
    asked_since = case.timeline.accepted_at_s - load.at_s >= ASKED_AGAIN_S
    if load.told_bytes is None and (asked_since or not load.noticed):
        load.told_bytes = server.loaded_gpu_bytes


def _weigh(load: _Load, case: Case, after: Held, server_bytes: int) -> None:
    """Tell the model's memory from that of others: `after` is the first look after the load.

    Other models of the engine are processes that were there before and still are. One that was
    there and is not any more made room: how much was free then nobody saw.
    """
    before, beside = load.before, 0
    if before is not None and not _serves_one_model(case):
        beside = sum(count for pid, count in before.by_pid.items() if pid in after.by_pid)
        beside = beside if beside > MODEL_BYTES else 0
    if before is not None or _serves_one_model(case):
        load.seen_bytes = server_bytes - beside
    if before is not None and before.others_bytes is not None:
        load.others_bytes = before.others_bytes + beside
    if before is not None and (before.server_bytes or 0) - beside < MODEL_BYTES:
        load.free_bytes = before.free_bytes


def _serves_one_model(case: Case) -> bool:
    held = case.server.loaded_models
    return held is None or (len(held) <= 1 and case.server.kind != "ollama")


def _told(engine: _Engine, current: _Load, accepted_at_s: float) -> tuple[ModelLoad, ...]:
    by_driver = current.seen_bytes is not None
    loads = list(engine.loads)
    found = [
        _model_load(load, accepted_at_s, by_driver=by_driver)
        for load in reversed(loads[: loads.index(current) + 1])
    ]
    return tuple(load for i, load in enumerate(found) if i == 0 or load.age_s <= MAX_AGE_S)


def _model_load(load: _Load, accepted_at_s: float, *, by_driver: bool) -> ModelLoad:
    """Return the load as detectors see it; sizes of one source only compare."""
    return ModelLoad(
        age_s=max(accepted_at_s - load.at_s, 0.0),
        model=load.model,
        context_tokens=load.context_tokens,
        load_s=load.load_s,
        server_gpu_bytes=load.seen_bytes if by_driver else load.told_bytes,
        free_before_bytes=load.free_bytes,
        others_bytes=load.others_bytes,
    )


def _name(case: Case) -> str | None:
    return case.model.name or case.timeline.model


def _ended_at_s(case: Case) -> float:
    timeline = case.timeline
    return timeline.last_byte_at_s or timeline.ended_at_s or timeline.accepted_at_s
