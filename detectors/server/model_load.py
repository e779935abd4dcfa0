"""The request waited while the engine loaded the model.

Signal:
The engine reports a load time of a second or more, or it had put the model away before the
request and the time until prefill began is that long. Only the time to the first token suffers.
Where the same model was loaded twice or more within ten minutes, the loads before tell why: another
model came in between, another context length was asked for, the engine started again, or it had
put the model away.

Not to be confused with:
- `queued`: the model was there, other requests were in the way.
- `prompt-cache-miss`, `slow-prefill`: the engine was already computing.
- The tens of milliseconds that Ollama reports as load time when the model is loaded.
- A slow first answer after a load: page cache, graph capture, clocks that rise. That is normal.

Remedy:
Keep the model loaded, load it before it is needed, and let all clients ask for the same context
length: in Ollama another `num_ctx` loads the model again. Models that take turns need memory for
all of them at once.

Sources:
- ollama/ollama#12443 (load time of a warm model), Aider-AI/aider#4687 (num_ctx in each request),
  ollama/ollama#10948 and #6148 (models that push each other out), Ollama FAQ (OLLAMA_KEEP_ALIVE,
  OLLAMA_MAX_LOADED_MODELS), llama-server README (`--sleep-idle-seconds`, `--models-max`).
"""

from slowtok.detectors.case import Case
from slowtok.detectors.finding import Evidence, Finding, need, weigh
from slowtok.detectors.phases import MIN_LOAD_S
from slowtok.detectors.reloads import THRASH_LOADS, Reload, because, reload_of, remedy

TITLE = "Model was being loaded"


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
    again = reload_of(case)
    return Finding(
        phase="load",
        confidence=weigh("server", "gauge") if reported else weigh("server"),
        lost_s=load_s,
        summary=(
            "The model was not loaded when the request came: loading it cost about {lost} before "
            f"the first token could be computed{_again(again)}."
        ),
        remedy=(again and remedy(case, again)) or _remedy(case),
        evidence=_evidence(case, load_s, again),
    )


def _wait_s(case: Case) -> float:
    begin = need(case.timeline.sent_at_s, "time the request was sent")
    end = need(case.phases.prefill_from_at_s, "start of prefill")
    return max(end - begin, 0.0)


def _again(again: Reload | None) -> str:
    if again is None:
        return ""
    return f"; it was load {again.count} of it within 10 minutes, because {because(again)}"


def _evidence(case: Case, load_s: float, again: Reload | None) -> tuple[Evidence, ...]:
    evidence = [Evidence(name="model load", value=load_s, unit="s", limit=MIN_LOAD_S)]
    if again is not None:
        evidence.append(
            Evidence(
                name="loads within 10 minutes", value=again.count, unit="loads", limit=THRASH_LOADS
            )
        )
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
