"""Everything a detector may know about one request: the `Case`.

Strategy: plain frozen values, no behaviour beyond arithmetic that every reader would repeat.
A case is complete and self-contained, so it can be written as one JSON line, attached to a bug
report and diagnosed again somewhere else.

Invariants: `None` means not known, zero is a measurement. Every `*_at_s` is `time.monotonic()` of
the machine that recorded the case. Every `*_s` is a duration in seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

SCHEMA = 1

Phase = Literal["queue", "load", "prefill", "decode", "delivery"]
Source = Literal["engine", "stream", "metrics", "estimate"]
Ending = str
"""How a request ended: the engine's finish reason (`stop`, `length`, `tool_calls`, ...) or what
cut it short: `client-gone`, `upstream-error`, `upstream-refused`, `timeout`, `http-error`;
`complete` where the reply was not looked into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Token counts of one request; `processed` are the prompt tokens not taken from the cache."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    drafted: int | None = None
    accepted: int | None = None

    @property
    def processed(self) -> int | None:
        """Prompt tokens that prefill had to compute; all of them when the cache is not known."""
        return None if self.prompt is None else max(self.prompt - (self.cached or 0), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimings:
    """The engine's own word about one request, in seconds, wherever it gave one."""

    queue_s: float | None = None
    load_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One request as the proxy saw it, on one monotonic clock.

    `token_at_s` holds the arrival of each read that carried at least one token: chunks, not
    tokens. Long answers keep at most `stream.meter.MAX_STEPS` of them, evenly thinned.
    """

    request_id: str
    path: str
    model: str | None = None
    stream: bool
    status: int | None = None
    ended: Ending = "unknown"
    started_unix_s: float
    accepted_at_s: float
    sent_at_s: float | None = None
    headers_at_s: float | None = None
    first_token_at_s: float | None = None
    last_token_at_s: float | None = None
    last_byte_at_s: float | None = None
    delivered_at_s: float | None = None
    ended_at_s: float | None = None
    token_at_s: tuple[float, ...] = ()
    itl_p50_s: float | None = None
    itl_p99_s: float | None = None
    tokens: Tokens = field(default_factory=Tokens)
    engine: EngineTimings | None = None
    client_blocked_s: float = 0.0
    proxy_s: float = 0.0
    parse_errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Where the time of one request went; the sum is at most `total_s`.

    `source` says where prefill and decode come from. `decode_stream_s` is the same decode seen
    from the arrivals: its difference from `decode_s` is evidence about the way to the client.
    """

    source: Source
    queue_s: float | None = None
    load_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    delivery_s: float | None = None
    ttft_s: float | None = None
    total_s: float
    decode_stream_s: float | None = None
    prefill_tps: float | None = None
    decode_tps: float | None = None
    prefill_from_at_s: float | None = None
    decode_from_at_s: float | None = None
    decode_to_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPrefix:
    """How this prompt compares with the ones this model saw before; counts, never text.

    All counts are characters of the prompt's canonical form (role and content of each message).
    `first_difference` is the offset inside the message `difference_message` (0-based, with its
    role) where the best earlier prompt stops being the same, exact to `granularity_chars`.
    `shared_ratio` is the share of this prompt that any place of the earlier prompt also held.
    """

    chars: int
    common_prefix_chars: int
    shared_ratio: float
    first_difference: int | None = None
    difference_message: int | None = None
    difference_role: str | None = None
    granularity_chars: int = 1
    previous_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Other requests that the proxy had at the same engine while this one was there."""

    in_flight_at_send: int = 0
    decode_mean: float = 0.0
    decode_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """The host and the server's process tree over the `span_s` seconds that end at `at_s`.

    CPU is counted in cores (1.0 is one core fully busy). `server_run_delay_cores` is the time the
    server's threads were ready but had no core to run on, per second. Ratios are 0 to 1.
    """

    at_s: float
    span_s: float
    cpu_cores: int | None = None
    cpu_busy_cores: float | None = None
    cpu_steal_cores: float | None = None
    busiest_core_ratio: float | None = None
    cpu_mhz: float | None = None
    available_bytes: int | None = None
    swap_in_bytes_per_s: float | None = None
    psi_cpu_some_ratio: float | None = None
    psi_io_full_ratio: float | None = None
    psi_memory_full_ratio: float | None = None
    server_cpu_cores: float | None = None
    server_busy_threads: int | None = None
    server_threads: int | None = None
    server_run_delay_cores: float | None = None
    server_anon_bytes: int | None = None
    server_file_bytes: int | None = None
    server_major_faults_per_s: float | None = None
    server_read_bytes_per_s: float | None = None
    server_allowed_cores: int | None = None
    server_quota_cores: float | None = None
    server_throttled_ratio: float | None = None
    server_throttled_s_per_s: float | None = None

    @property
    def others_cpu_cores(self) -> float | None:
        """Cores that everything but the server kept busy, steal included."""
        if self.cpu_busy_cores is None or self.server_cpu_cores is None:
            return None
        return max(self.cpu_busy_cores - self.server_cpu_cores, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """One process that holds memory on a GPU; `memory_bytes` is None where the driver hides it."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None
    is_server: bool = False
    busy_ratio: float | None = None
    memory_busy_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at `at_s`. Ratios are 0 to 1; `reasons` is NVML's clocks-event mask.

    PCIe rates are as the GPU sees them: `rx` goes into it. `energy_j` and `throttled_*_ns` only
    grow: differences alone mean something. These, link and processes come at 1 Hz, the rest at 10.
    """

    at_s: float
    index: int
    busy_ratio: float | None = None
    memory_busy_ratio: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    pstate: int | None = None
    reasons: int | None = None
    temperature_c: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    temperature_margin_c: int | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    energy_j: float | None = None
    throttled_power_ns: int | None = None
    throttled_sw_thermal_ns: int | None = None
    throttled_hw_thermal_ns: int | None = None
    throttled_power_brake_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What does not change about a GPU. Bandwidth is the memory's peak, from NVML's clocks."""

    index: int
    uuid: str | None = None
    name: str | None = None
    total_bytes: int | None = None
    bus_width_bits: int | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    bandwidth_bytes_per_s: float | None = None
    driver: str | None = None
    default_power_limit_w: float | None = None
    min_power_limit_w: float | None = None
    max_power_limit_w: float | None = None
    max_pcie_generation: int | None = None
    max_pcie_width: int | None = None
    gpu_max_pcie_generation: int | None = None
    unified_memory: bool | None = None
    mig: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The machine. `gpus` is None where no GPU library answered, empty where it saw no GPU."""

    gpus: tuple[GpuFacts, ...] | None = None
    cpu_physical_cores: int | None = None
    cpu_logical_cores: int | None = None
    ram_bytes: int | None = None
    ram_bandwidth_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The inference engine: what it said of itself and what its command line and environment say.

    `gpu_layers` is the number asked for (-1: the engine decides). `threads` is the decode thread
    count asked for. `slept` says that the engine had put the model away before this request.
    """

    kind: str = "unknown"
    name: str | None = None
    url: str | None = None
    version: str | None = None
    local: bool | None = None
    pid: int | None = None
    unmapped: str | None = None
    context_tokens: int | None = None
    slots: int | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    kv_type_k: str | None = None
    kv_type_v: str | None = None
    flash_attention: str | None = None
    memory_mapped: bool | None = None
    speculative: bool | None = None
    slept: bool | None = None
    uptime_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The model's geometry as far as bytes per token need it.

    `read_bytes` are the weights read for each generated token (embedding look-ups left out, used
    experts only). `kv_bytes_per_token` grows with the context; `kv_window_bytes` is the most that
    sliding-window layers add, whatever the context; both at 16-bit.
    """

    name: str | None = None
    path: str | None = None
    digest: str | None = None
    quantisation: str | None = None
    parameters: int | None = None
    file_bytes: int | None = None
    read_bytes: int | None = None
    layers: int | None = None
    experts: int | None = None
    experts_used: int | None = None
    kv_bytes_per_token: float | None = None
    kv_window_tokens: int | None = None
    kv_window_bytes_per_token: float | None = None
    bits_per_weight: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A closed interval of rates in tokens per second."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What decode should give here: a band with its basis, or `decode` None and the reason.

    `expected_tps` is the middle estimate that losses are counted against, `roofline_tps` the same
    before anything learned refined it. `ceiling_tps` is
    physics: no single stream without speculation can pass it. `as_configured` is what the layer
    split and context in force should give.
    """

    decode: Range | None = None
    expected_tps: float | None = None
    roofline_tps: float | None = None
    ceiling_tps: float | None = None
    as_configured: Range | None = None
    basis: str | None = None
    because: tuple[str, ...] = ()
    context_tokens: int | None = None
    read_bytes: float | None = None
    kv_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What this setup gave before, learned from healthy requests only: medians of `count`.

    `decode_p10_tps` is what one healthy request in ten stayed below: the setup's own noise.
    """

    count: int = 0
    decode_tps: float | None = None
    decode_p10_tps: float | None = None
    prefill_tps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One finished request with everything that was known about it."""

    schema: int = SCHEMA
    timeline: Timeline
    phases: Phases
    prompt: PromptPrefix | None = None
    neighbours: Neighbours = field(default_factory=Neighbours)
    host: tuple[HostSample, ...] = ()
    gpu: tuple[GpuSample, ...] = ()
    server: ServerFacts = field(default_factory=ServerFacts)
    model: ModelFacts = field(default_factory=ModelFacts)
    device: DeviceFacts = field(default_factory=DeviceFacts)
    envelope: Envelope = field(default_factory=Envelope)
    baseline: Baseline = field(default_factory=Baseline)

    def host_during(self, phase: Phase) -> tuple[HostSample, ...]:
        """Host samples that overlap the given phase by more than half of their span."""
        window = self.window(phase)
        return () if window is None else tuple(_inside(self.host, *window))

    def gpu_during(self, phase: Phase) -> tuple[GpuSample, ...]:
        """GPU samples taken inside the given phase."""
        window = self.window(phase)
        if window is None:
            return ()
        return tuple(s for s in self.gpu if window[0] <= s.at_s <= window[1])

    def window(self, phase: Phase) -> tuple[float, float] | None:
        """Begin and end of a phase on the clock of the case, where both are known."""
        p, t = self.phases, self.timeline
        begin, end = {
            "queue": (t.sent_at_s, p.prefill_from_at_s),
            "load": (t.sent_at_s, p.prefill_from_at_s),
            "prefill": (p.prefill_from_at_s, p.decode_from_at_s),
            "decode": (p.decode_from_at_s, p.decode_to_at_s),
            "delivery": (t.last_byte_at_s, t.delivered_at_s),
        }[phase]
        return None if begin is None or end is None or end <= begin else (begin, end)


def _inside(samples: Iterable[HostSample], begin: float, end: float) -> Iterable[HostSample]:
    for sample in samples:
        overlap = min(end, sample.at_s) - max(begin, sample.at_s - sample.span_s)
        if overlap > sample.span_s / 2:
            yield sample
