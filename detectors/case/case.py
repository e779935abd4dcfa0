"""The `Case`: everything that a detector may know about one request.

Strategy: plain frozen values, no behaviour beyond arithmetic that every reader would repeat. A case
is complete and self-contained, so it can be written as one JSON line, attached to a bug report and
diagnosed again somewhere else.

Invariants: `None` means not known, zero is a measurement. Every `*_at_s` is `time.monotonic()` of
the machine that recorded the case. Every `*_s` is a duration in seconds.
"""

from collections.abc import Iterable
from dataclasses import field
from typing import Literal

from slowtok.detectors.case.engine import EngineActivity, ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuSample, HostSample
from slowtok.detectors.case.memo import cached_for_last_case_by_args
from slowtok.detectors.case.value import frozen_dataclass

SCHEMA = 1

Phase = Literal["queue", "load", "prefill", "decode", "delivery"]
Source = Literal["engine", "stream", "metrics", "estimate"]
Ending = str
"""How a request ended: the engine's finish reason (`stop`, `length`, `tool_calls`, ...), what cut
it short (`ending.CutShort`), `http-error`, or `complete` where the reply was not looked into."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Token counts of one request; `processed` are the prompt tokens not taken from the cache.

    `reasoning` are those of `completion` that the model spent on reasoning.
    """

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    reasoning: int | None = None

    @property
    def processed(self) -> int | None:
        """Prompt tokens that prefill had to compute; all if the cached count is not known."""
        if self.prompt is None or not self.cached:
            return self.prompt
        return max(self.prompt - self.cached, 0)


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimings:
    """Timings of one request in seconds, as reported by the engine."""

    queue_s: float | None = None
    load_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The times of one request as the proxy saw them, on one monotonic clock.

    `token_at_s` holds the arrival of each read that carried at least one token: reads, not tokens.
    Long answers keep at most `stream.meter.MAX_STEPS` of them, evenly thinned. `proxy_s` is how
    long the proxy itself held the request, `loop_lag_s` the largest lag of its event loop
    meanwhile.
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
    tokens: Tokens = Tokens()
    engine: EngineTimings | None = None
    client_blocked_s: float = 0.0
    proxy_s: float = 0.0
    loop_lag_s: float | None = None
    parse_errors: int = 0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The phases of one request: queue, load, prefill, decode and delivery, in seconds.

    A phase is None if it is not known. Unknown phases, and the proxy's own time, are in no phase,
    so the sum is usually less than `total_s`. It can also be more, because the engine's timings are
    taken as reported, even if they claim more time than passed on the proxy's clock.

    `source` says where prefill and decode come from. `queue_estimated`: the engine's gauges show
    that the request was queued, but not for how long. `decode_stream_s` is decode by the arrivals:
    its difference from `decode_s` is evidence about the way to the client.
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
    queue_estimated: bool = False


