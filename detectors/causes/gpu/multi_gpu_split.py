"""Several GPUs share the work in a way that costs more than it brings.

Signal:
With tensor parallel or a split by rows, each layer needs several exchanges between the GPUs, and
they wait for each other: they are unequally busy, none draws its full power, they send as much as
they receive, or they are slower than one card alone, or one card after the other, would be. With a
split by layers, the slower card holds more layers than it has to (slowtok reports this only to
explain the rate), or a model that fits one card is split and both cards idle for a while.

Not to be confused with:
- Two GPUs at half of their utilisation each are normal: the cards compute their layers one after
  the other.
- `pcie-link`: a link is below what card and slot can do. That cause comes first.
- `vram-spill`: traffic goes into the GPU, and hardly any comes out.
- `partial-offload`, `host-bound`: the CPU computes, or all GPUs wait for it alike.
- `thermal-throttle`, `power-cap`, `gpu-shared`: one card is held back and makes the others wait.

Remedy:
Give each GPU whole layers, or use one GPU where the model fits it. Tensor parallel needs a direct
link: NVLink, or a driver with peer-to-peer.

Sources:
- noonghunna/club-3090#356 (2 RTX 3090, PCIe 3, no peer-to-peer: 82 and 51 % busy, 195 and 243 of
  290 W, 50 instead of 66 to 71 tokens/s), docs/HARDWARE.md (28 and 85 %, 32 instead of 89).
- ggml-org/llama.cpp#4747 (8 H100 by rows: 21 tokens/s; one A100: 72), #10682 (RX 6800 with RX
  6700 XT: 25.1 by layers, 57.2 and 46.7 alone).
- oobabooga/textgen#5435 (43 % each, by layers: normal).
- `slowtok.detectors.analysis.gpu.tensor_parallel` and `layer_split`: the arithmetic.
"""

from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu
from slowtok.detectors.analysis.gpu.gpu_window import gpu_facts
from slowtok.detectors.analysis.gpu.layer_split import (
    MIN_GAIN,
    Gap,
    Uneven,
    gap_between,
    gpus_in_use,
    uneven,
)
from slowtok.detectors.analysis.gpu.tensor_parallel import GpuWaiting, exchange_loss
from slowtok.detectors.analysis.host_window import decode_s, decode_tps
from slowtok.detectors.analysis.phase_loss import expected_decode_tps, judge_decode
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits, weigh
from slowtok.detectors.case.named_facts import label
from slowtok.detectors.expectation.memory import is_tensor_parallel

TITLE = "Split over several GPUs costs time"
TRAITS = Traits(requires="gpu", persistent=True, since_load=True)

NO_ALARM = weigh("inference")
"""Beside a normal verdict: the rate is what these GPUs give with this split, and another split may
give more. Below one half, so that nobody takes it for the cause of a slow request."""


def detect(case: Case) -> Finding | None:
    """Fire where exchange or gaps between GPUs took the time; say where an uneven split did."""
    if not decodes_on_gpu(case):
        return None
    indices = gpus_in_use(case)
    if len(indices) < 2:
        return None
    if is_tensor_parallel(case.server):
        waiting = exchange_loss(case, indices)
        return None if waiting is None else _exchange(case, waiting)
    gap = gap_between(case, indices)
    if gap is not None:
        return _gap(case, gap)
    found = uneven(case, indices)
    return None if found is None else _uneven(case, found)


def _exchange(case: Case, waiting: GpuWaiting) -> Finding:
    rate_tps, expected_tps = decode_tps(case), expected_decode_tps(case) or 0.0
    normal = waiting.slower_than_one and judge_decode(case).slow is False
    cost = f" instead of about {expected_tps:.0f}; the exchange cost decode about {{lost}}."
    if normal:
        cost = ", less than without sharing."
    return Finding(
        phase="decode",
        confidence=NO_ALARM
        if normal
        else weigh("inference", *waiting.kinds, against=waiting.against),
        lost_s=waiting.lost_s,
        informational=normal,
        summary=(
            f"{waiting.gpus} GPUs compute each layer together and waited for each other "
            f"({'; '.join(waiting.signs)}): {rate_tps:.1f} tokens/s{cost}"
        ),
        remedy=_exchange_remedy(case, waiting.gpus),
        evidence=(
            Evidence(name="decode rate", value=rate_tps, unit="tokens/s", limit=expected_tps),
            *waiting.evidence,
        ),
    )


def _exchange_remedy(case: Case, gpus: int) -> str:
    layers = {
        "llama-server": "Start llama-server with --split-mode layer in place of row or tensor",
        "vllm": f"Start vLLM with --pipeline-parallel-size {gpus} --tensor-parallel-size 1",
        "ollama": "Let Ollama split by layers",
    }.get(case.server.kind, "Give each GPU whole layers")
    return (
        f"{layers}; or use one GPU if the model fits it (CUDA_VISIBLE_DEVICES=0); or give the GPUs "
        "a direct way to each other: NVLink, a driver with peer-to-peer, or slots at the same CPU "
        "(nvidia-smi topo -m shows them)."
    )


def _gap(case: Case, gap: Gap) -> Finding:
    return Finding(
        phase="decode",
        confidence=weigh("gauge", "inference"),
        lost_s=gap.lost_s,
        summary=(
            f"The model would fit one GPU but is split by layers over {gap.gpus}, and all of them "
            f"were idle for {100 * (1 - gap.busy_ratio):.0f} % of decode, between one card and the "
            "next; that cost about {lost}."
        ),
        remedy=f"Keep the model on one GPU: {_one_gpu(case, gap.best_index)}.",
        evidence=(
            Evidence(name="GPUs busy, together", value=100 * gap.busy_ratio, unit="%"),
            Evidence(name="decode rate", value=decode_tps(case), unit="tokens/s"),
        ),
    )


def _uneven(case: Case, found: Uneven) -> Finding:
    slow, fast = gpu_facts(case, found.slow_index), gpu_facts(case, found.fast_index)
    return Finding(
        phase="decode",
        confidence=NO_ALARM,
        lost_s=decode_s(case) * (1 - 1 / found.gain),
        informational=True,
        summary=(
            f"{label(slow)} reads its memory at {found.slow_bytes_per_s / 1e9:.0f} GB/s and "
            f"{label(fast)} at {found.fast_bytes_per_s / 1e9:.0f}, and the slower one holds "
            f"{100 * found.slow_share:.0f} % of the model, so it takes "
            f"{100 * found.slow_time_share:.0f} % of each token's time; "
            f"with the faster one filled first a token would come {found.gain:.1f} times as fast."
        ),
        remedy=_uneven_remedy(case, found),
        evidence=(
            Evidence(name="model on the slower GPU", value=100 * found.slow_share, unit="%"),
            Evidence(
                name="gain with the faster one full first",
                value=found.gain,
                unit="x",
                limit=MIN_GAIN,
            ),
        ),
    )


def _uneven_remedy(case: Case, found: Uneven) -> str:
    if found.fits_fast:
        return f"Keep the model on the faster GPU alone: {_one_gpu(case, found.fast_index)}."
    split = ",".join(f"{100 * share:.0f}" for share in found.best_shares)
    if case.server.kind == "llama-server":
        return f"Start llama-server with --tensor-split {split}."
    return f"Give the GPUs {split} % of the layers, in the order of their numbers."


def _one_gpu(case: Case, index: int) -> str:
    if case.server.kind == "llama-server":
        return f"start llama-server with --split-mode none --main-gpu {index}"
    chosen = gpu_facts(case, index).uuid or index
    return f"start the engine with CUDA_VISIBLE_DEVICES={chosen}"
