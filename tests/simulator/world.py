"""What is true in one simulated run: the machine, the engine, the request, and what goes on."""

from dataclasses import dataclass, field, replace
from typing import Literal

from simulator.cards import LANE_GB_S, Card
from simulator.geometry import Model
from slowtok.detectors.case.case import DifferenceKind

Kind = Literal["llama-server", "ollama", "vllm", "sglang"]
Before = Literal["nothing", "well", "same"]
FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Level:
    """A quantity that is `value` from one time of the run to another, and `rest` otherwise.

    With a `period_s` it is on for the share `duty` of each period only. Seconds from the sending.
    """

    value: float
    rest: float
    from_s: float = 0.0
    until_s: float = FOREVER
    period_s: float = 0.0
    duty: float = 1.0

    def at(self, second: float) -> float:
        """Return the quantity at one time."""
        if not self.from_s <= second < self.until_s:
            return self.rest
        if self.period_s and (second % self.period_s) >= self.duty * self.period_s:
            return self.rest
        return self.value


NOTHING = Level(0.0, 0.0)
FULL = Level(1.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine around the GPUs; `slow_cores` of the physical ones are efficiency cores."""

    ram_gib: float = 64.0
    ram_gb_s: float = 55.0
    physical: int = 8
    logical: int = 16
    slow_cores: int = 0
    disk_gb_s: float = 3.0
    system: Literal["linux", "windows", "wsl2", "container"] = "linux"

    @property
    def fast_cores(self) -> int:
        """Its performance cores: all of them on most machines."""
        return self.physical - self.slow_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The engine and what it was asked to do. `context` is for one sequence."""

    kind: Kind = "llama-server"
    version: str = "b11434"
    context: int = 8192
    slots: int = 1
    gpu_layers: int = -1
    threads: int = 8
    kv_type: str = "f16"
    flash_attention: str = "auto"
    split_mode: Literal["layer", "row"] = "layer"
    tensor_parallel: int = 1
    memory_mapped: bool = True
    kv_on_gpu: bool = True
    cpu_moe_layers: int = 0
    speculative: bool = False
    offload_gib: float = 0.0
    eager: bool = False
    micro_batch: int = 512
    prefix_caching: bool = True
    per_request_metrics: bool = False
    metrics: bool = True
    api: Literal["openai", "native"] = "openai"
    memory_ratio: float = 0.9
    template_habits: tuple[str, ...] | None = None
    kv_tokens: int | None = None
    unified_memory: bool = False

    @property
    def is_old_ollama(self) -> bool:
        """Whether it tells neither cached tokens nor, to OpenAI's clients, times (0.34, 0.35.1)."""
        return self.kind == "ollama" and int(self.version.split(".")[1]) < 34

    @property
    def is_torch(self) -> bool:
        """Whether it is one of the engines in Python: whole on the GPUs, with gauges of its own."""
        return self.kind in ("vllm", "sglang")

    @property
    def computes_together(self) -> bool:
        """Whether its GPUs share each layer, and talk twice in each."""
        return self.tensor_parallel > 1 or self.split_mode == "row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked; `common` is the share of the prompt that an earlier one began with."""

    prompt: int = 600
    cached: int = 0
    completion: int = 400
    common: float = 0.0
    shared: float | None = None
    previous_age_s: float | None = None
    difference: DifferenceKind | None = None
    others_since: int = 0
    others_common: float = 0.0
    grew: bool = False
    reasoning_ratio: float = 0.0
    stream: bool = True
    chunk_tokens: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nature:
    """What no specification tells of a setup: drawn, so that no expectation is exact."""

    efficiency: float = 0.8
    kv_efficiency: float = 0.7
    layer_s: float = 50e-6
    prefill_ratio: float = 0.42
    ram_ratio: float = 0.68
    knee: float = 0.65
    decode_power: float = 0.8
    prefill_power: float = 1.05
    ambient_c: float = 30.0
    cooling: float = 1.0
    warm: float = 0.6
    jitter: float = 0.04
    spin: float = 1.0
    idle_power: float = 0.08
    sync_s: float = 18e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the bytes lie. `spill_gib` is in RAM behind the driver's back, read over PCIe.

    `gpu_ratio` is the share of what a token reads, `held_ratio` that of all weights if another.
    """

    gpu_ratio: float = 1.0
    held_ratio: float | None = None
    kv_gpu_ratio: float = 1.0
    spill_gib: float = 0.0
    spill_from_s: float = 0.0
    disk_ratio: float = 0.0
    gpu_known: float | None = None

    @property
    def held_gpu_ratio(self) -> float:
        """The share of all weights that the GPUs hold."""
        return self.gpu_ratio if self.held_ratio is None else self.held_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """What holds the GPUs back. Ratios are of the highest clocks."""

    sm: Level = FULL
    memory: Level = FULL
    limit_ratio: Level = FULL
    throttle_at_c: float | None = None
    hard_heat: bool = False
    memory_heat: bool = False
    brake: Level = FULL
    brake_told: bool = True
    source: Literal["ac", "battery", "undersized"] | None = None
    hidden_drag: float = 1.0
    blips: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """Other processes, on the GPU and on the host."""

    gpu_share: Level = NOTHING
    gpu_name: str = "python"
    gpu_named: bool = True
    gpu_gib: float = 0.0
    cores: Level = NOTHING
    steal: float = 0.0
    neighbours: Level = NOTHING
    neighbour_context: int = 1500
    via_proxy: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Engineering:
    """What the engine's own work costs beyond reading the model."""

    kernel: float = 1.0
    kernel_traffic: bool = False
    kv_slope: float = 1.0
    host_gap_s: float = 0.0
    idle_gap_s: float = 0.0
    quota: float | None = None
    cpu_clock: float = 1.0
    ram_drag: float = 1.0
    drafted: int = 0
    acceptance: float = 0.0
    draft_cost: float = 0.08
    prefill: float = 1.0
    stalls: tuple[tuple[float, float], ...] = ()
    preemptions: int = 0
    kv_used: float | None = None
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Time before the work begins, and after it.

    `behind_prompt`: there was room, and the engine read the prompt of another first. `compile_s` is
    what kernels take to be made, `left_s` how long before a client left in mid-answer.
    """

    queue_s: float = 0.0
    in_flight: int = 0
    behind_prompt: bool = False
    load_s: float = 0.0
    slept: bool = False
    load_reads_disk: bool = True
    compile_s: float = 0.0
    left_s: float | None = None
    proxy_s: float = 0.0
    proxy_lag_s: float = 0.0
    blocked_s: float = 0.0
    network_ratio: float = 0.0
    network_burst_s: float = 0.0
    remote: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The PCIe link in force, and errors on it."""

    generation: int | None = None
    width: int | None = None
    slot_width: int | None = None
    replays: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Faults of a GPU. `xid_at_s` is when its driver reported it."""

    xid: int | None = None
    xid_at_s: float = 0.0
    ecc_errors: int = 0
    remapped: int = 0
    virtual: bool = False
    licensed: bool | None = None
    drag: Level = FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What the proxy had seen before: `count` requests of this setup, all well or all like this.

    `fresh` says that the engine was started anew between them and this request. Another build
    served `other_build` requests well before.
    """

    before: Before = "nothing"
    count: int = 0
    fresh: bool = False
    loads_seen: bool = True
    loads: int = 1
    others_at_load_gib: float = 0.0
    leaked_gib: float = 0.0
    leak_remains: bool = False
    earlier_gpu_gib: float | None = None
    slow_recently: int = 0
    causes: tuple[str, ...] = ()
    other_build: int = 0
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """What the instruments can see at all.

    `hidden` are fields of samples that nobody can read here, `silent` facts of a GPU that its
    driver does not give, `server_from_s` when the engine's processes were found: those of another
    user never, a late child some seconds after it began.
    """

    gpu_samples: bool = True
    host_samples: bool = True
    gpus: bool = True
    hidden: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    server_from_s: float = -FOREVER
    private_pids: bool = False
    ram_known: bool = True
    gauges: bool = True
    lost_samples: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One run."""

    cards: tuple[Card, ...]
    host: Host = field(default_factory=Host)
    model: Model
    quantisation: str = "Q4_K_M"
    engine: Engine = field(default_factory=Engine)
    request: Request = field(default_factory=Request)
    nature: Nature = field(default_factory=Nature)
    placement: Placement = field(default_factory=Placement)
    clocks: Clocks = field(default_factory=Clocks)
    others: Others = field(default_factory=Others)
    work: Engineering = field(default_factory=Engineering)
    waits: Waits = field(default_factory=Waits)
    link: Link = field(default_factory=Link)
    health: Health = field(default_factory=Health)
    past: Past = field(default_factory=Past)
    sight: Visibility = field(default_factory=Visibility)
    idle_cards: int = 0
    power_profile: str | None = None
    governor: str | None = None
    on_battery: bool | None = None

    @property
    def used_cards(self) -> tuple[Card, ...]:
        """The GPUs that the engine works on."""
        return self.cards[: len(self.cards) - self.idle_cards]

    @property
    def pcie_bytes_per_s(self) -> float:
        """What the slowest link in use carries."""
        if not self.cards:
            return 1.0
        card = self.cards[0]
        generation = self.link.generation or card.generation
        width = self.link.width or card.width
        return LANE_GB_S[generation] * width * 1e9

    @property
    def placed_bytes(self) -> float:
        """Weights that go to a GPU at the most: llama.cpp looks embeddings up in RAM."""
        held = self.model.file_bytes(self.quantisation)
        if self.engine.is_torch or self.model.experts:
            return held
        return held * self.model.read_parameters / self.model.parameters

    @property
    def reserved_kv_bytes(self) -> float:
        """The cache that was reserved at load, for all slots."""
        tokens = self.engine.context
        return self.model.context_bytes(tokens, self.engine.kv_type) * self.engine.slots

    @property
    def used_tokens(self) -> int:
        """The context at the end of the answer."""
        return self.request.prompt + self.request.completion


def change(world: World, part: str, **values: object) -> World:
    """Return the world with these values in one of its parts."""
    return replace(world, **{part: replace(getattr(world, part), **values)})