DifferenceKind = Literal[
    "attribution-header",
    "time",
    "number",
    "id",
    "tools",
    "tools-order",
    "trimmed",
    "inserted",
    "pruned",
    "reminder",
    "reasoning",
    "whitespace",
    "text",
]
"""What differs between two prompts, by its form alone: Claude Code's `x-anthropic-billing-header`,
a date or time, a number, an identifier, other tools or the same in another order, messages that
were left out or put in between, a tool result that was cut down, a tagged block (a reminder, an
injected memory) that was put into or taken out of a message, the model's reasoning that was sent
back before and is not any more, blanks alone, or any other text."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class PromptPrefix:
    """Comparison of a prompt with the ones this model saw before; counts, never text.

    All counts are characters of the prompt's canonical form (role and content of each message).
    `first_difference` is the offset inside the message `difference_message` (0-based, with its
    role) where the best earlier prompt stops being the same, exact to `granularity_chars`;
    `difference_kind` is None if the earlier prompt only ended there. `shared_ratio` is the share of
    this prompt that also occurs anywhere in the earlier prompt. `others_since` is how many prompts
    of other conversations the model read since the earlier one, `others_common_chars` the longest
    prefix that one of them shares with this one. `previous_chars` is the length of the earlier
    prompt. Images count as many characters as their tokens would take: `image_chars` of them are in
    this prompt, `common_image_chars` in the common prefix.
    """

    chars: int
    common_prefix_chars: int
    shared_ratio: float
    first_difference: int | None = None
    difference_message: int | None = None
    difference_role: str | None = None
    difference_kind: DifferenceKind | None = None
    granularity_chars: int = 1
    previous_age_s: float | None = None
    others_since: int | None = None
    previous_chars: int | None = None
    others_common_chars: int | None = None
    image_chars: int = 0
    common_image_chars: int = 0

    @property
    def only_grew(self) -> bool:
        """Return True if the client only appended messages to those of the earlier prompt."""
        before = self.previous_chars
        return before is not None and self.common_prefix_chars >= before


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class PromptParts:
    """Sizes of a prompt's parts, in characters as `PromptPrefix` counts them."""

    chars: int
    messages: int
    system_chars: int = 0
    tools_chars: int = 0
    last_user_chars: int = 0
    image_chars: int = 0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Earlier attempts with the very same prompt that were cut short, one after the other.

    There were `count` of them, which took `spent_s` together; `ended` is the ending of the last.
    """

    count: int
    spent_s: float
    ended: Ending


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """Requests whose clients had disconnected, but which the engine may still have worked on.

    `left_s` is how long before this request was sent the last such client disconnected,
    `request_id` its request. `seen_s` is for how long after this request was sent the engine's
    slots showed work for them; None if nothing shows it.
    """

    count: int
    request_id: str | None = None
    left_s: float
    seen_s: float | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """Other requests at the engine during a request's queue, or during its prefill.

    From the proxy's own requests: `served_first` is the most at one moment that the engine had
    begun before this one; `reading_s` is how long at least one of their prompts was in prefill,
    `reading_id` the one that was for longest.

    From looks at the engine's slots or gauges, which show foreign requests, too: `looks` is how
    many of them show whether there was room, `full_ratio` the share of those with no free slot;
    `others_mean` is the mean number of other requests, `others_reading_ratio` the share of looks
    with another prompt in prefill.
    """

    served_first: int = 0
    reading_s: float = 0.0
    reading_id: str | None = None
    looks: int = 0
    full_ratio: float | None = None
    others_mean: float | None = None
    others_reading_ratio: float | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Other requests at the same engine while this one was there.

    `in_flight_at_send` counts those of this proxy. So do `decode_mean` and `decode_max`, the
    requests that decoded meanwhile, unless `counted`: then they are from the engine's own slots or
    gauges, and include foreign requests.
    """

    in_flight_at_send: int = 0
    decode_mean: float = 0.0
    decode_max: int = 0
    counted: bool = False
    waiting: Concurrency = Concurrency()
    prefill: Concurrency = Concurrency()
    abandoned: Abandoned | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A closed interval of rates in tokens per second."""

    low: float
    high: float


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The expected decode rate: a band with its basis, or `decode` None and the reason (`because`).

    `expected_tps` is the middle estimate that losses are counted against, `roofline_tps` the same
    before anything learned refined it. `ceiling_tps` is physics: no single stream without
    speculation can exceed it. `as_configured` is what the layer split and context in force should
    give. `prefill` is per token that is not in the cache.
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
    bandwidth_bytes_per_s: float | None = None
    efficiency_ratio: float | None = None
    prefill: Range | None = None
    expected_prefill_tps: float | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Rates of this setup's earlier healthy requests: medians of `count` of them.

    One healthy request in ten was slower than `decode_p10_tps`: the setup's own noise. `peers` is
    how many other machines with the same card the decode rates are from; 0: this one.
    `usual_decode_tps` is a second reference: the median of the newest requests of the same setup on
    the very engine process and model load that served this one, whatever their verdict.
    `healthy_here` is how many healthy requests there were on it.
    """

    count: int = 0
    decode_tps: float | None = None
    decode_p10_tps: float | None = None
    prefill_tps: float | None = None
    peers: int = 0
    usual_decode_tps: float | None = None
    healthy_here: int = 0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoad:
    """One observed load of a model, and the memory that it found.

    `age_s` is how long before this request was accepted. `server_gpu_bytes` is what the engine held
    on its GPUs after the load; `free_before_bytes` and `others_bytes` are what was free there and
    what other processes held just before it.
    """

    age_s: float
    model: str | None = None
    context_tokens: int | None = None
    load_s: float | None = None
    server_gpu_bytes: int | None = None
    free_before_bytes: int | None = None
    others_bytes: int | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Earlier requests and model loads of this engine, as far as they were observed.

    The best clocks and power are the highest under load in normal requests.

    `loads` are newest first; `loads[0]` is the one that this request ran on. `judged_recently` is
    how many of the newest requests of this setup were judged, without this one; their causes are in
    `causes_recently`, newest first. `best_decode_tps` is the 90th percentile of healthy rates of
    the last month, for any engine version; `week_ago_decode_tps` the median of all rates from a day
    to two weeks ago. `other_version` is the engine's build that served this setup before the
    current one, with the median of its `other_version_count` newest healthy rates. `served_before`
    is how many requests this engine process is known to have served before, `served_alike` how many
    of those had a prompt of about this length to compute.
    """

    loads: tuple[ModelLoad, ...] = ()
    best_sm_clock_mhz: int | None = None
    best_memory_clock_mhz: int | None = None
    best_power_w: float | None = None
    judged_recently: int = 0
    causes_recently: tuple[str, ...] = ()
    best_decode_tps: float | None = None
    best_prefill_tps: float | None = None
    week_ago_decode_tps: float | None = None
    other_version: str | None = None
    other_version_decode_tps: float | None = None
    other_version_count: int = 0
    served_before: int | None = None
    served_alike: int | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One finished request with everything that is known about it.

    `gpu` holds samples of every GPU of the machine; `gpu_during` selects those that count.
    """

    schema: int = SCHEMA
    timeline: Timeline
    phases: Phases
    prompt: PromptPrefix | None = None
    prompt_parts: PromptParts | None = None
    repeat: Repeat | None = None
    neighbours: Neighbours = Neighbours()
    host: tuple[HostSample, ...] = ()
    gpu: tuple[GpuSample, ...] = ()
    server: ServerFacts = field(default_factory=ServerFacts)
    activity: EngineActivity | None = None
    model: ModelFacts = field(default_factory=ModelFacts)
    device: DeviceFacts = field(default_factory=DeviceFacts)
    envelope: Envelope = Envelope()
    baseline: Baseline = Baseline()
    history: History = History()

    def host_during(self, phase: Phase) -> tuple[HostSample, ...]:
        """Host samples that overlap the given phase by more than half of their span."""
        return _host_during(self, phase) if self.host else ()

    def gpu_during(self, phase: Phase) -> tuple[GpuSample, ...]:
        """Samples taken during the given phase, of the GPUs that the server uses.

        Of all GPUs if it is not known which, or if the server uses none: then an idle GPU is
        evidence.
        """
        return _gpu_during(self, phase) if self.gpu else ()

    def window(self, phase: Phase) -> tuple[float, float] | None:
        """Begin and end of a phase on the clock of the case; None if one of them is not known."""
        p, t = self.phases, self.timeline
        if phase == "decode":
            begin, end = p.decode_from_at_s, p.decode_to_at_s
        elif phase == "prefill":
            begin, end = p.prefill_from_at_s, p.decode_from_at_s
        elif phase == "delivery":
            begin, end = t.last_byte_at_s, t.delivered_at_s
        else:
            begin, end = t.sent_at_s, p.prefill_from_at_s
        return None if begin is None or end is None or end <= begin else (begin, end)


@cached_for_last_case_by_args
def _host_during(case: Case, phase: Phase) -> tuple[HostSample, ...]:
    window = case.window(phase)
    return () if window is None else tuple(_inside(case.host, *window))


def _inside(samples: Iterable[HostSample], begin: float, end: float) -> Iterable[HostSample]:
    for sample in samples:
        overlap = min(end, sample.at_s) - max(begin, sample.at_s - sample.span_s)
        if overlap > sample.span_s / 2:
            yield sample


@cached_for_last_case_by_args
def _gpu_during(case: Case, phase: Phase) -> tuple[GpuSample, ...]:
    window, server_gpus = case.window(phase), case.server.gpu_indices
    if window is None:
        return ()
    begin, end = window
    samples = [s for s in case.gpu if begin <= s.at_s <= end]
    return tuple([s for s in samples if s.index in server_gpus] if server_gpus else samples)
