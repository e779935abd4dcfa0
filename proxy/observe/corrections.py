"""Corrections of timings and counts that certain engines report wrongly, or not at all. Pure."""

from dataclasses import replace

from slowtok.detectors.analysis.gpu.vram import MODEL_BYTES
from slowtok.detectors.analysis.phase_loss import MIN_LOAD_S
from slowtok.detectors.case.case import Case, EngineTimings, Phases, Timeline
from slowtok.detectors.case.engine import EngineActivity
from slowtok.proxy.history.keys import gpus_of
from slowtok.proxy.history.loads import RISE_RATIO, held_over_time, last_rise
from slowtok.proxy.stream.phases import without_prefill


def with_counted_cached(timeline: Timeline, activity: EngineActivity) -> Timeline:
    """Add the cached tokens that only the engine's counters show, if the request was alone."""
    tokens = timeline.tokens
    if tokens.prompt is None or tokens.cached is not None or not activity.alone:
        return timeline
    return replace(timeline, tokens=replace(tokens, cached=activity.cached_tokens))


def without_cached(timeline: Timeline) -> Timeline:
    """Remove the cached count of an engine that always reports zero."""
    return replace(timeline, tokens=replace(timeline.tokens, cached=None))


def counted_timings(activity: EngineActivity) -> EngineTimings | None:
    """Return timings from the engine's counters, if they counted this request alone; else None."""
    if not activity.alone or activity.decode_s is None:
        return None
    return EngineTimings(
        queue_s=activity.queue_s,
        prefill_s=activity.prefill_s,
        decode_s=activity.decode_s,
    )


def without_loading_lines(timeline: Timeline) -> Timeline:
    """Remove the arrival times of text that llama-swap wrote while it loaded the model.

    With `sendLoadingState`, llama-swap streams status lines that look like reasoning while it
    starts an engine. The engine's own timings show when its first token can have come at the
    earliest. Without such timings, the timeline is unchanged.
    """
    timings, first_at_s, last_at_s = (
        timeline.engine,
        timeline.first_token_at_s,
        timeline.last_token_at_s,
    )
    if timings is None or timings.prefill_s is None or timings.decode_s is None:
        return timeline
    if first_at_s is None or last_at_s is None:
        return timeline
    earliest_s = last_at_s - timings.decode_s - timings.prefill_s
    if first_at_s >= earliest_s:
        return timeline
    engine_token_at_s = tuple(at_s for at_s in timeline.token_at_s if at_s >= earliest_s)
    return replace(
        timeline,
        first_token_at_s=engine_token_at_s[0]
        if engine_token_at_s
        else max(first_at_s, last_at_s - timings.decode_s),
        token_at_s=engine_token_at_s,
        itl_p50_s=None,  # made from all gaps, those between its lines among them
        itl_p99_s=None,
    )


def with_inferred_load(case: Case) -> Phases:
    """Return the phases with a model load inferred from memory use; unchanged if there was none.

    For engines that do not report a load: an engine without a model allocates its memory while the
    request waits for its first token. Ollama before 0.35 does not report loads to OpenAI's API.

    The load takes the wait for the first token less the expected prefill, and lasts at least until
    the memory was allocated. The prefill is left unknown.
    """
    phases, sent_s = case.phases, case.timeline.sent_at_s
    if phases.load_s is not None or phases.queue_s is not None or sent_s is None:
        return phases
    if phases.source not in ("stream", "estimate") or case.neighbours.in_flight_at_send:
        return phases
    memory_taken_s = _memory_taken_at_s(case)
    if memory_taken_s is None or memory_taken_s - sent_s < MIN_LOAD_S:
        return phases
    load_s = memory_taken_s - sent_s
    first_s = case.timeline.first_token_at_s if phases.source == "stream" else None
    if first_s is not None:
        processed, prefill_tps = case.timeline.tokens.processed, case.envelope.expected_prefill_tps
        prefill_s = (
            processed / prefill_tps if processed and prefill_tps else first_s - memory_taken_s
        )
        load_s = max(first_s - sent_s - prefill_s, load_s)
    return replace(without_prefill(phases), load_s=load_s)


def _memory_taken_at_s(case: Case) -> float | None:
    """Return when the engine had allocated its memory, if it held no model at first; else None.

    Some engines allocate memory for a long prompt as they read it; those hold their model all
    along.
    """
    pids = {p.pid for sample in case.gpu for p in sample.processes or () if p.is_server}
    first_s = case.timeline.first_token_at_s
    waiting = [s for s in case.gpu if first_s is None or s.at_s <= first_s]
    held = held_over_time(waiting, gpus_of(case).keys(), pids)
    rise = last_rise(held)
    if rise is None:
        return None
    first_bytes = sum(held[0].by_pid.get(pid, 0) for pid in held[-1].by_pid)
    least_bytes = _least_model_bytes(case, held[-1].server_bytes or 0)
    return rise.done_at_s if first_bytes < least_bytes else None


def _least_model_bytes(case: Case, held_bytes: int) -> float:
    """Return the memory below which the engine's processes cannot hold the model.

    The first sample may come a second after the load began. If all weights end up on GPUs, the
    model is not loaded while less than half of them are there.
    """
    weights = case.model.file_bytes
    is_whole = weights is not None and held_bytes >= weights
    return max(MODEL_BYTES, RISE_RATIO * (weights or 0) if is_whole else 0.0)
