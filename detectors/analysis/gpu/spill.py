"""GPU memory that spills into RAM: whether it can, what shows it, and what it costs.

Strategy: what the driver says of evicted memory is believed. Else, bytes that go into a busy GPU
all through decode are what it fetches; the time is bytes over what the link carries. Copies reach
that; pages and cache lines that the GPU asks for one by one do not, so the cost is a range. GPUs
that hold layers of one model work and fetch in turns: what counts is their sum.

Sources: thresholds of 30 % of the link and 60 % of the power are proposals without a published
source, as is the room that a GPU has where it does not spill.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slowtok.detectors.analysis.gpu.clocks import serving_samples
from slowtok.detectors.analysis.gpu.gpu_window import Read, gpu_facts, median, without_first_second
from slowtok.detectors.analysis.gpu.pcie import (
    FAULTED_RATIO,
    PRACTICAL_RATIO,
    Link,
    link_at_work,
    received,
    sent,
    share_of,
)
from slowtok.detectors.analysis.host_window import CPU_DECODES_CORES, decode_s, decode_tps, gpu_mean
from slowtok.detectors.analysis.phase_loss import decode_excess_s, nearest_loss_s
from slowtok.detectors.analysis.placement.where import server_cores, serving_gpus
from slowtok.detectors.analysis.rate_shape import RateStep, step_of
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import LLAMA_CPP
from slowtok.detectors.case.finding import Evidence, EvidenceKind, need, weigh
from slowtok.detectors.case.machine import GpuProcess, GpuSample
from slowtok.detectors.case.memo import cached_for_last_case
from slowtok.detectors.expectation.memory import is_tensor_parallel

Gpus = Mapping[int, Sequence[GpuSample]]

MIN_DECODE_S = 2.0
"""Utilisation is a mean over up to a second: less decode than this says nothing about it."""

MIN_BUSY_RATIO = 0.9
MIN_LINK_SHARE = 0.3 / PRACTICAL_RATIO
"""30 % of the link's own rate, as a share of what it carries in practice."""

MIN_FETCHING_S = 2.0
LOW_POWER_RATIO = 0.6
FULL_POWER_RATIO = 0.85
IDLE_CONTROLLER_RATIO = 0.1
"""A report shows 2 %; decode at the memory's limit shows 60 to 90."""

NEARLY_FULL_BYTES, NEARLY_FULL_RATIO = 300 * 2**20, 0.03
ROOM_BYTES, ROOM_RATIO = 2**30, 0.1
"""Less than the former is full; a GPU with more than the latter (the engines' own margin) has room
and does not spill."""

MIN_EVICTED_BYTES, MIN_EVICTED_RATIO = 64 * 2**20, 0.02
"""As a share of the weights; less costs nothing. Heuristic."""

PINNED_BYTES = 512 * 2**20
"""RAM that a GPU uses for a healthy process, too: buffers to copy from and to. Heuristic
for the amount."""

