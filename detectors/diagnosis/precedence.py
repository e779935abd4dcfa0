"""Precedence between causes: root causes come before their symptoms if both are found.

The first cause should be the one whose removal helps. Heuristic: derived from reports in which a
symptom was treated first and nothing changed; docs/causes.md links them.
"""

from collections.abc import Mapping

_WHY_NOT_ON_GPU = (
    "model-too-big",
    "context-oversized",
    "vram-held-by-others",
    "reload-degradation",
)
_LOW_CLOCKS = (
    "low-power-mode",
    "thermal-throttle",
    "power-cap",
    "hardware-slowdown",
    "clocks-stuck",
)
_CACHE_LOST = (
    "prompt-cache-miss",
    "cache-not-rewindable",
    "template-rewrite",
    "cache-evicted",
)
_WHY_NO_CORES = ("cpu-quota", "threads-misconfigured", "host-contention")

SAME_LOSS: Mapping[str, tuple[str, ...]] = {
    "partial-offload": _WHY_NOT_ON_GPU,
    "cpu-fallback": (*_WHY_NOT_ON_GPU, "vgpu-unlicensed"),
    "vram-spill": _WHY_NOT_ON_GPU,
    "storage-paging": ("model-too-big",),
    "multi-gpu-split": ("pcie-link",),
    "slow-kernel": ("gpu-fault", "engine-regression"),
    "queued": ("abandoned-request",),
    "batch-shared": ("abandoned-request",),
    "power-cap": ("low-power-mode", "thermal-throttle"),
    "hardware-slowdown": ("thermal-throttle",),
    "clocks-stuck": ("low-power-mode", "gpu-fault", "vgpu-unlicensed", "vram-spill"),
    "slow-prefill": (
        *_WHY_NOT_ON_GPU,
        *_LOW_CLOCKS,
        "partial-offload",
        "cpu-fallback",
        "pcie-link",
        *_CACHE_LOST,
        "flash-attention-off",
        "slow-kernel",
        "kernel-compile",
        "gpu-shared",
        *_WHY_NO_CORES,
    ),
}
"""Symptom to roots that cost the very same time: beside its root, a symptom is charged nothing."""

COMES_AFTER: Mapping[str, tuple[str, ...]] = {
    "threads-misconfigured": ("cpu-quota",),
    "host-contention": ("cpu-quota", "threads-misconfigured"),
    "batch-shared": _WHY_NO_CORES,
    "host-bound": (*_WHY_NO_CORES, "vgpu-unlicensed"),
    "queued": ("model-load",),
    "engine-regression": (
        *_WHY_NOT_ON_GPU,
        *_LOW_CLOCKS,
        *_WHY_NO_CORES,
        "cpu-fallback",
        "partial-offload",
        "gpu-shared",
        "vram-spill",
        "flash-attention-off",
    ),
    "cache-evicted": ("model-load",),
    "model-load": ("pcie-link",),
    "pcie-link": ("vram-spill", "partial-offload"),
    "slow-kernel": ("flash-attention-off", "vgpu-unlicensed", "vram-spill"),
    "draft-rejected": ("partial-offload",),
    "slow-network": ("proxy-lag",),
    "slow-reader": ("proxy-lag",),
}
"""Symptom to roots that add to it: both may cost time of their own."""

IN_ONE_PHASE = frozenset({"batch-shared"})
"""Symptoms only of a root in the same phase: a wait for others is none of what slowed a request
after it."""


def roots_of(cause: str) -> tuple[str, ...]:
    """Return the causes that precede this one if they are found as well."""
    return SAME_LOSS.get(cause, ()) + COMES_AFTER.get(cause, ())
