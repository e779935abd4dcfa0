"""Splits a timeline into phases: from the engine's own timings, else from the stream's arrivals.

The engine's timings are taken as reported, even if they claim more time than passed here. Both are
in the record, and their difference is evidence (a cached answer, a clock that drifts).
"""

from dataclasses import replace

from slowtok.detectors.case.case import EngineTimings, Phases, Source, Timeline

_NO_TIMINGS = EngineTimings()
MAX_BURST_TOKENS = 16  # speculation and parsers give fewer at a time; heuristic


def split(
    timeline: Timeline,
    *,
    choices: int = 1,
    early_head: bool = False,
    was_unloaded: bool = False,
    alone: bool = True,
    counted: EngineTimings | None = None,
) -> Phases:
    """Return the phases of one request.

    Args:
        timeline: the request.
        choices: answers that the counts cover (n > 1); rates are those of a single one.
        early_head: the engine sends the head when prefill begins (llama-server since b9425),
            so that the time before the head is the queue.
        alone: no other request was at the engine. Without timings, only then is the wait for the
            first token prefill.
        counted: what the engine's counters gained by this request alone, for an engine that puts
            no timings into its replies.
        was_unloaded: the engine had to load the model again first, so the wait was a load.
    """
    engine, engine_source = _engine_timings(timeline.engine, counted)
    prefill_s, decode_s, source = _prefill_and_decode(
        timeline, engine, engine_source, early_head, alone
    )
    if source == "stream" and _all_at_once(timeline, choices):
        prefill_s = decode_s = None
    queue_s, load_s = _queue(timeline, engine, source, early_head), engine.load_s
    if was_unloaded and load_s is None:
        queue_s, load_s = None, queue_s
    begin_s, first_s, end_s = _bounds(timeline, prefill_s, decode_s, source)
    return Phases(
        source=source,
        queue_s=queue_s,
        load_s=load_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
        delivery_s=_difference(_taken_until_s(timeline), timeline.last_byte_at_s),
        ttft_s=_difference(timeline.first_token_at_s, timeline.accepted_at_s),
        total_s=_latest_at_s(timeline) - timeline.accepted_at_s,
        decode_stream_s=_stream_decode(timeline) if timeline.stream else None,
        prefill_tps=_rate(timeline.tokens.processed, prefill_s),
        decode_tps=_decode_rate(timeline.tokens.completion, choices, decode_s),
        prefill_from_at_s=begin_s,
        decode_from_at_s=first_s,
        decode_to_at_s=end_s,
    )


def estimate(
    phases: Phases,
    timeline: Timeline,
    *,
    choices: int,
    prefill_tps: float | None,
    decode_tps: float | None,
) -> Phases:
    """Estimate prefill and decode of a whole reply without timings, from the expected rates.

    Both are assumed to be slower than expected by the same factor, so that together they take the
    time of the reply. No verdict may be based on them.
    """
    if phases.source != "estimate" or not (prefill_tps and decode_tps):
        return phases
    processed, completion = timeline.tokens.processed, timeline.tokens.completion
    elapsed_s = _difference(_answered_at_s(timeline), timeline.sent_at_s, phases.load_s or 0.0)
    if not elapsed_s or processed is None or completion is None:
        return phases
    usual_prefill_s = processed / prefill_tps
    usual_decode_s = max(completion / choices - 1, 0) / decode_tps
    if not usual_prefill_s + usual_decode_s:
        return phases
    factor = elapsed_s / (usual_prefill_s + usual_decode_s)
    prefill_s, decode_s = usual_prefill_s * factor, usual_decode_s * factor
    return replace(
        phases,
        prefill_s=prefill_s,
        decode_s=decode_s,
        prefill_tps=_rate(processed, prefill_s),
        decode_tps=_decode_rate(completion, choices, decode_s),
    )


def with_queue(
    phases: Phases, timeline: Timeline, least_s: float, most_s: float, *, prefill_tps: float | None
) -> Phases:
    """Split the wait for the first token into queue and prefill, if gauges show that it was queued.

    Prefill takes what it is expected to take at `prefill_tps`, the queue the rest, within the
    bounds `least_s` and `most_s` from the gauges. Prefill is left unknown: no verdict may be based
    on it.
    """
    ttft_s = _difference(timeline.first_token_at_s, timeline.sent_at_s)
    if ttft_s is None:
        return phases
    processed = timeline.tokens.processed
    queue_s = least_s
    if prefill_tps and processed is not None:
        queue_s = min(max(ttft_s - processed / prefill_tps, least_s), most_s)
    return replace(without_prefill(phases), queue_s=queue_s, queue_estimated=True)


def without_prefill(phases: Phases) -> Phases:
    """Return the phases with unknown prefill, because part of that time was something else."""
    return replace(phases, prefill_s=None, prefill_tps=None, prefill_from_at_s=None)


def _engine_timings(
    reported: EngineTimings | None, counted: EngineTimings | None
) -> tuple[EngineTimings, Source]:
    """Return the engine's timings and their source; the reply's win over the counters'."""
    if counted is None or (
        reported and (reported.prefill_s is not None or reported.decode_s is not None)
    ):
        return reported or _NO_TIMINGS, "engine"
    return counted, "metrics"


