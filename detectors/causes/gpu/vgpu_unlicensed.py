"""The virtual GPU has no licence, so its driver slows it down after some 20 minutes.

Signal:
The GPU is a share of one (vGPU), its driver says that no feature is licensed, and decode is far
slower than expected: 10 to 150 times in reports. All is well in the first 20 minutes or so after
the machine has started. Then the rate collapses, in the middle of an answer too, and the GPU shows
0 % busy.

Not to be confused with:
- A whole GPU that is passed through to a machine needs no licence for computing.
- `cpu-fallback`: the GPU is idle, too, but CPU threads are busy.
- `gpu-shared`: a vGPU that is slow with its licence waits for its neighbours on the same card.

Remedy:
Get the licence. Until then, a restart of the machine gives another 20 minutes.

Sources:
- ollama/ollama#8023 (L40S-24Q: fine for 20 minutes, then 0 % busy; a licence cured it, said in
  #8200), #1863 (P40: 15 to 0.1 tokens/s while answering), #13955; NVIDIA/cudf#10507 (A30-24C).
- NVIDIA vGPU Client Licensing User Guide: an unlicensed vGPU is degraded over time.
"""

from slowtok.detectors.analysis.gpu.clock_loss import observed_slowdown
from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu
from slowtok.detectors.analysis.gpu.gpu_window import by_gpu, gpu_facts, median, newest
from slowtok.detectors.analysis.host_window import decode_s, decode_tps
from slowtok.detectors.analysis.rate_shape import step_of
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, EvidenceKind, Finding, Traits, need, weigh
from slowtok.detectors.case.machine import GpuFacts, GpuSample
from slowtok.detectors.case.named_facts import label

TITLE = "vGPU without a licence"
TRAITS = Traits(requires="gpu")

MIN_SLOWDOWN = 2.0
"""Reports have 10 to 150 times. What is slower by less has other reasons. Heuristic."""

IDLE_RATIO = 0.2
"""Reports show 0 %. Heuristic."""


def detect(case: Case) -> Finding | None:
    """Fire when an unlicensed virtual GPU is far slower than expected."""
    if not decodes_on_gpu(case):
        return None
    for index, samples in by_gpu(case.gpu_during("decode")).items():
        gpu = gpu_facts(case, index)
        if gpu.virtual and not _is_licensed(samples):
            observed = observed_slowdown(case, "decode")
            return _finding(case, gpu, samples, observed) if observed >= MIN_SLOWDOWN else None
    return None


def _is_licensed(samples: tuple[GpuSample, ...]) -> bool:
    return bool(need(newest(samples, lambda s: s.vgpu_licensed), "licence of the vGPU"))


def _finding(case: Case, gpu: GpuFacts, samples: tuple[GpuSample, ...], observed: float) -> Finding:
    busy = median(samples, lambda s: s.busy_ratio)
    proof: tuple[EvidenceKind, ...] = ("server", "gauge") if _idles(busy) else ("server",)
    step = step_of(case)
    fell = step is not None and step.after_tps < step.before_tps
    since = f" from token {step.token} on" if step is not None and fell else ""
    # no formula: the driver's own word, and how much slower differs from report to report
    lost_s = decode_s(case) * (1 - 1 / observed)
    evidence = [
        Evidence(name="licensed features", value=0, unit="features", limit=1),
        Evidence(name="times slower", value=observed, unit="times", limit=MIN_SLOWDOWN),
    ]
    if busy is not None:
        evidence.append(Evidence(name="GPU busy", value=100 * busy, unit="%"))
    return Finding(
        phase="decode",
        confidence=weigh(*proof),
        lost_s=lost_s,
        summary=(
            f"{label(gpu)} is a virtual GPU without a licence, which its driver slows down some "
            f"20 minutes after the start: {decode_tps(case):.1f} tokens/s{since}, {observed:.1f} "
            f"times slower than expected; decode lost about {{lost}}."
        ),
        remedy=(
            "Give the virtual machine its vGPU licence: put the token into "
            "/etc/nvidia/ClientConfigToken, then run sudo systemctl restart nvidia-gridd "
            "(nvidia-smi -q shows the License Status). Until then a restart of the machine gives "
            "some 20 minutes."
        ),
        evidence=tuple(evidence),
    )


def _idles(busy: float | None) -> bool:
    return busy is not None and busy <= IDLE_RATIO
