"""An earlier load of the same model had more of it on the GPU than this one.

Signal:
A part of what each token reads is not on the GPU. When the model was loaded before with the same
context, it held more memory there, and neither its size nor other programs explain the difference.
What remains is the memory of a runner that was not gone yet, or memory in pieces.

Not to be confused with:
- `vram-held-by-others`: another program holds what is missing.
- A larger context or another quantisation is another configuration, not a worse load.
- `cpu-fallback`: there was room, and the engine took none of it.
- `thermal-throttle`, `vgpu-unlicensed`: the GPU gets slower with time, not with a load.

Remedy:
Unload the model and load it again once its memory is free; if that does not help, restart the
engine. Leave 1 GiB of the GPU free.

Sources:
- lmstudio-ai/lmstudio-bug-tracker#1923 (15.2 of 16 GB: "incredibly slow" after a load, full speed
  after another one, every time).
- ollama/ollama#7919 (its log: "gpu VRAM usage didn't recover within timeout").
"""

from slowtok.detectors.analysis.placement.attribution import attribute
from slowtok.detectors.analysis.placement.reasons import better_load_bytes
from slowtok.detectors.analysis.placement.remedies import load_again, steps
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits
from slowtok.detectors.expectation.footprint import GIB

TITLE = "Loaded worse than before"
TRAITS = Traits(requires="gpu-use", persistent=True, since_load=True)

UNPROVEN_RATIO = 0.8
"""The reports show that it happens and what cures it, not why: medium confidence at best."""


def detect(case: Case) -> Finding | None:
    """Fire when the same configuration was on the GPU with more of it before."""
    cause = attribute(case, "reload-degradation")
    best = better_load_bytes(case)
    if cause is None or best is None:
        return None
    now = case.history.loads[0].server_gpu_bytes or 0
    return Finding(
        phase="decode",
        confidence=round(UNPROVEN_RATIO * cause.confidence, 2),
        lost_s=cause.lost_s,
        summary=(
            f"This load put {now / GIB:.1f} GiB of the model on the GPU where an earlier one with "
            f"the same context put {best / GIB:.1f} GiB, so {cause.said}"
        ),
        remedy=steps(f"{_first(load_again(case))}; if that changes nothing, {_then(case)}"),
        evidence=(
            Evidence(name="on the GPU now", value=now / GIB, unit="GiB", limit=best / GIB),
            *cause.evidence,
        ),
    )


def _first(step: str) -> str:
    return f"wait until the GPU's memory is free (nvidia-smi), then {step}"


def _then(case: Case) -> str:
    return {
        "ollama": "restart Ollama, and leave it 1 GiB more (OLLAMA_GPU_OVERHEAD=1073741824)",
        "llama-server": "keep 2 GiB free (-fitt 2048), or reboot",
    }.get(case.server.kind, "restart the engine")