def _prefill_and_decode(
    timeline: Timeline, engine: EngineTimings, engine_source: Source, early_head: bool, alone: bool
) -> tuple[float | None, float | None, Source]:
    if engine.prefill_s is not None or engine.decode_s is not None:
        decode_s = engine.decode_s
        return (
            engine.prefill_s,
            _stream_decode(timeline) if decode_s is None else decode_s,
            engine_source,
        )
    if _is_prefill_only(timeline):
        elapsed_s = _difference(_answered_at_s(timeline), timeline.sent_at_s, engine.load_s or 0.0)
        return elapsed_s if alone else None, None, "stream"
    if not timeline.stream:
        return None, None, "estimate"
    prefill_s = None
    if early_head or alone or engine.queue_s is not None:
        begin = timeline.headers_at_s if early_head else timeline.sent_at_s
        before_s = (engine.queue_s or 0.0) + (engine.load_s or 0.0)
        prefill_s = _difference(timeline.first_token_at_s, begin, before_s)
    return prefill_s, _stream_decode(timeline), "stream"


def _all_at_once(timeline: Timeline, choices: int) -> bool:
    """Return True if many tokens arrived in one read: the engine buffered them (a tool call).

    Then the first token does not show when prefill ended, nor the last how long decode took.
    """
    first_at_s, completion = timeline.first_token_at_s, timeline.tokens.completion or 0
    in_one_read = first_at_s is not None and first_at_s == timeline.last_token_at_s
    return in_one_read and completion > MAX_BURST_TOKENS * choices


def _queue(
    timeline: Timeline, engine: EngineTimings, source: Source, early_head: bool
) -> float | None:
    """Return the queue time: as reported, else the shortest wait that the engine's work leaves.

    The first visible token alone would not do: while an engine buffers a tool call, it decodes and
    sends nothing. Nor would the head: a llama-server was seen to send it while the request was
    queued.
    """
    if engine.queue_s is not None:
        return engine.queue_s
    if source in ("stream", "estimate"):
        waits_for_head = early_head and timeline.stream
        return _difference(timeline.headers_at_s, timeline.sent_at_s) if waits_for_head else None
    first_at_s = timeline.first_token_at_s if timeline.stream else None
    prepared_s = (engine.load_s or 0.0) + (engine.prefill_s or 0.0)
    to_first_s = _difference(first_at_s, timeline.sent_at_s, prepared_s)
    worked_s = prepared_s + (engine.decode_s or 0.0)
    to_end_s = _difference(_answered_at_s(timeline), timeline.sent_at_s, worked_s)
    waits_s = [wait for wait in (to_first_s, to_end_s) if wait is not None]
    return min(waits_s, default=None)


def _bounds(
    timeline: Timeline, prefill_s: float | None, decode_s: float | None, source: Source
) -> tuple[float | None, float | None, float | None]:
    """Return begin of prefill, first token and last token on the proxy's clock."""
    answered = _answered_at_s(timeline)
    first = timeline.first_token_at_s if timeline.stream else None
    if source in ("engine", "metrics") and answered is not None and decode_s is not None:
        # The first tokens may not have shown: those of a tool call, or of a hidden thought.
        first = answered - decode_s if first is None else min(first, answered - decode_s)
    if _is_prefill_only(timeline):
        first = answered
    begin = None if first is None or prefill_s is None else first - prefill_s
    if timeline.sent_at_s is not None:
        first = None if first is None else max(first, timeline.sent_at_s)
        begin = None if begin is None else max(begin, timeline.sent_at_s)
    end = timeline.last_token_at_s if timeline.stream else None
    return begin, first, answered if end is None else end


def _is_prefill_only(timeline: Timeline) -> bool:
    """Return True if a whole reply generated nothing, as for embeddings: it was all prefill."""
    return timeline.tokens.completion == 0 and not timeline.stream


def _answered_at_s(timeline: Timeline) -> float | None:
    """Return when the engine had finished; the last token of a stream that was cut off."""
    if timeline.last_byte_at_s is not None:
        return timeline.last_byte_at_s
    return timeline.last_token_at_s


def _taken_until_s(timeline: Timeline) -> float | None:
    """Return when the client had read the answer, or had left before reading the rest."""
    return timeline.ended_at_s if timeline.delivered_at_s is None else timeline.delivered_at_s


def _latest_at_s(timeline: Timeline) -> float:
    known = (
        timeline.accepted_at_s,
        timeline.sent_at_s,
        timeline.headers_at_s,
        timeline.first_token_at_s,
        timeline.last_token_at_s,
        timeline.last_byte_at_s,
        timeline.delivered_at_s,
        timeline.ended_at_s,
    )
    return max([at_s for at_s in known if at_s is not None])


def _stream_decode(timeline: Timeline) -> float | None:
    if not timeline.stream:
        return None
    return _difference(timeline.last_token_at_s, timeline.first_token_at_s)


def _difference(later: float | None, earlier: float | None, less_s: float = 0.0) -> float | None:
    return None if later is None or earlier is None else max(later - earlier - less_s, 0.0)


def _rate(tokens: int | None, seconds: float | None) -> float | None:
    return tokens / seconds if tokens and seconds else None


def _decode_rate(completion: int | None, choices: int, decode_s: float | None) -> float | None:
    """Return tokens per second of one answer; the first token of each belongs to prefill."""
    if completion is None or not decode_s or completion <= choices:
        return None
    return (completion - choices) / choices / decode_s
