"""The GPU waits for one thread of the engine, which prepares or samples each token on the CPU.

Signal:
During decode the GPU is idle for at least 15 % of the time, and that time is not spent on a bus or
on weights in RAM: one thread of the server is busy all the while, the others rest, and the rate is
below what GPU and model give. The reason may be a grammar (JSON schemas, forced tool calls), many
logprobs, samplers over the whole vocabulary, a tokenizer, a scheduler in Python, or vLLM without
CUDA graphs.

Not to be confused with:
- A thread may be busy because it waits for the GPU (CUDA spins); then the GPU is busy as well.
- `partial-offload`: all of the engine's threads are busy, with weights in RAM.
- `host-contention`, `cpu-quota`: the thread waits for a core.
- `vram-spill`, `pcie-link`, `storage-paging`: the bus or the disk is busy.
- `multi-gpu-split`: the GPUs work in turns, or wait for each other.
- With a small model on a large GPU, launching kernels takes a good part of each token, which is
  expected.

Remedy:
Leave the grammar out or use a simpler one, or let the engine sample on the GPU. Start vLLM without
--enforce-eager. A faster core and the performance governor help, too.

Sources:
- ggml-org/llama.cpp#7554 (RTX 3090, grammar: GPU 70 to 10 % busy, 85 ms of sampling per 10.6 ms).
- LostRuins/koboldcpp#810 (V100, RTX 3080 and 3060 all give 30 tokens/s with a grammar).
- marin-community/marin#9339 (8 x H100, --enforce-eager alone: 153 to 23 tokens/s).
- vllm-project/vllm#3384 (one thread is at 100 % while it waits for the GPU).
"""

from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu
from slowtok.detectors.analysis.gpu.gpu_window import (
    MAX_IDLING_POWER_RATIO,
    MIN_BUSY_RATIO,
    busy_together,
    by_gpu,
    gpus_during,
    median,
    without_first_second,
)
from slowtok.detectors.analysis.gpu.layer_split import MIN_READ_BYTES_PER_S
from slowtok.detectors.analysis.gpu.pcie import FETCHING_BYTES_PER_S
from slowtok.detectors.analysis.gpu.tensor_parallel import wait_for_each_other
from slowtok.detectors.analysis.host_window import decode_s, decode_tps, gpu_mean, mean, seconds
from slowtok.detectors.analysis.phase_loss import judge_decode, slowdown
from slowtok.detectors.analysis.placement.where import off_gpu
from slowtok.detectors.analysis.rate_shape import stalls_of
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import SPINNING_PROCESSES
from slowtok.detectors.case.finding import Evidence, Finding, Missing, Traits, need, weigh

TITLE = "GPU waits for one CPU thread"
TRAITS = Traits(phases=("decode",), requires="gpu-use", persistent=True)

MIN_THREAD_CORES = 0.9
MAX_THREAD_CORES = 1.5
"""One thread all the time, and not two. Heuristic."""

MAX_WAITING_CORES = 0.1  # longer, and others hold the thread up; heuristic

MIN_LOOK_S = 2.0  # utilization is a mean of up to a second

# A GPU whose many small steps the CPU starts one by one, because CUDA graphs are switched off.
#
# Sources: marin-community/marin#9339 (8 x H100, --enforce-eager alone: 153 to 23 tokens/s), MONAI
# VLM-Surgical#5 (A6000: 4.1 times as fast without it).

LEAST_TIMES, MAX_TIMES = 1.5, 8.0
"""4.1 and 6.7 times were published; heuristic: the edges around them."""


def detect(case: Case) -> Finding | None:
    """Fire when the GPU idles while one thread works, and nothing else explains either."""
    if not decodes_on_gpu(case) or judge_decode(case).slow is False:
        return None
    host = case.host_during("decode")
    if not host and case.server.eager:
        return _launched_one_by_one(case)
    need(host or None, "host samples during decode")
    if seconds(host) < MIN_LOOK_S:
        return None
    cores = need(_thread_cores(case), "CPU time of the server")
    waiting = mean(host, lambda s: s.server_run_delay_cores) or 0.0
    if not MIN_THREAD_CORES <= cores <= _most_cores(case) or waiting >= MAX_WAITING_CORES:
        return None
    stalled_s = sum(stall.gap_s for stall in stalls_of(case))  # a late thread is late at each token
    busy = busy_together(gpus_during(case, "decode").values(), case.server, gpu_mean)
    busy = need(busy, "GPU utilisation") + stalled_s / decode_s(case)
    eager = bool(case.server.eager) and _does_little(case) is True
    if busy >= MIN_BUSY_RATIO and not eager:
        return None
    return None if _has_other_work(case) else _finding(case, busy, cores, eager=eager)


def _thread_cores(case: Case) -> float | None:
    """Return the cores that the engine used: its busiest process's where it has several."""
    host = case.host_during("decode")
    if case.server.kind in SPINNING_PROCESSES:
        busiest = mean(host, lambda s: s.server_busiest_process_cores)
        if busiest is not None:
            return busiest
    return mean(host, lambda s: s.server_cpu_cores)


