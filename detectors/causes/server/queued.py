"""The request waited because every slot of the engine was taken by other requests.

Signal:
Time passed between sending the request and the start of its prefill, and no slot was free in that
time. The engine's own slots or gauges show this, for the requests of others, too. Without them
slowtok counts the requests that were sent, or served, before this one: there were as many as the
engine has slots (or any, where the number of slots is not known). Or the engine itself reports time
in its queue.

Not to be confused with:
- `model-load`: the engine woke up or loaded a model in that time.
- `slow-prefill`, `prompt-cache-miss`: the engine worked on this prompt in that time.
- `batch-shared`: a slot was free, but the engine read the prompts of others first.
- A gauge of waiting requests may count this very request.

Remedy:
Set more slots, if the memory is there (each one takes its share of the context), send fewer
requests at once, or run a second engine. Waiting is what a full engine does; it is not a fault.

Sources:
- llama-server README (`--parallel`, `/slots`), vLLM metrics (`vllm:request_queue_time_seconds`,
  `vllm:num_requests_waiting`), SGLang metrics (`sglang:num_queue_reqs`), Ollama FAQ
  (`OLLAMA_NUM_PARALLEL`).
"""

from slowtok.detectors.analysis.waiting import MIN_TURN_WAIT_S, Wait, wait_of
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits, need

TITLE = "Waited for other requests"
TRAITS = Traits(phases=("queue",), in_exchange=True)

CONFIDENCE = 0.95
ENGINE_ONLY_CONFIDENCE = 0.8
"""The engine reports the wait, but what it waited for did not come through this proxy."""

ESTIMATED_CONFIDENCE = 0.75
"""The engine's gauges show that it waited, and not how long this request did."""


def detect(case: Case) -> Finding | None:
    """Fire when the request waited and no slot was free."""
    wait = wait_of(case)
    if wait is None:
        if _may_have_waited(case):
            need(case.phases.queue_s, "time in the engine's queue")
        return None
    told_s = _told_s(case)
    if wait.is_for_prompts:
        return None
    if not told_s and not need(wait.is_full, "whether a slot of the engine was free"):
        return None
    return Finding(
        phase="queue",
        confidence=_confidence(case, wait),
        lost_s=wait.waited_s,
        proof_s=told_s,
        summary=f"The request waited about {{lost}} before the engine began, {_why(case, wait)}.",
        remedy=_remedy(case, wait),
        evidence=(
            Evidence(
                name="wait in the queue", value=wait.waited_s, unit="s", limit=MIN_TURN_WAIT_S
            ),
            Evidence(
                name="requests ahead", value=wait.others, unit="requests", limit=case.server.slots
            ),
        ),
    )


def _may_have_waited(case: Case) -> bool:
    """Return True if a wait can have gone unseen: its length is not known, and it may be felt."""
    phases, at_engine = case.phases, case.neighbours.waiting
    if phases.queue_s is not None or case.server.slept:
        return False
    if phases.ttft_s is not None and phases.ttft_s < MIN_TURN_WAIT_S:
        return False
    if case.activity is not None and case.activity.alone:
        return False
    return at_engine.full_ratio is None or at_engine.full_ratio > 0


def _told_s(case: Case) -> float:
    """Return the wait by the engine's own word, 0 where it has none or it is not felt."""
    engine = case.timeline.engine
    told_s = (engine.queue_s if engine is not None else None) or 0.0
    return told_s if told_s >= MIN_TURN_WAIT_S else 0.0


def _confidence(case: Case, wait: Wait) -> float:
    if case.phases.queue_estimated:
        return ESTIMATED_CONFIDENCE
    return CONFIDENCE if _own(case) or wait.is_full else ENGINE_ONLY_CONFIDENCE


def _own(case: Case) -> int:
    """Count the requests ahead that came through the proxy."""
    neighbours = case.neighbours
    return max(neighbours.in_flight_at_send, neighbours.waiting.served_first)


def _why(case: Case, wait: Wait) -> str:
    slots = case.server.slots
    if not _own(case):
        return "because it was busy with requests that did not come through this proxy"
    requests = "1 other request" if wait.others == 1 else f"{wait.others} other requests"
    if slots is None:
        return f"because {requests} came first"
    return f"because {requests} came first and it works on {slots} at once"


def _remedy(case: Case, wait: Wait) -> str:
    wanted = max(wait.others, case.server.slots or 0) + 1
    remedy = {
        "llama-server": (
            f"Start llama-server with --parallel {wanted} (the slots share --ctx-size, so raise "
            "that too)"
        ),
        "ollama": f"Set OLLAMA_NUM_PARALLEL={wanted} for the Ollama server",
        "vllm": "Raise --max-num-seqs or free KV cache (smaller --max-model-len)",
        "sglang": "Raise --max-running-requests or --mem-fraction-static",
    }.get(case.server.kind, "Let the engine work on more requests at once")
    return f"{remedy}, or send fewer requests at the same time."
