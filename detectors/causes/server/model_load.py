"""The request waited while the engine loaded the model.

Signal:
The engine reports a load time of a second or more. Or the model was not in memory before the
request (unloaded, or not started by llama-swap or llama-server's router), and the time until
prefill began is that long. Only the time to the first token suffers. Where the same model was
loaded twice or more within ten minutes, the loads before tell why: another model came in between, a
request asked for another context length, the engine started again, or it had unloaded the model.

Not to be confused with:
- `queued`: the model was there, and other requests were in the way.
- `prompt-cache-miss`, `slow-prefill`: the engine was already computing.
- Ollama reports tens of milliseconds as load time when the model is already loaded.
- A slow first answer after a load is normal: the page cache fills, graphs are captured, and clocks
  rise.

Remedy:
Keep the model loaded, load it before you need it, and let all clients ask for the same context
length: in Ollama another `num_ctx` loads the model again. Models that take turns need memory for
all of them at once.

Sources:
- ollama/ollama#12443 (load time of a warm model), Aider-AI/aider#4687 (num_ctx in each request),
  ollama/ollama#10948 and #6148 (models that push each other out), Ollama FAQ (OLLAMA_KEEP_ALIVE,
  OLLAMA_MAX_LOADED_MODELS), llama-server README (`--sleep-idle-seconds`, `--models-max`).
"""

from dataclasses import dataclass
from typing import Literal

from slowtok.detectors.analysis.phase_loss import MIN_LOAD_S
from slowtok.detectors.case.case import Case, ModelLoad
from slowtok.detectors.case.finding import Evidence, Finding, Traits, need, weigh
from slowtok.detectors.expectation.footprint import GIB

TITLE = "Model was being loaded"
TRAITS = Traits(phases=("load",), in_exchange=True)

# Loads of one model again and again: how many there were, and why the newest one was needed.
#
# Invariant: only loads that were noticed count; what happened before slowtok looked is not known.

THRASH_S = 600.0
THRASH_LOADS = 2
"""Two loads of one model within ten minutes. Heuristic."""

FILLED_RATIO = 0.95
"""Of a GPU's memory, beyond which nothing more fits. Heuristic."""

MAX_NAME_CHARS = 60

