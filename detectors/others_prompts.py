"""What reading the prompts of others cost a request that had a slot: a wait, or a shared prefill.

An engine fills each step with the tokens of prompts; a long one leaves no room for those that come
after it, and what fits in is computed together and takes as long as all of it.

Sources: ggml-org/llama.cpp#29175 (another's prompt holds others up by as long as a batch of `-b`
tokens takes); vLLM docs, configuration/optimization (chunked prefill, `--max-num-batched-tokens`).
"""

from slowtok.detectors.case import Case
from slowtok.detectors.finding import Evidence, Finding
from slowtok.detectors.phases import OWN_PREFILL_RATIO
from slowtok.detectors.waiting import MIN_WAIT_S, wait_of

CONFIDENCE = 0.9
ESTIMATED_CONFIDENCE = 0.7
"""The engine's gauges show that it let nobody in, and not how long this request waited."""

SMALLEST_BATCH = 256
"""A smaller one costs prefill more than it gives others. No published source."""

PIECES = 4
"""A quarter of the batch is a quarter of the wait for each of its steps."""


def others_prompts(case: Case) -> Finding | None:
    """Return what others' prompts cost before or while a request's own was read, the larger."""
    found = [finding for finding in (_wait(case), _shared(case)) if finding is not None]
    return max(found, key=lambda finding: finding.lost_s, default=None)


def _wait(case: Case) -> Finding | None:
    wait = wait_of(case)
    if wait is None or not wait.is_for_prompts:
        return None
    lost_s = min(wait.waited_s, wait.reading_s)
    return Finding(
        phase="queue",
        confidence=ESTIMATED_CONFIDENCE if case.phases.queue_estimated else CONFIDENCE,
        lost_s=lost_s,
        summary=(
            f"The engine had room for this request and read {_whose(case)} first, so it waited "
            "about {lost} before its own prompt was begun; that is what sharing an engine costs, "
            "not a fault."
        ),
        remedy=remedy(case),
        evidence=(
            Evidence(name="wait with a slot free", value=wait.waited_s, unit="s", limit=MIN_WAIT_S),
            Evidence(name="others' prompts read", value=wait.reading_s, unit="s"),
        ),
    )


def _shared(case: Case) -> Finding | None:
    """Return what a prefill took longer than alone, as far as others' prompts were read with it."""
    rate_tps, took_s = case.phases.prefill_tps, case.phases.prefill_s
    low_tps, alone_tps = _alone(case)
    if rate_tps is None or took_s is None or rate_tps >= low_tps:
        return None
    crowd = case.neighbours.prefill
    beside_s = max(crowd.reading_s, (crowd.others_reading_ratio or 0.0) * took_s)
    lost_s = min(took_s * (1 - rate_tps / alone_tps), beside_s)
    if lost_s < MIN_WAIT_S:
        return None
    return Finding(
        phase="prefill",
        confidence=CONFIDENCE,
        lost_s=lost_s,
        summary=(
            f"The engine read {_whose(case, begun=True)} together with this one, which got "
            f"{rate_tps:.0f} tokens/s where it would get about {alone_tps:.0f} alone; sharing cost "
            "it about {lost}, which is its price and not a fault."
        ),
        remedy=remedy(case),
        evidence=(
            Evidence(name="prefill rate", value=rate_tps, unit="tokens/s", limit=low_tps),
            Evidence(name="others' prompts read beside it", value=beside_s, unit="s"),
        ),
    )


def _alone(case: Case) -> tuple[float, float]:
    """Return the rate below which a prefill was held up, and the one expected of it alone.

    By its own past where there is one; 0 where nothing is known.
    """
    best_tps, band = case.history.best_prefill_tps, case.envelope.prefill
    if best_tps is not None:
        return OWN_PREFILL_RATIO * best_tps, best_tps
    if band is None:
        return 0.0, 0.0
    return band.low, case.envelope.expected_prefill_tps or band.low


def _whose(case: Case, *, begun: bool = False) -> str:
    crowd = case.neighbours.prefill if begun else case.neighbours.waiting
    if crowd.reading_id is None:
        return "the prompt of a request that did not come through this proxy"
    return f"the prompt of request {crowd.reading_id}"


def remedy(case: Case) -> str:
    """Return what keeps others' prompts from holding up a request."""
    apart = "give long prompts an engine of their own, or send them when nobody else waits"
    if (smaller := smaller_batches(case)) is None:
        return f"Nothing is broken. For shorter waits {apart}."
    return f"Nothing is broken. For shorter waits {smaller}, {apart}."


def smaller_batches(case: Case) -> str | None:
    """Return the option by which the engine reads prompts in smaller pieces, where it has one."""
    now = case.server.batch_tokens
    flag = {
        "llama-server": "--batch-size",
        "vllm": "--max-num-batched-tokens",
        "sglang": "--chunked-prefill-size",
    }.get(case.server.kind)
    if flag is None or (now is not None and now <= SMALLEST_BATCH):
        return None
    chunked = " and --enable-chunked-prefill" if case.server.kind == "vllm" else ""
    if now is None:
        return f"start the engine with a smaller {flag}{chunked}"
    pieces = max(now // PIECES, SMALLEST_BATCH)
    return f"start the engine with {flag} {pieces}{chunked} ({now} now)"