def _most_cores(case: Case) -> float:
    """Return from where on more than one thread of a process computes."""
    is_one = case.server.kind in SPINNING_PROCESSES and any(
        s.server_busiest_process_cores is not None for s in case.host_during("decode")
    )
    processes = 1 if is_one else case.server.tensor_parallel or 1  # one for each GPU
    return MAX_THREAD_CORES + processes - 1


def _has_other_work(case: Case) -> bool:
    """Return True if something else idles the GPU: bus, disk, weights in RAM, a missing licence."""
    if not case.server.eager and wait_for_each_other(case):
        return True
    reads = mean(case.host_during("decode"), lambda s: s.server_read_bytes_per_s) or 0.0
    if reads >= MIN_READ_BYTES_PER_S:
        return True
    if case.server.kv_on_gpu is False or any(s.vgpu_licensed is False for s in case.gpu):
        return True
    traffic = [
        median(samples, lambda s: s.pcie_rx_bytes_per_s)
        for samples in gpus_during(case, "decode").values()
    ]
    if any(rate is not None and rate >= FETCHING_BYTES_PER_S for rate in traffic):
        return True
    try:
        return off_gpu(case) is not None
    except Missing:
        return False


def _finding(case: Case, busy: float, cores: float, *, eager: bool) -> Finding:
    took_s, rate_tps = decode_s(case), decode_tps(case)
    idle_s = took_s * (1 - busy)
    # no formula tells what launching costs without CUDA graphs: 1.8 to 6.7 times were published
    lost_s = max(judge_decode(case).lost_s, idle_s) if eager else idle_s
    said = (
        f"CUDA graphs are switched off, so the CPU starts each of the GPU's many small steps by "
        f"itself, and the GPU, {100 * busy:.0f} % busy, does little at a time"
        if eager
        else f"The GPU was busy only {100 * busy:.0f} % of the decode and waited for the engine's "
        "one busy CPU thread, which prepares or samples each token"
    )
    return Finding(
        phase="decode",
        confidence=weigh("gauge", "gauge", "server" if eager else "inference"),
        lost_s=lost_s,
        summary=f"{said}: {rate_tps:.1f} tokens/s; that lost about {{lost}}.",
        remedy=_remedy(case, eager=eager),
        evidence=(
            Evidence(name="GPU busy", value=100 * busy, unit="%", limit=100 * MIN_BUSY_RATIO),
            Evidence(name="CPU of the server", value=cores, unit="cores", limit=MIN_THREAD_CORES),
            Evidence(name="decode rate", value=rate_tps, unit="tokens/s"),
        ),
    )


def _remedy(case: Case, *, eager: bool) -> str:
    if eager:
        return _with_graphs(case)
    engine = {
        "llama-server": "start llama-server with --backend-sampling, or take a newer build",
        "vllm": "start vLLM with --async-scheduling, or take a newer version",
        "ollama": "leave format out of the request, or take a newer Ollama",
    }.get(case.server.kind, "take a newer version of the engine")
    return (
        "If the request asks for JSON, a schema, a grammar, tools or logprobs, try it without, or "
        f"with a simpler one; if not, {engine}. A faster CPU core (performance governor) helps, "
        "too."
    )


def _does_little(case: Case) -> bool | None:
    """Return True if the GPUs draw little of their best, or of the limit; None where not told.

    One that runs many small kernels counts as busy between them; its power says otherwise.
    """
    ratios = []
    for samples in by_gpu(case.gpu_during("decode")).values():
        power = median(without_first_second(samples), lambda s: s.power_w)
        whole = case.history.best_power_w or median(samples, lambda s: s.power_limit_w)
        if power is not None and whole:
            ratios.append(power / whole)
    return max(ratios) < MAX_IDLING_POWER_RATIO if ratios else None


def _launched_one_by_one(case: Case) -> Finding | None:
    """Return what the engine's word alone says: nobody sees its threads.

    It is believed no further than one piece of evidence with a doubt, and only for a slowdown such
    as was published.
    """
    lost_s, rate_tps = judge_decode(case).lost_s, decode_tps(case)
    times = slowdown(case, lost_s, "decode")
    if _does_little(case) is False or not LEAST_TIMES <= times <= MAX_TIMES:
        return None
    return Finding(
        phase="decode",
        confidence=weigh("server", against=1),
        lost_s=lost_s,
        summary=(
            "CUDA graphs are switched off, so the CPU starts each of the GPU's many small steps by "
            f"itself; that is probably why there were only {rate_tps:.1f} tokens/s, and decode "
            "lost about {lost}."
        ),
        remedy=_with_graphs(case),
        evidence=(
            Evidence(name="decode rate", value=rate_tps, unit="tokens/s"),
            Evidence(name="times slower", value=times, unit="times", limit=LEAST_TIMES),
        ),
    )


def _with_graphs(case: Case) -> str:
    """Return how to switch them on."""
    flag = {"sglang": "--disable-cuda-graph"}.get(case.server.kind, "--enforce-eager")
    return f"Start the engine without {flag}: CUDA graphs launch a whole step at once."