_ReloadReason = Literal["other-model", "other-context", "restarted", "put-away"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reload:
    """`count` loads of a model within ten minutes, of which `newest` followed `before`.

    `other` is the model that was loaded between the two, where there was one.
    """

    count: int
    why: _ReloadReason
    newest: ModelLoad
    before: ModelLoad
    other: ModelLoad | None = None


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
    again = _reload_of(case)
    return Finding(
        phase="load",
        confidence=weigh("server", "gauge") if reported else weigh("server"),
        lost_s=load_s,
        summary=(
            "The model was not loaded when the request came: loading it cost about {lost} before "
            f"the first token could be computed{_again(again)}."
        ),
        remedy=(again and _reload_remedy(case, again)) or _remedy(case),
        evidence=_evidence(case, load_s, again),
    )


def _wait_s(case: Case) -> float:
    begin = need(case.timeline.sent_at_s, "time the request was sent")
    end = need(case.phases.prefill_from_at_s, "start of prefill")
    return max(end - begin, 0.0)


def _again(again: _Reload | None) -> str:
    if again is None:
        return ""
    return f"; this was load {again.count} of it within 10 minutes, because {_because(again)}"


def _evidence(case: Case, load_s: float, again: _Reload | None) -> tuple[Evidence, ...]:
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
    if _loader(case) == "llama-server" and case.server.loaded_models is not None:
        return (
            "Load the model ahead of its first request (POST /models/load), and start the router "
            "with room for all models that take turns (--models-max) and without "
            "--sleep-idle-seconds."
        )
    return {
        "llama-swap": (
            "In llama-swap's configuration give the model a longer ttl (0 keeps it), load it ahead "
            "(hooks, on_startup, preload), or put it into a group that is not swapped."
        ),
        "ollama": (
            "Set OLLAMA_KEEP_ALIVE=-1 (or keep_alive: -1 in the request) and use the same num_ctx "
            "in all clients: another value loads the model again."
        ),
        "llama-server": (
            "Start llama-server without --sleep-idle-seconds, or with a larger value, so that it "
            "keeps the model between requests."
        ),
        "vllm": "Do not put the engine to sleep (/sleep) between requests.",
    }.get(_loader(case), "Keep the model loaded between requests, or load it ahead of them.")


def _loader(case: Case) -> str:
    """Return who decides what is loaded: the engine, or the program that starts it."""
    return case.server.through or case.server.kind


def _reload_of(case: Case) -> _Reload | None:
    """Return the loads of the case's model, None where there were fewer than `THRASH_LOADS`."""
    recent = [load for load in case.history.loads if load.age_s <= THRASH_S]
    mine = [load for load in recent if load.model == recent[0].model]
    if len(mine) < THRASH_LOADS or recent[0] is not case.history.loads[0]:
        return None
    newest, before = mine[:2]
    between = recent[recent.index(newest) + 1 : recent.index(before)]
    other = next(iter(between), None)
    why: _ReloadReason = "put-away"
    if other is not None:
        why = "other-model"
    elif _differ(newest.context_tokens, before.context_tokens):
        why = "other-context"
    elif case.server.uptime_s is not None and case.server.uptime_s < before.age_s:
        why = "restarted"
    return _Reload(count=len(mine), why=why, newest=newest, before=before, other=other)


def _because(reload: _Reload) -> str:
    """Return the reason as the end of a sentence."""
    return {
        "other-model": f"{_name(reload.other)} was loaded in between and took its place",
        "other-context": (
            f"a context of {reload.newest.context_tokens} tokens was asked for, and one of "
            f"{reload.before.context_tokens} before"
        ),
        "restarted": "the engine was started again",
        "put-away": "the engine had unloaded it in between",
    }[reload.why]


def _reload_remedy(case: Case, reload: _Reload) -> str | None:
    """Return what ends the loads, None where it is what ends a single one, too."""
    if reload.why == "other-model":
        return _room_for_both(case, reload)
    if reload.why == "other-context":
        most = max(reload.newest.context_tokens or 0, reload.before.context_tokens or 0)
        how = {
            "ollama": f" (num_ctx {most} in each request, or in none and OLLAMA_CONTEXT_LENGTH)",
        }.get(case.server.kind, "")
        return f"Let all clients ask for the same context length, {most} tokens{how}."
    if reload.why == "restarted":
        return "Look in the engine's own log for why it started again (a crash, too little memory)."
    return None


def _room_for_both(case: Case, reload: _Reload) -> str:
    one_for_all = "use one model for both purposes, or a smaller quantisation or context"
    mine, total = reload.newest.server_gpu_bytes, _gpu_bytes(case)
    other = None if reload.other is None else reload.other.server_gpu_bytes
    keep = {
        "ollama": "set OLLAMA_MAX_LOADED_MODELS=2 and keep_alive: -1",
        "llama-server": "let llama-server keep both (--models-max 2)",
        "llama-swap": "put both into one group with swap: false in llama-swap's configuration",
    }.get(_loader(case), "let the engine keep both in memory")
    if mine is None or other is None or total is None:
        return f"{keep[0].upper()}{keep[1:]} if both fit; else {one_for_all}."
    sums = f"{mine / GIB:.1f} + {other / GIB:.1f} of {total / GIB:.1f} GiB"
    if mine + other <= FILLED_RATIO * total:
        return f"Both models fit at once ({sums}): {keep}."
    return f"The two models do not fit at once ({sums}): {one_for_all}, so that both stay loaded."


def _gpu_bytes(case: Case) -> int | None:
    mine = case.server.gpu_indices
    totals = [g.total_bytes for g in case.device.gpus or () if not mine or g.index in mine]
    known = [total for total in totals if total is not None]
    return sum(known) if known and len(known) == len(totals) else None


def _differ(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one != other


def _name(load: ModelLoad | None) -> str:
    name = load.model if load is not None else None
    if not name:
        return "another model"
    return name[:MAX_NAME_CHARS].encode("ascii", "replace").decode().replace("\n", " ")
