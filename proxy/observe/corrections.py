"""What single engines tell wrong or not at all, set right by what else was seen. Pure."""

from dataclasses import replace

from slowtok.detectors.analysis.gpu.vram import MODEL_BYTES
from slowtok.detectors.analysis.phase_loss import MIN_LOAD_S
from slowtok.detectors.case.case import Case, EngineTimings, Phases, Timeline
from slowtok.detectors.case.engine import EngineActivity
from slowtok.proxy.history.keys import gpus_of
from slowtok.proxy.history.loads import RISE_RATIO, held_over_time, last_rise
from slowtok.proxy.stream.phases import without_prefill


def with_counted_cached(timeline: Timeline, activity: EngineActivity) -> Timeline:
    """Add the cached tokens that the engine counted and did not tell, where it was alone there."""
    tokens = timeline.tokens
    if tokens.prompt is None or tokens.cached is not None or not activity.alone:
        return timeline
    return replace(timeline, tokens=replace(tokens, cached=activity.cached_tokens))


def without_cached(timeline: Timeline) -> Timeline:
    """Take away the zero that stands for a count."""
    return replace(timeline, tokens=replace(timeline.tokens, cached=None))


def counted_timings(activity: EngineActivity) -> EngineTimings | None:
    """Return the request's own timings, where the engine's counters counted it and no other."""
    if not activity.alone or activity.decode_s is None:
        return None
    return EngineTimings(
        queue_s=activity.queue_s,
        prefill_s=activity.prefill_s,
        decode_s=activity.decode_s,
    )


def without_loading_lines(timeline: Timeline) -> Timeline:
    """Return the times of the engine's tokens alone; as they are where the engine told none.

    With `sendLoadingState` llama-swap writes what looks like thinking while it starts an engine.
    The engine's word on its prefill and decode tells when its first token can have come at the
    earliest.
    """
    word, first_at_s, last_at_s = (
        timeline.engine,
        timeline.first_token_at_s,
        timeline.last_token_at_s,
    )
    if word is None or word.prefill_s is None or word.decode_s is None:
        return timeline
    if first_at_s is None or last_at_s is None:
        return timeline
    earliest_s = last_at_s - word.decode_s - word.prefill_s
    if first_at_s >= earliest_s:
        return timeline
    its_own = tuple(at_s for at_s in timeline.token_at_s if at_s >= earliest_s)
    return replace(
        timeline,
        first_token_at_s=its_own[0] if its_own else max(first_at_s, last_at_s - word.decode_s),
        token_at_s=its_own,
        itl_p50_s=None,  # made from all gaps, those between its lines among them
        itl_p99_s=None,
    )


def with_seen_load(case: Case) -> Phases:
    """Return the phases with the load that the wait for the first token was; as they are if none.

    For engines that do not tell of a load: one that holds no model takes its memory while the
    request waits for its first token. Ollama before 0.35 says nothing of that where it is asked by
    OpenAI's API.

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
    least = _least_of_model(case, held[-1].server_bytes or 0)
    return rise.done_at_s if at_first < least else None


def _least_of_model(case: Case, held_bytes: int) -> float:
    """Return the memory below which the engine's processes do not hold the model.

    The first look may come a second after the load began: with all of its weights on GPUs, a model
    is not there while less than half of them are.
    """
    weights = case.model.file_bytes
    is_whole = weights is not None and held_bytes >= weights
    return max(MODEL_BYTES, RISE_RATIO * (weights or 0) if is_whole else 0.0)
