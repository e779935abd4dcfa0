"""One request, from sending to its last token: a trace of true states, not yet of readings."""

from dataclasses import dataclass, field
from functools import lru_cache

from simulator.physics import Pass, decode_pass, prefill_s, talk_bytes
from simulator.silicon import Load, Silicon, State
from simulator.world import World

STEP_S = 0.05
MAX_STEPS = 1500
USUAL_STEPS = 240
NO_LOAD = Load(busy=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What is true of the host for `dt` seconds from `at_s` on."""

    at_s: float
    server_cores: float
    threads: float
    starved: float
    throttled: float
    others: float
    disk_bytes_per_s: float
    io_stalled: float


@dataclass(slots=True, kw_only=True)
class Trace:
    """Everything that happened. Times are seconds from the sending; tokens are passes' ends."""

    gpus: list[list[State]]
    host: list[HostState] = field(default_factory=list)
    passes: list[tuple[float, float]] = field(default_factory=list)
    prefill_from_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0


@lru_cache(maxsize=8)
def run(world: World) -> Trace:
    """Simulate one request. The trace is shared: nobody changes it."""
    return _Run(world).whole()


class _Run:
    def __init__(self, world: World) -> None:
        self._world = world
        used = len(world.used_cards)
        self._chips = [
            Silicon(card, world, warm=world.nature.warm if i < used else 0.1)
            for i, card in enumerate(world.cards)
        ]
        self._trace = Trace(gpus=[[] for _ in world.cards])
        self._at_s = 0.0
        self._dt = STEP_S
        for _ in range(8):  # the chips settle where the last request left them
            self._chip_step(-1.0, self._loads(decode_pass(world, 0.0, 100, 0.9, 0.97), 0.0))
        for states in self._trace.gpus:
            states.clear()

    def whole(self) -> Trace:
        world, trace = self._world, self._trace
        self._wait(world.waits.queue_s, busy=bool(world.waits.in_flight))
        self._load(world.waits.load_s)
        trace.prefill_from_s = self._at_s
        self._prefill()
        trace.first_s = self._at_s
        self._decode()
        trace.last_s = self._at_s
        for _ in range(3):
            self._step(self._idle_loads(), _resting(self))
        return trace

    def _wait(self, seconds: float, *, busy: bool) -> None:
        """Wait: where another request is being served, the machine works for that one."""
        until_s, self._dt = self._at_s + seconds, _step_for(seconds)
        while self._at_s < until_s - 1e-9:
            work = decode_pass(self._world, self._at_s, 1000, *self._clocks())
            loads = self._loads(work, self._at_s) if busy else self._idle_loads()
            self._step(loads, _at_work(self, work) if busy else _resting(self))

    def _load(self, seconds: float) -> None:
        until_s, self._dt = self._at_s + seconds, _step_for(seconds)
        world = self._world
        rate = world.model.file_bytes(world.quantisation) / max(seconds, 1e-3)
        gpu_rate = min(rate * world.placement.gpu_ratio, world.pcie_bytes_per_s * 0.8)
        reading = rate if world.waits.load_reads_disk else 0.0
        while self._at_s < until_s - 1e-9:
            load = Load(busy=0.06, traffic=0.02, rx_bytes_per_s=gpu_rate)
            state = HostState(
                at_s=self._at_s,
                server_cores=1.0,
                threads=1,
                starved=0.0,
                throttled=0.0,
                others=world.others.cores.at(self._at_s),
                disk_bytes_per_s=reading,
                io_stalled=0.5 if reading else 0.0,
            )
            self._step([load for _ in world.used_cards], state)

    def _prefill(self) -> None:
        world = self._world
        tokens = world.request.prompt - world.request.cached
        sm, _ = self._clocks()
        seconds = prefill_s(world, tokens, sm, self._at_s)
        self._compile(world.waits.compile_s)
        until_s, self._dt = self._at_s + seconds, _step_for(seconds)
        on_cpu = not world.used_cards or world.placement.gpu_ratio == 0
        busy = 0.0 if on_cpu else 0.97 * max(world.placement.gpu_ratio, 0.3)
        cores = float(world.engine.threads) if on_cpu else world.nature.spin
        share = 1 / max(len(world.used_cards), 1) if world.engine.tensor_parallel == 1 else 1.0
        streamed = 0.0 if on_cpu else (1 - world.placement.gpu_ratio) * world.pcie_bytes_per_s * 0.7
        while self._at_s < until_s - 1e-9:
            load = Load(busy=busy * share, traffic=0.4, compute=0.75, rx_bytes_per_s=streamed)
            state = HostState(
                at_s=self._at_s,
                server_cores=cores,
                threads=cores,
                starved=0.0,
                throttled=0.0,
                others=world.others.cores.at(self._at_s),
                disk_bytes_per_s=0.0,
                io_stalled=0.0,
            )
            left = until_s - self._at_s
            self._dt = min(self._dt, max(left, 1e-3))
            self._step([load for _ in world.used_cards], state)

    def _compile(self, seconds: float) -> None:
        """Make kernels: one core works, and the GPU waits."""
        until_s, self._dt = self._at_s + seconds, _step_for(seconds)
        while self._at_s < until_s - 1e-9:
            state = HostState(
                at_s=self._at_s,
                server_cores=1.2,
                threads=1,
                starved=0.0,
                throttled=0.0,
                others=self._world.others.cores.at(self._at_s),
                disk_bytes_per_s=0.0,
                io_stalled=0.0,
            )
            self._step([Load(busy=0.03) for _ in self._world.used_cards], state)

    def _decode(self) -> None:
        world, trace = self._world, self._trace
        made, need = 1.0, float(world.request.completion)
        stalls = sorted(world.work.stalls)
        start_s = self._at_s
        first = decode_pass(world, self._at_s, world.request.prompt, *self._clocks())
        self._dt = _step_for(first.total_s / first.tokens * need)
        trace.passes.append((self._at_s, 1.0))
        while made < need:
            if stalls and self._at_s - start_s >= stalls[0][0]:
                self._stall(stalls.pop(0)[1])
                continue
            work = decode_pass(world, self._at_s, world.request.prompt + made, *self._clocks())
            rate = work.tokens / work.total_s
            dt = min(self._dt, (need - made) / rate)
            self._dt, kept = max(dt, 1e-4), self._dt
            trace.passes.append((self._at_s + self._dt, min(made + rate * self._dt, need)))
            made += rate * self._dt
            self._step(self._loads(work, self._at_s), _at_work(self, work))
            self._dt = kept
            if len(trace.host) > MAX_STEPS:
                self._dt = max(self._dt, 0.5)

    def _stall(self, seconds: float) -> None:
        made = self._trace.passes[-1][1]
        busy = self._world.work.preemptions > 0 or self._world.others.neighbours.value > 0
        self._wait(seconds, busy=busy)
        self._trace.passes.append((self._at_s, made))

    def _clocks(self) -> tuple[float, float]:
        chips = self._chips[: len(self._world.used_cards)]
        if not chips:
            return 1.0, 1.0
        return min(c.sm for c in chips), min(c.memory for c in chips)

    def _loads(self, work: Pass, at_s: float) -> list[Load]:
        """What each card does while passes like this one follow each other."""
        world, total = self._world, work.total_s
        cards = world.used_cards
        foreign = world.others.gpu_share.at(at_s)
        loads = []
        for gpu_s, card in zip(work.gpu_s, cards, strict=False):
            own = gpu_s / total
            reads = work.traffic_bytes / len(cards) / (card.bandwidth_gb_s * 1e9)
            pace = reads / world.nature.efficiency / max(gpu_s, 1e-9)
            traffic = 0.95 if world.work.kernel_traffic else min(pace * (1 + foreign), 1.0)
            link = work.spilled_bytes / total + 3e4 / total
            talk = talk_bytes(world, at_s) / 2 / total if work.sync_s else 0.0
            loads.append(
                Load(
                    busy=min(max(own, foreign) + (0.7 * work.sync_s / total), 1.0),
                    stalled=work.pcie_s / total,
                    traffic=traffic,
                    compute=0.3 + 0.4 * world.others.neighbours.at(at_s) / 16,
                    rx_bytes_per_s=link + talk,
                    tx_bytes_per_s=2e4 / total + talk + work.spilled_bytes * 0.02 / total,
                )
            )
        return loads or self._idle_loads()

    def _idle_loads(self) -> list[Load]:
        foreign = self._world.others.gpu_share.at(self._at_s)
        return [Load(busy=foreign, traffic=0.4) for _ in self._world.used_cards]

    def _step(self, loads: list[Load], host: HostState) -> None:
        self._chip_step(self._at_s, loads)
        self._trace.host.append(host)
        self._at_s += self._dt

    def _chip_step(self, at_s: float, loads: list[Load]) -> None:
        for i, chip in enumerate(self._chips):
            load = loads[i] if i < len(loads) else NO_LOAD
            self._trace.gpus[i].append(chip.step(at_s, self._dt, load))

    @property
    def at_s(self) -> float:
        """Now."""
        return self._at_s

    @property
    def world(self) -> World:
        """What is simulated."""
        return self._world


def _step_for(seconds: float) -> float:
    """Return a step that is short beside the samples, unless the phase is very long."""
    return min(max(STEP_S, seconds / USUAL_STEPS), max(seconds, 1e-3)) or STEP_S


def _half_busy(world: World, cores: float, share: float) -> float:
    """How many threads run for at least half of the time: all of them, or hardly one."""
    if cores <= 1:
        return 1.0 if cores * max(share, world.nature.spin) >= 0.5 else 0.0
    return float(world.engine.threads) if cores / world.engine.threads * share >= 0.5 else 1.0


def _resting(run_: _Run) -> HostState:
    return HostState(
        at_s=run_.at_s,
        server_cores=0.02,
        threads=0.0,
        starved=0.0,
        throttled=0.0,
        others=run_.world.others.cores.at(run_.at_s),
        disk_bytes_per_s=0.0,
        io_stalled=0.0,
    )


def _at_work(run_: _Run, work: Pass) -> HostState:
    """How the engine's threads spend passes like this one."""
    total, world = work.total_s, run_.world
    gpu_s = total - work.cpu_s - work.host_s - work.idle_s - work.disk_s
    threaded = work.cpu_cores if work.cpu_cores > 1 or not world.cards else 1.0
    own = (gpu_s * world.nature.spin + work.cpu_s * threaded + work.host_s) / total
    if world.cards and world.placement.gpu_ratio >= 1 and work.throttled_cores:
        own = min(own, world.work.quota or own)
    share = work.cpu_s / total
    return HostState(
        at_s=run_.at_s,
        server_cores=own + 0.01,
        threads=_half_busy(world, threaded, share),
        starved=work.starved_cores * max(share, 0.05 if world.cards else 1.0),
        throttled=work.throttled_cores,
        others=world.others.cores.at(run_.at_s),
        disk_bytes_per_s=work.disk_bytes / total,
        io_stalled=work.disk_s / total,
    )
