"""A load that shows only in the GPU's memory, for engines that do not tell of theirs. Pure.

An engine that holds no model takes its memory while the request waits for its first token. Ollama
before 0.35 says nothing of that where it is asked by OpenAI's API.
"""

from dataclasses import replace

from slowtok.detectors.analysis.phase_loss import MIN_LOAD_S
from slowtok.detectors.analysis.vram import MODEL_BYTES
from slowtok.detectors.case.case import Case, Phases
from slowtok.proxy.history.keys import gpus_of
from slowtok.proxy.history.loads import held_over_time, last_rise
from slowtok.proxy.stream.phases import without_prefill


def with_seen_load(case: Case) -> Phases:
    """Return the phases with the load that the wait for the first token was; as they are if none.

    What the prompt is expected to take was its prefill, and the rest the load: it began with the
    request and lasted until its memory was taken at least. The prefill is left open.
    """
    phases, sent_s = case.phases, case.timeline.sent_at_s
    if phases.load_s is not None or phases.queue_s is not None or sent_s is None:
        return phases
    if phases.source not in ("stream", "estimate") or case.neighbours.in_flight_at_send:
        return phases
    taken_s = _taken_at_s(case)
    if taken_s is None or taken_s - sent_s < MIN_LOAD_S:
        return phases
    load_s = taken_s - sent_s
    first_s = case.timeline.first_token_at_s if phases.source == "stream" else None
    if first_s is not None:
        processed, prefill_tps = case.timeline.tokens.processed, case.envelope.expected_prefill_tps
        prefill_s = processed / prefill_tps if processed and prefill_tps else first_s - taken_s
        load_s = max(first_s - sent_s - prefill_s, load_s)
    return replace(without_prefill(phases), load_s=load_s)


def _taken_at_s(case: Case) -> float | None:
    """Return when the engine had taken its memory, where its processes held no model at first.

    Some engines take memory for a long prompt as they read it: they hold their model all the while.
    """
    pids = {p.pid for sample in case.gpu for p in sample.processes or () if p.is_server}
    first_s = case.timeline.first_token_at_s
    waiting = [s for s in case.gpu if first_s is None or s.at_s <= first_s]
    held = held_over_time(waiting, gpus_of(case).keys(), pids)
    rise = last_rise(held)
    if rise is None:
        return None
    at_first = sum(held[0].by_pid.get(pid, 0) for pid in held[-1].by_pid)
    return rise.done_at_s if at_first < MODEL_BYTES else None
