"""The request waited while the engine loaded the model.

Signal:
The engine reports a load time of a second or more, or it had put the model away before the
request and the time until prefill began is that long. Only the time to the first token suffers.

Not to be confused with:
- `queued`: the model was there, other requests were in the way.
- `prompt-cache-miss`, `slow-prefill`: the engine was already computing.
- The tens of milliseconds that Ollama reports as load time when the model is loaded.

Remedy:
Keep the model loaded, load it before it is needed, and let all clients ask for the same context
length: in Ollama another `num_ctx` loads the model again.

Sources:
- ollama/ollama#12443 (load time of a warm model), Aider-AI/aider#4687 (num_ctx in each request),
  llama-server README (`--sleep-idle-seconds`).
"""

from slowtok.detectors.case import Case
from slowtok.detectors.finding import Evidence, Finding, need
from slowtok.detectors.phases import MIN_LOAD_S

TITLE = "Model was being loaded"

CONFIDENCE = 0.95
SLEPT_CONFIDENCE = 0.85
"""The engine slept before; that the whole wait was its load is inferred."""


def detect(case: Case) -> Finding | None:
    """Fire on a reported load, or on the wait after the engine slept."""
    load_s = case.phases.load_s
    reported = load_s is not None
    if load_s is None:
        load_s = _wait_s(case)
        if load_s < MIN_LOAD_S:  # there was no time for a load
            return None
        if not need(case.server.slept, "whether the model was loaded before the request"):
            return None
    if load_s < MIN_LOAD_S:
        return None
    return Finding(
        phase="load",
        confidence=CONFIDENCE if reported else SLEPT_CONFIDENCE,
        lost_s=load_s,
        summary=(
            f"The model was not loaded when the request came: loading took {load_s:.1f} s before "
            "the first token could be computed."
        ),
        remedy=_remedy(case),
        evidence=_evidence(case, load_s),
    )


def _wait_s(case: Case) -> float:
    begin = need(case.timeline.sent_at_s, "time the request was sent")
    end = need(case.phases.prefill_from_at_s, "start of prefill")
    return max(end - begin, 0.0)


def _evidence(case: Case, load_s: float) -> tuple[Evidence, ...]:
    evidence = [Evidence(name="model load", value=load_s, unit="s", limit=MIN_LOAD_S)]
    if case.model.file_bytes is not None:
        evidence.append(
            Evidence(name="model file", value=case.model.file_bytes / 2**30, unit="GiB")
        )
    return tuple(evidence)


def _remedy(case: Case) -> str:
    return {
        "ollama": (
            "Set OLLAMA_KEEP_ALIVE=-1 (or keep_alive: -1 in the request) and use the same num_ctx "
            "in all clients: another value loads the model again."
        ),
        "llama-server": (
            "Start llama-server without --sleep-idle-seconds, or with a larger value, so that it "
            "keeps the model between requests."
        ),
        "vllm": "Do not put the engine to sleep (/sleep) between requests.",
    }.get(case.server.kind, "Keep the model loaded between requests, or load it ahead of them.")
