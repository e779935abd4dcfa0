"""A GPU whose many small steps the CPU starts one by one, because CUDA graphs are switched off.

Sources: marin-community/marin#9339 (8 x H100, --enforce-eager alone: 153 to 23 tokens/s), MONAI
VLM-Surgical#5 (A6000: 4.1 times as fast without it).
"""

from slowtok.detectors.case import Case
from slowtok.detectors.finding import Evidence, Finding, weigh
from slowtok.detectors.gpu_window import by_gpu, median, settled
from slowtok.detectors.phases import judge_decode, slowdown
from slowtok.detectors.window import decode_tps

MAX_POWER_RATIO = 0.7
"""The GPU runs many small kernels and counts as busy between them; its power says otherwise. No
published source."""

LEAST_TIMES, MOST_TIMES = 1.5, 8.0
"""4.1 and 6.7 times were published; no published source for the edges around them."""


def does_little(case: Case) -> bool | None:
    """Say whether the GPUs draw little of their best, or of the limit; None where not told."""
    ratios = []
    for samples in by_gpu(case.gpu_during("decode")).values():
        power = median(settled(samples), lambda s: s.power_w)
        whole = case.history.best_power_w or median(samples, lambda s: s.power_limit_w)
        if power is not None and whole:
            ratios.append(power / whole)
    return max(ratios) < MAX_POWER_RATIO if ratios else None


def launched_one_by_one(case: Case) -> Finding | None:
    """Return what the engine's word alone says: nobody sees its threads.

    It is believed no further than one piece of evidence with a doubt, and only for a slowdown such
    as was published.
    """
    lost_s, rate_tps = judge_decode(case).lost_s, decode_tps(case)
    times = slowdown(case, lost_s, "decode")
    if does_little(case) is False or not LEAST_TIMES <= times <= MOST_TIMES:
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
        remedy=with_graphs(case),
        evidence=(
            Evidence(name="decode rate", value=rate_tps, unit="tokens/s"),
            Evidence(name="times slower", value=times, unit="times", limit=LEAST_TIMES),
        ),
    )


def with_graphs(case: Case) -> str:
    """Return how to switch them on."""
    flag = {"sglang": "--disable-cuda-graph"}.get(case.server.kind, "--enforce-eager")
    return f"Start the engine without {flag}: CUDA graphs launch a whole step at once."
