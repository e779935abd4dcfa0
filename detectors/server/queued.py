"""The request waited because the engine was busy with other requests.

Signal:
Time passed between sending the request and the start of its prefill while other requests were at
the same engine: as many as it has slots, or any where the number of slots is not known. Or the
engine itself reports time in its queue.

Not to be confused with:
- `model-load`: the engine woke up or loaded a model in that time.
- `slow-prefill`, `prompt-cache-miss`: the engine worked on this prompt in that time.
- `batch-shared`: the request was let in, and then shared the engine.

Remedy:
More slots, if the memory is there (each one takes its share of the context), fewer requests at
once, or a second engine. Waiting is what a full engine does; it is not a fault.

Sources:
- llama-server README (`--parallel`, `/slots`), vLLM metrics (`vllm:request_queue_time_seconds`),
  Ollama FAQ (`OLLAMA_NUM_PARALLEL`).
"""

from slowtok.detectors.case import Case
from slowtok.detectors.finding import Evidence, Finding, need

TITLE = "Waited for other requests"

MIN_QUEUE_S = 0.2
"""No published source: a shorter wait is not felt, and is within the error of the phases."""

CONFIDENCE = 0.95
ENGINE_ONLY_CONFIDENCE = 0.8
"""The engine reports the wait, but what it waited for did not come through this proxy."""


def detect(case: Case) -> Finding | None:
    """Fire when the request waited and there was somebody to wait for."""
    if case.server.slept or not (_full(case) or _engine_queued(case)):
        return None
    waited_s = need(case.phases.queue_s, "time in the engine's queue")
    if waited_s < MIN_QUEUE_S:
        return None
    others, slots = case.neighbours.in_flight_at_send, case.server.slots
    return Finding(
        phase="queue",
        confidence=CONFIDENCE if others else ENGINE_ONLY_CONFIDENCE,
        lost_s=waited_s,
        summary=f"The request waited about {{lost}} before the engine began, {_why(case)}.",
        remedy=_remedy(case),
        evidence=(
            Evidence(name="wait in the queue", value=waited_s, unit="s", limit=MIN_QUEUE_S),
            Evidence(name="requests ahead", value=others, unit="requests", limit=slots),
        ),
    )


def _full(case: Case) -> bool:
    slots = case.server.slots
    return case.neighbours.in_flight_at_send >= (1 if slots is None else max(slots, 1))


def _engine_queued(case: Case) -> bool:
    engine = case.timeline.engine
    return engine is not None and (engine.queue_s or 0.0) >= MIN_QUEUE_S


def _why(case: Case) -> str:
    others, slots = case.neighbours.in_flight_at_send, case.server.slots
    if not others:
        return "busy with requests that did not come through this proxy"
    requests = "1 other request" if others == 1 else f"{others} other requests"
    if slots is None:
        return f"because {requests} came first"
    return f"because {requests} came first and it works on {slots} at once"


def _remedy(case: Case) -> str:
    wanted = case.neighbours.in_flight_at_send + 1
    remedy = {
        "llama-server": (
            f"Start llama-server with --parallel {wanted} (the slots share --ctx-size, so raise "
            "that too)"
        ),
        "ollama": f"Set OLLAMA_NUM_PARALLEL={wanted} for the Ollama server",
        "vllm": "Raise --max-num-seqs or free KV cache (smaller --max-model-len)",
    }.get(case.server.kind, "Let the engine work on more requests at once")
    return f"{remedy}, or send fewer requests at the same time."
