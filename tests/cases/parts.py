"""What cases from reports are put together from.

A report gives a few numbers of what a whole case holds. What it does not give stays unknown, save
what a name tells (a card's bandwidth, a model's geometry) and what a case cannot be without; each
report lists what was inferred for it, `USUAL` what was for all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slowtok.config.hardware import find_card
from slowtok.config.models import find_model
from slowtok.detectors.case.case import (
    Baseline,
    Case,
    EngineTimings,
    History,
    Neighbours,
    Phases,
    PromptPrefix,
    Timeline,
    Tokens,
)
from slowtok.detectors.case.engine import EngineActivity, ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts, GpuProcess, GpuSample, HostSample
from slowtok.detectors.expectation.envelope import with_expectation
from slowtok.proxy.stream.phases import split

MIB, GIB = 2**20, 2**30
SENT_AT_S = 1000.0
FAST_S = 0.1
PID = 4711

USUAL = {
    "timeline": "a streamed request, evenly spaced tokens; an answer long enough to be judged and "
    "a prompt of 100 tokens read in 0.2 s, where the report tells no other",
    "device.gpus": "memory, bandwidth and default power limit go by the card's name",
    "model": "geometry goes by the model's name, bytes by that and by bits per weight",
    "server.gpu_indices": "the engine uses the GPUs that the report speaks of",
}

BITS = {  # per weight, all tensors together: sizes of published files over their parameters
    "Q3_K_M": 3.91,
    "IQ4_XS": 4.25,
    "Q4_0": 4.55,
    "Q4_K_S": 4.58,
    "Q4_K_M": 4.85,
    "UD-Q4_K_XL": 4.98,
    "Q5_K_M": 5.7,
    "Q8_0": 8.5,
    "F16": 16.0,
    "BF16": 16.0,
    "FP8": 8.0,
    "NVFP4": 4.5,
    "INT4": 4.25,
    "OQ8": 8.5,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report as a case, with the right thing to say of it.

    `slow` None: the report does not tell beyond doubt. `primary` are the causes of which one has
    to come first; none: nothing has to be named. `allowed` may be named, too. `verdicts` are the
    right ones. `later` is the cause that has no name yet: nothing has to be named until it has.
    `needs` is what would have had to be seen to name it.
    """

    name: str
    url: str
    says: str
    case: Case
    slow: bool | None
    primary: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ("slow",)
    inferred: Mapping[str, str] = field(default_factory=dict)
    later: str | None = None
    needs: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request: `tps` is the rate between stalls, `stall` the token before which it stood still.

    `told` says that the engine puts its own timings into the reply.
    """

    tps: float | None = None
    completion: int | None = 200
    prompt: int | None = 100
    cached: int | None = None
    prefill_s: float = 0.2
    load_s: float = 0.0
    stall: tuple[int, float] | None = None
    reads: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    told: bool = True
    total_s: float | None = None


def timeline(asked: Asked, model: str | None = None) -> Timeline:
    """Return the time line of one streamed request."""
    first = SENT_AT_S + asked.load_s + asked.prefill_s
    arrivals = _arrivals(asked, first)
    last = arrivals[-1] if asked.total_s is None else SENT_AT_S + asked.total_s
    decode_s = last - first if asked.tps or asked.total_s else None
    engine = EngineTimings(load_s=asked.load_s, prefill_s=asked.prefill_s, decode_s=decode_s)
    gap = 1 / asked.tps if asked.tps else None
    return Timeline(
        request_id="0199f3c2-0000-7000-8000-000000000003",
        path="/v1/chat/completions",
        model=model,
        stream=True,
        status=200,
        ended="stop",
        started_unix_s=1.8e9,
        accepted_at_s=SENT_AT_S - 0.001,
        sent_at_s=SENT_AT_S,
        headers_at_s=SENT_AT_S + asked.load_s + 0.001,
        first_token_at_s=first,
        last_token_at_s=last,
        last_byte_at_s=last,
        delivered_at_s=last,
        token_at_s=arrivals,
        itl_p50_s=gap,
        itl_p99_s=gap,
        tokens=Tokens(
            prompt=asked.prompt,
            cached=asked.cached,
            completion=asked.completion,
            drafted=asked.drafted,
            accepted=asked.accepted,
        ),
        engine=engine if asked.told else None,
    )


def _arrivals(asked: Asked, first: float) -> tuple[float, ...]:
    if not asked.tps or not asked.completion:
        return (first,)
    reads = asked.reads or asked.completion
    step = (asked.completion - 1) / asked.tps / max(reads - 1, 1)
    token, stood_s = asked.stall or (reads, 0.0)
    return tuple(first + i * step + (stood_s if i >= token else 0.0) for i in range(reads))


def build(
    asked: Asked,
    *,
    kind: str,
    model: ModelFacts | None = None,
    cards: tuple[GpuFacts, ...] | None = None,
    gpu: tuple[Mapping[str, Any], ...] = (),
    host: Mapping[str, Any] | None = None,
    host_span_s: float = 1.0,
    server: Mapping[str, Any] | None = None,
    device: Mapping[str, Any] | None = None,
    prompt: PromptPrefix | None = None,
    neighbours: Neighbours | None = None,
    activity: EngineActivity | None = None,
    baseline: Baseline | None = None,
    history: History | None = None,
) -> Case:
    """Put a case together; `gpu` has the readings of each card, `host` those of the machine."""
    facts = model or ModelFacts()
    line = timeline(asked, facts.name)
    phases = split(line, early_head=kind == "llama-server" and asked.load_s == 0)
    used = {"gpu_indices": tuple(card.index for card in cards)} if cards else {}
    case = Case(
        timeline=line,
        phases=phases,
        prompt=prompt,
        neighbours=neighbours or Neighbours(),
        host=() if host is None else _host(line, host_span_s, host),
        gpu=tuple(s for i, readings in enumerate(gpu) for s in _gpu(phases, i, readings)),
        server=replace(ServerFacts(kind=kind, local=True, pid=PID), **{**used, **(server or {})}),
        activity=activity,
        model=facts,
        device=replace(DeviceFacts(gpus=cards), **(device or {})),
        baseline=baseline or Baseline(),
        history=history or History(),
    )
    return with_expectation(case)


SLOWER = frozenset({"processes", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"})
SLOWER |= {"pcie_generation", "pcie_width", "power_source", "vgpu_licensed"}


def _gpu(phases: Phases, index: int, readings: Mapping[str, Any]) -> list[GpuSample]:
    """Samples of the decode, at 10 Hz; those of `SLOWER` at 1 Hz."""
    begin, end = phases.decode_from_at_s, phases.decode_to_at_s
    if begin is None or end is None:
        return []
    found = []
    for i in range(int((end - begin) / FAST_S) + 1):
        due = {k: v for k, v in readings.items() if k not in SLOWER or i % 10 == 0}
        values = {name: value(i) if callable(value) else value for name, value in due.items()}
        found.append(GpuSample(at_s=begin + i * FAST_S, index=index, **values))
    return found


def _host(line: Timeline, span_s: float, readings: Mapping[str, Any]) -> tuple[HostSample, ...]:
    count = int(((line.last_token_at_s or SENT_AT_S) - SENT_AT_S) / span_s) + 2
    return tuple(
        HostSample(
            at_s=SENT_AT_S + i * span_s,
            span_s=span_s,
            **{name: value(i) if callable(value) else value for name, value in readings.items()},
        )
        for i in range(count)
    )


def between(low: float, high: float) -> Callable[[int], float]:
    """Readings that wander between two reported ones, evenly."""
    return lambda i: low + (high - low) * (i * 7 % 11) / 10


def whole_between(low: int, high: int) -> Callable[[int], int]:
    """The same for readings that are whole numbers."""
    return lambda i: round(low + (high - low) * (i * 7 % 11) / 10)


def card(name: str | None, index: int = 0, **known: Any) -> GpuFacts:
    """A GPU by its name, with what the report says of it besides."""
    spec = find_card(name) if name else None
    facts = GpuFacts(
        index=index,
        name=name,
        vendor=next((v for v in ("amd", "apple") if v in (name or "").lower()), "nvidia"),
        total_bytes=int(spec.memory_bytes) if spec and spec.memory_bytes else None,
        bandwidth_bytes_per_s=spec.bandwidth_bytes_per_s if spec else None,
        default_power_limit_w=spec.default_power_limit_w if spec else None,
    )
    return replace(facts, **known)


def weights(name: str, quantisation: str, *, like: str | None = None, **known: Any) -> ModelFacts:
    """A model by its name, or by that of one of the same family and size."""
    model = find_model(like or name)
    if model is None:
        raise KeyError(like or name)
    bits = BITS[quantisation]
    facts = ModelFacts(
        name=name,
        quantisation=quantisation,
        parameters=int(model.parameters),
        active_parameters=int(model.read_parameters),
        file_bytes=int(model.parameters * bits / 8),
        read_bytes=int(model.read_parameters * bits / 8),
        layers=model.layers,
        experts=model.experts,
        experts_used=model.experts_used,
        kv_bytes_per_token=model.kv_bytes_per_token,
        kv_window_tokens=model.window_tokens,
        kv_window_bytes_per_token=model.window_bytes_per_token,
        state_bytes=model.state_bytes,
        bits_per_weight=bits,
    )
    return replace(facts, **known)


def serving(memory_mib: float | None = None) -> tuple[GpuProcess, ...]:
    """The engine as the only process on a GPU."""
    held = None if memory_mib is None else int(memory_mib * MIB)
    return (GpuProcess(pid=PID, memory_bytes=held, is_server=True),)


def vram(used_mib: float, total_mib: float) -> dict[str, int]:
    """Readings of a GPU's memory."""
    return {"total_bytes": int(total_mib * MIB), "free_bytes": int((total_mib - used_mib) * MIB)}
