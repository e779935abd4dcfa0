"""The cost of a model that is partly in RAM, and how sure that is.

Strategy: each token reads that part from RAM, or the GPU fetches it over its link. The first is the
mix of `slowtok.detectors.expectation.configured`, as a range.

Sources: 15 published rows of split models lie at 0.71 to 1.37 of the mix. Attention on a CPU reads
its KV cache at 0.09 to 0.74 of the bandwidth, by kernel (docs/envelope.md).
"""

from slowtok.detectors.analysis.gpu.gpu_window import busy_together, by_gpu, median
from slowtok.detectors.analysis.gpu.pcie import link_at_work
from slowtok.detectors.analysis.host_window import (
    CPU_DECODES_CORES,
    GPU_DECODES_CORES,
    decode_s,
    decode_tps,
)
from slowtok.detectors.analysis.placement.where import (
    MIN_CPU_RATIO,
    TOLD,
    Placement,
    server_cores,
    serving_gpus,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, EvidenceKind, need, weigh
from slowtok.detectors.expectation.configured import (
    SPLIT_HIGH_RATIO,
    SPLIT_LOW_RATIO,
    SPLIT_RAM_EFFICIENCY,
)
from slowtok.detectors.expectation.memory import CPU_KV_RATIO

UNMEASURED_RAM_BYTES_PER_S = 50e9
"""Two channels of DDR4-3200 give 51 GB/s; used only until this machine's RAM has been measured."""

UNMEASURED_RAM_RATIO = 2.5
"""One slow channel has 20 GB/s, a workstation's four have 100 and more."""

FAST_CPU_KV_RATIO = 0.74 / 0.71
"""The quickest published attention kernel on a CPU, against the rate at which weights are read."""

LINK_BYTES_PER_S = 26e9
"""PCIe 4.0 x16 in practice; used where the link is not known."""

BUSY_RATIO = 0.90
WAITING_RATIO = 0.60
"""Utilization of a GPU that does not wait for a CPU, and of one that does. Heuristic;
ollama/ollama#3301 shows 15 %, ggml-org/llama.cpp#17880 39 %."""


def lost_s(case: Case, placed: Placement) -> float:
    """Return what the part beside the GPU cost this decode, never more than is predicted.

    What is known of CPUs gives a range of what a token takes longer; the value in it that is
    nearest to what happened is taken, because where the weights lie is known. Since the model was
    loaded it has not moved: what comes on top of this load's usual rate is something else's. Where
    more is predicted than happened it is a share of the decode, so that a prediction of 60 ms
    for a token that took 55 is not one of more than all.

    Raises:
        Missing: the bytes of a token, the rate or the one expected of this GPU are not known.
    """
    expected_tps = need(case.envelope.expected_tps, "decode rate expected of this GPU")
    least_s, most_s = longer_per_token_s(case, placed)
    token_s, whole_s = 1 / decode_tps(case), 1 / expected_tps
    longer_s = min(max(token_s - whole_s, least_s), most_s)
    if usual_tps := case.baseline.usual_decode_tps:
        longer_s = min(longer_s, max(1 / usual_tps - whole_s, 0.0))
    return decode_s(case) * longer_s / max(longer_s + whole_s, token_s)


def longer_per_token_s(case: Case, placed: Placement) -> tuple[float, float]:
    """Return how much longer a token takes than wholly on the GPU: at least, and at most.

    Raises:
        Missing: the bytes of a token or the rate expected of this GPU are not known.
    """
    weights = placed.weights_ratio * need(case.envelope.read_bytes, "bytes read per token")
    kv = placed.kv_ratio * (case.envelope.kv_bytes or 0.0)
    whole_s = 1 / need(case.envelope.expected_tps, "decode rate expected of this GPU")
    spared_s = placed.cpu_ratio * whole_s
    rate, spread = _ram_bytes_per_s(case)
    if placed.over_link:
        rate, spread = link_bytes_per_s(case), 1.0
    quick = (weights + kv / FAST_CPU_KV_RATIO) / (rate * spread * SPLIT_HIGH_RATIO)
    slow = (weights + kv / CPU_KV_RATIO) / (rate / spread * SPLIT_LOW_RATIO)
    return max(quick - spared_s, 0.0), max(slow - spared_s, 0.0)


def link_bytes_per_s(case: Case) -> float:
    """Return what the narrowest PCIe link of the GPUs that serve carries in practice."""
    links = [link_at_work(case, gpu.index) for gpu in serving_gpus(case)]
    known = [link.carries_bytes_per_s for link in links if link is not None]
    return min(known, default=LINK_BYTES_PER_S)


def said_cost(case: Case) -> str:
    """Return what it came to, as the end of a summary; `{lost}` is filled in by the diagnosis."""
    expected_tps = need(case.envelope.expected_tps, "decode rate expected of this GPU")
    return (
        f"decode ran at {decode_tps(case):.1f} tokens/s instead of about {expected_tps:.0f} with "
        f"all of it on the GPU, and lost about {{lost}}."
    )


def said_share(placed: Placement) -> str:
    """Return how much lies where, for a summary."""
    percent = 100 * placed.cpu_ratio
    share = f"{percent:.0f} %" if percent < 100 else "all"
    return f"{share} of what each token reads is in the machine's RAM, which is far slower"


def evidence_of(case: Case, placed: Placement) -> tuple[Evidence, ...]:
    """Return the share beside the GPU, and what the GPU did meanwhile."""
    share = Evidence(
        name=f"share not on the GPU (by {placed.source})",
        value=100 * placed.cpu_ratio,
        unit="%",
        limit=100 * MIN_CPU_RATIO,
    )
    busy = gpu_busy_ratio(case)
    if busy is None:
        return (share,)
    return (share, Evidence(name="GPU busy", value=100 * busy, unit="%"))


def gpu_busy_ratio(case: Case) -> float | None:
    """Return how busy decode kept the GPUs together."""
    return busy_together(by_gpu(case.gpu_during("decode")).values(), case.server, median)


def is_fetched(case: Case, placed: Placement) -> bool:
    """Return True if the GPU fetches what is missing itself: too much for it, and the CPU rests."""
    cores = server_cores(case)
    return placed.source == "size" and cores is not None and cores <= CPU_DECODES_CORES


def confidence(case: Case, placed: Placement) -> float:
    """Return how sure it is that so much is not on a GPU: who says so, and what CPU and GPU did."""
    busy, cores = gpu_busy_ratio(case), server_cores(case)
    kinds: list[EvidenceKind] = ["server" if placed.source in TOLD else "gauge"]
    if busy is not None and busy < WAITING_RATIO:
        kinds.append("gauge")
    if cores is not None and cores > CPU_DECODES_CORES:
        kinds.append("gauge")
    rests = cores is not None and cores < GPU_DECODES_CORES and not placed.over_link
    never_waits = busy is not None and busy >= BUSY_RATIO and not placed.over_link
    return weigh(*kinds, against=rests + never_waits)


def _ram_bytes_per_s(case: Case) -> tuple[float, float]:
    """Return the rate at which a split model is read from RAM, and the factor it may be off by."""
    measured = case.device.ram_bandwidth_bytes_per_s
    if measured:
        return SPLIT_RAM_EFFICIENCY * measured, 1.0
    return SPLIT_RAM_EFFICIENCY * UNMEASURED_RAM_BYTES_PER_S, UNMEASURED_RAM_RATIO