UNIFIED_MEMORY_ENGINES = LLAMA_CPP | {"unknown"}
"""Engines that know GGML_CUDA_ENABLE_UNIFIED_MEMORY, or may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill:
    """What lies in RAM, as a finding says it; `lost_s` is 0 where nothing does.

    `counted_s` is the least that the bytes counted on the links took, where nothing speaks against
    a spill.
    """

    said: str = ""
    lost_s: float = 0.0
    counted_s: float = 0.0
    confidence: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    bytes_per_token: float | None = None

    @property
    def is_spill(self) -> bool:
        """Return True if anything spills."""
        return self.lost_s > 0


@cached_for_last_case
def may_spill(case: Case) -> bool | None:
    """Return True if the driver can put GPU memory into RAM; None where that is not known."""
    gpus, server = serving_gpus(case), case.server
    own = [gpu for gpu in gpus if not gpu.unified_memory]
    if not own or case.device.os == "macos" or server.cpu_offload_bytes:
        return False  # vLLM's offload is asked for, and crosses the link by design
    if any(gpu.vendor == "amd" for gpu in own) or case.device.os in ("windows", "wsl"):
        return True
    if case.device.os is None:
        return None if not server.unified_memory else True
    return server.unified_memory if server.kind in UNIFIED_MEMORY_ENGINES else False


@cached_for_last_case
def spill_of(case: Case) -> Spill | None:
    """Return what GPUs that decode have to fetch; causes of a split ask for it, too.

    None where it is ruled out; one that is no spill where much is fetched for another reason.
    """
    if may_spill(case) is False:
        return None
    gpus = serving_samples(case, "decode")
    told = by_driver(case, gpus)
    if told is not None:
        return told if told.is_spill else None
    return _inferred(case, gpus)


def _inferred(case: Case, gpus: dict[int, tuple[GpuSample, ...]]) -> Spill | None:
    """Return what utilisation, memory and link say; None where they rule it out."""
    if decode_s(case) < MIN_DECODE_S or has_room(gpus):
        return None
    settled_gpus = {i: without_first_second(found) for i, found in gpus.items()}
    spill = None
    if (
        need(together(case, settled_gpus, lambda s: s.busy_ratio), "GPU utilisation")
        >= MIN_BUSY_RATIO
    ):
        spill = by_link(case, settled_gpus)
        spill = by_controller(case, settled_gpus) if spill is None else spill
    if spill is not None and spill.is_spill:
        return spill
    return Spill() if fetches(case, settled_gpus) else None


def has_room(gpus: Gpus) -> bool:
    """Return True if each of the GPUs has room left, so that none of them spills."""
    rooms = [_room(samples) for samples in gpus.values()]
    return all(
        free is not None and free >= max(ROOM_BYTES, ROOM_RATIO * total) for free, total in rooms
    )


def by_driver(case: Case, gpus: Gpus) -> Spill | None:
    """Return what the driver says of memory that it moved; None where it says nothing."""
    believe_ram = _fills_ram_silently(case)
    moved = [_moved_bytes(samples, believe_ram=believe_ram) for samples in gpus.values()]
    known = [count for count in moved if count is not None]
    if not known:
        return None
    weights = case.model.file_bytes or 0
    if sum(known) < max(MIN_EVICTED_BYTES, MIN_EVICTED_RATIO * weights):
        return Spill()
    per_token = sum(known) * min((case.model.read_bytes or weights) / (weights or 1), 1.0)
    tokens = need(case.timeline.tokens.completion, "number of generated tokens")
    copied_s = tokens * per_token / _link_bytes_per_s(case, gpus)
    return Spill(
        said=f"{sum(known) / 2**30:.1f} GiB of what the server put on the GPU are in RAM",
        lost_s=nearest_loss_s(case, copied_s, copied_s / FAULTED_RATIO),
        confidence=weigh("server", *_full(gpus)),
        evidence=(
            Evidence(
                name="GPU memory moved to RAM",
                value=sum(known) / 2**20,
                unit="MiB",
                limit=max(MIN_EVICTED_BYTES, MIN_EVICTED_RATIO * weights) / 2**20,
            ),
        ),
        bytes_per_token=per_token,
    )


def by_link(case: Case, gpus: Gpus) -> Spill | None:
    """Return what goes into the GPUs; None where that is not measured.

    Raises:
        Missing: there is traffic, and what the link carries is not known.
    """
    rates = {i: rate for i, s in gpus.items() if (rate := gpu_mean(s, received)) is not None}
    if not rates:
        return None
    index = max(rates, key=lambda i: rates[i])
    link = need(link_at_work(case, index), "PCIe link of the working GPU")
    turns = 1 if is_tensor_parallel(case.server) else len(rates)
    samples, least = gpus[index], MIN_LINK_SHARE * link.carries_bytes_per_s
    fetching = [s for s in samples if (received(s) or 0.0) >= least / turns]
    counted = [s for s in samples if received(s) is not None]
    if len(fetching) / len(counted) * decode_s(case) < MIN_FETCHING_S:
        return Spill()
    others = sum(rates.values()) - rates[index] if turns > 1 else 0.0
    rate = (gpu_mean(fetching, received) or 0.0) + others
    if rate < least or (len(gpus) > 1 and _is_exchange(fetching)):
        return Spill()
    share = min((rates[index] + others) / link.carries_bytes_per_s, 1.0)
    copied_s = decode_s(case) * share
    kinds, against = _doubts(case, gpus, fetching)
    step = _step(case, fetching)
    since = "" if step is None else f"From token {step.token:,} on "
    who = link.name if not others else f"{len(rates)} GPUs in turns"
    return Spill(
        said=(
            f"{since}{who} fetched {rate / 1e9:.1f} GB/s from RAM over a PCIe link that "
            f"carries about {link.carries_bytes_per_s / 1e9:.1f}"
        ),
        lost_s=nearest_loss_s(case, copied_s, copied_s / FAULTED_RATIO),
        counted_s=0.0 if against else copied_s,
        confidence=weigh("counter", *kinds, against=against),
        evidence=(_traffic(link, rate), *_power_evidence(case, gpus, fetching)),
        bytes_per_token=rate / (decode_tps(case) if step is None else step.after_tps),
    )


def by_controller(case: Case, gpus: Gpus) -> Spill:
    """Return what a memory controller says that is hardly used although its GPU is busy.

    How much is fetched is not known then, so all that decode lost is charged.

    Raises:
        Missing: neither traffic nor use of the memory is measured, or Windows may not be there.
    """
    ratio = need(together(case, gpus, lambda s: s.memory_busy_ratio), "PCIe traffic")
    if ratio > IDLE_CONTROLLER_RATIO or not _full(gpus):
        return Spill()
    need(may_spill(case), "operating system of the machine")
    lost_s = need(decode_excess_s(case), "decode rate expected of this GPU")
    against = (server_cores(case) or 0.0) > CPU_DECODES_CORES
    return Spill(
        said=(
            f"The GPU computed all the time but used its own memory only "
            f"{100 * ratio:.0f} % of it: the rest comes from RAM"
        ),
        lost_s=lost_s,
        confidence=weigh("gauge", "gauge", "inference", against=against),
        evidence=(
            Evidence(
                name="time with GPU memory traffic",
                value=100 * ratio,
                unit="%",
                limit=100 * IDLE_CONTROLLER_RATIO,
            ),
        ),
    )


def spilled_bytes(case: Case, bytes_per_token: float | None) -> float | None:
    """Return how much lies in RAM where each token fetches so much of it; None if not known.

    Of experts a token reads few, so that more lies there than it fetches.
    """
    if bytes_per_token is None:
        return None
    weights, read = case.model.file_bytes, case.model.read_bytes
    return bytes_per_token * (weights / read if weights and read else 1.0)


def together(case: Case, gpus: Gpus, read: Read) -> float | None:
    """Return a share of the time that GPUs were busy with something; None where none tells.

    That of all turns where they work one after the other; that of the least one where together.
    """
    medians = [median(samples, read) for samples in gpus.values()]
    known = [value for value in medians if value is not None]
    if not known:
        return None
    return min(known) if is_tensor_parallel(case.server) else min(sum(known), 1.0)


def fetches(case: Case, gpus: Gpus) -> bool | None:
    """Return True if as much goes into the GPUs as with a spill; None where not known."""
    shares = [
        share
        for index, samples in gpus.items()
        if (link := link_at_work(case, index)) is not None
        and (share := share_of(link, samples, received)) is not None
    ]
    if len(shares) < len(gpus):
        return None
    much = (max(shares) if is_tensor_parallel(case.server) else sum(shares)) >= MIN_LINK_SHARE
    return much and not (len(gpus) > 1 and any(_is_exchange(s) for s in gpus.values()))


def _fills_ram_silently(case: Case) -> bool:
    """Return True if RAM that a GPU uses for a process is what did not fit it.

    It holds what the CPU computes on, too, where the engine splits a model.
    """
    silently = bool(case.server.unified_memory) or case.device.os in ("windows", "wsl")
    return silently and (server_cores(case) or 0.0) <= CPU_DECODES_CORES


def _moved_bytes(samples: Sequence[GpuSample], *, believe_ram: bool) -> float | None:
    """Return the server's memory that the driver holds in RAM for one GPU, None if not told."""
    moved = []
    for processes in [s.processes for s in samples if s.processes]:
        servers = [p for p in processes if p.is_server]
        counts = [c for p in servers if (c := _moved(p, believe_ram=believe_ram)) is not None]
        if counts:
            moved.append(sum(counts))
    return sorted(moved)[len(moved) // 2] if moved else None


def _moved(process: GpuProcess, *, believe_ram: bool) -> int | None:
    if not believe_ram or process.host_memory_bytes is None:
        return process.evicted_bytes
    return max(process.host_memory_bytes - PINNED_BYTES, process.evicted_bytes or 0)


def _room(samples: Sequence[GpuSample]) -> tuple[float | None, float]:
    free = median(samples, lambda s: s.free_bytes)
    return free, median(samples, lambda s: s.total_bytes) or 0.0


def _full(gpus: Gpus) -> tuple[EvidenceKind, ...]:
    """Return one piece of evidence if a GPU has next to nothing free."""
    for free, total in (_room(samples) for samples in gpus.values()):
        if free is not None and free <= max(NEARLY_FULL_BYTES, NEARLY_FULL_RATIO * total):
            return ("gauge",)
    return ()


def _link_bytes_per_s(case: Case, gpus: Gpus) -> float:
    links = [link for i in gpus if (link := link_at_work(case, i)) is not None]
    carried = min((link.carries_bytes_per_s for link in links), default=None)
    return need(carried, "PCIe link of the working GPU")


def _is_exchange(samples: Sequence[GpuSample]) -> bool:
    """Return True if about as much goes out as in: results of several GPUs, no weights."""
    into, out = gpu_mean(samples, received), gpu_mean(samples, sent)
    return bool(into and out and 0.5 <= out / into <= 2.0)


def _doubts(
    case: Case, gpus: Gpus, fetching: Sequence[GpuSample]
) -> tuple[tuple[EvidenceKind, ...], int]:
    """Return what confirms a spill beside the traffic, and how many things speak against it."""
    power = _power_ratio(case, gpus, fetching)
    full = _full(gpus)
    memory_known = any(_room(samples)[0] is not None for samples in gpus.values())
    against = (
        case.device.os == "linux" and may_spill(case) is None,
        power is not None and power >= FULL_POWER_RATIO,
        _cpu_computes(case),
        memory_known and not full,
    )
    low: tuple[EvidenceKind, ...] = (
        ("gauge",) if power is not None and power <= LOW_POWER_RATIO else ()
    )
    return (*full, *low), sum(against)


def _cpu_computes(case: Case) -> bool:
    """Return True if as many threads work as layers on the CPU keep busy: half of the engine's."""
    cores, threads = server_cores(case) or 0.0, case.server.threads or 0
    return cores > max(CPU_DECODES_CORES, threads / 2)


def _power_ratio(case: Case, gpus: Gpus, samples: Sequence[GpuSample]) -> float | None:
    """Return the power drawn as a share of this GPU's own best, or else of its limit.

    None of GPUs that work in turns: each waits most of the time, and draws less for that.
    """
    if len(gpus) > 1 and not is_tensor_parallel(case.server):
        return None
    power = median(samples, lambda s: s.power_w)
    best = case.history.best_power_w or median(samples, lambda s: s.power_limit_w)
    best = best or gpu_facts(case, samples[0].index).default_power_limit_w
    return power / best if power is not None and best else None


def _step(case: Case, fetching: Sequence[GpuSample]) -> RateStep | None:
    """Return the fall of the rate with which it began, None where it was there from the start."""
    step = step_of(case)
    if step is None or step.after_tps >= step.before_tps or fetching[0].at_s < step.at_s - 1:
        return None
    return step


def _traffic(link: Link, rate: float) -> Evidence:
    return Evidence(
        name="PCIe traffic into the GPU",
        value=rate / 1e9,
        unit="GB/s",
        limit=MIN_LINK_SHARE * link.carries_bytes_per_s / 1e9,
    )


def _power_evidence(case: Case, gpus: Gpus, fetching: Sequence[GpuSample]) -> tuple[Evidence, ...]:
    ratio = _power_ratio(case, gpus, fetching)
    if ratio is None or ratio > LOW_POWER_RATIO:
        return ()
    limit = 100 * LOW_POWER_RATIO
    return (Evidence(name="power against its best", value=100 * ratio, unit="%", limit=limit),)
