"""Which causes can be ruled out at all: those that could be looked at.

A request that was cut off before its first token had no prefill that could be seen and no decode;
that its decode was not slowed is no news. Where nobody read the machine, nothing in it was looked
at. And where no verdict was possible, none can be on a cause.
"""

from collections.abc import Iterable, Mapping, Sequence

from slowtok.detectors.case import Case, Phase
from slowtok.detectors.finding import Verdict
from slowtok.detectors.phases import is_cut_short

_PREFILL_OR_DECODE: tuple[Phase, ...] = ("prefill", "decode")
_PHASES: Mapping[str, tuple[Phase, ...]] = {
    "queued": ("queue",),
    "model-load": ("load",),
    "prompt-cache-miss": ("prefill",),
    "slow-prefill": ("prefill",),
    "kv-preemption": ("decode",),
    "draft-rejected": ("decode",),
    "batch-shared": ("decode",),
    "host-bound": ("decode",),
    "long-context": ("decode",),
    "slow-reader": ("delivery",),
    "slow-network": ("delivery",),
    "proxy-lag": ("delivery",),
}
"""Where each cause costs time; all others slow prefill, decode or both."""

_IN_THE_EXCHANGE = frozenset(_PHASES) - {"host-bound"}
"""Causes that times, tokens and the engine's own words show; all others lie in the machine."""

GPU_CAUSES = frozenset(
    {
        "clocks-stuck",
        "gpu-fault",
        "gpu-shared",
        "hardware-slowdown",
        "multi-gpu-split",
        "pcie-link",
        "power-cap",
        "thermal-throttle",
        "vgpu-unlicensed",
        "vram-spill",
    }
)
"""Causes that only a machine with a GPU can have."""


def ruled_out(case: Case, verdict: Verdict, cleared: Sequence[str]) -> tuple[str, ...]:
    """Return the causes that are ruled out, of those whose detectors had nothing to say."""
    if verdict == "unknown":
        return ()
    if not (case.host or case.gpu):
        cleared = [cause for cause in cleared if cause in _IN_THE_EXCHANGE]
    return tuple(reached(case, cleared))


def reached(case: Case, causes: Iterable[str]) -> Iterable[str]:
    """Return the causes that the request got far enough for."""
    if not is_cut_short(case):
        return causes
    return [cause for cause in causes if could_apply(case, cause)]


def could_apply(case: Case, cause: str) -> bool:
    """Say whether a request got as far as this cause reaches; one that ended by itself did."""
    if not is_cut_short(case):
        return True
    had = {
        "queue": case.phases.queue_s,
        "load": case.phases.load_s,
        "prefill": case.phases.prefill_s,
        "decode": case.phases.decode_s,
        "delivery": case.phases.delivery_s,
    }
    return any(had[phase] is not None for phase in _PHASES.get(cause, _PREFILL_OR_DECODE))
