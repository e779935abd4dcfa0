"""Which causes can be ruled out at all: those of phases that a request has had.

One that was cut off before its first token had no prefill that could be seen and no decode; that
its decode was not slowed is no news.
"""

from collections.abc import Mapping

from slowtok.detectors.case import Case, Phase
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
