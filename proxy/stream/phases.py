"""From a time line to phases: the engine's own timings first, the stream's arrivals otherwise.

The engine's word is taken as it is, also where it claims more time than passed here: both are in
the record, and their difference is evidence (an answer from a cache, a clock that runs apart).
"""

from dataclasses import replace

from slowtok.detectors.case.case import EngineTimings, Phases, Source, Timeline

_NO_WORD = EngineTimings()
MAX_BURST_TOKENS = 16  # speculation and parsers give fewer at a time; heuristic


def split(
    timeline: Timeline,
    *,
    choices: int = 1,
    early_head: bool = False,
    slept: bool = False,
    alone: bool = True,
    counted: EngineTimings | None = None,
) -> Phases:
    """Say where the time of one request went.

    Args:
        timeline: the request.
        choices: answers that the counts cover (n > 1): rates are those of one of them.
        early_head: the engine sends the head when it starts on the prompt (llama-server since
            b9425), so that what comes before is the queue.
        alone: no other request was at the engine: without timings the wait before the first token
            is prefill only then.
        counted: what the engine's counters gained by this request alone, for an engine that puts
            no timings into its replies.
        slept: the engine had to load the model again first: the wait was a load, not a queue.
    """
    engine, word = _word(timeline.engine, counted)
    prefill_s, decode_s, source = _prefill_and_decode(timeline, engine, word, early_head, alone)
    if source == "stream" and _all_at_once(timeline, choices):
        prefill_s = decode_s = None
    queue_s, load_s = _queue(timeline, engine, source, early_head), engine.load_s
    if slept and load_s is None:
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
    """Fill in what a whole reply without timings leaves open, from the rates to be expected.

    Prefill and decode are taken to have been slower than expected by the same factor, so that
    together they are the time from the request to its reply. Nothing may be concluded from that.
    """
    if phases.source != "estimate" or not (prefill_tps and decode_tps):
        return phases
    processed, completion = timeline.tokens.processed, timeline.tokens.completion
    whole_s = _difference(_answered_at_s(timeline), timeline.sent_at_s, phases.load_s or 0.0)
    if not whole_s or processed is None or completion is None:
        return phases
    usual_prefill_s = processed / prefill_tps
    usual_decode_s = max(completion / choices - 1, 0) / decode_tps
    if not usual_prefill_s + usual_decode_s:
        return phases
    factor = whole_s / (usual_prefill_s + usual_decode_s)
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
    """Split the wait for the first token where gauges tell that a request waited to be let in.

    What its prompt is expected to take, at `prefill_tps`, was its prefill, and the rest its queue,
    within the least and the most that the gauges leave room for. Nothing may be concluded from the
    prefill, which is left open.
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
    """Return the phases with the prefill left open: part of that time was something else."""
    return replace(phases, prefill_s=None, prefill_tps=None, prefill_from_at_s=None)


def _word(
    said: EngineTimings | None, counted: EngineTimings | None
) -> tuple[EngineTimings, Source]:
    """Return the engine's timings and where they are from: its reply goes before its counters."""
    if counted is None or (said and (said.prefill_s is not None or said.decode_s is not None)):
        return said or _NO_WORD, "engine"
    return counted, "metrics"


def _prefill_and_decode(
    timeline: Timeline, engine: EngineTimings, word: Source, early_head: bool, alone: bool
) -> tuple[float | None, float | None, Source]:
    if engine.prefill_s is not None or engine.decode_s is not None:
        decode_s = engine.decode_s
        return (
            engine.prefill_s,
            _stream_decode(timeline) if decode_s is None else decode_s,
            word,
        )
    if _only_read(timeline):
        whole_s = _difference(_answered_at_s(timeline), timeline.sent_at_s, engine.load_s or 0.0)
        return whole_s if alone else None, None, "stream"
    if not timeline.stream:
        return None, None, "estimate"
    prefill_s = None
    if early_head or alone or engine.queue_s is not None:
        begin = timeline.headers_at_s if early_head else timeline.sent_at_s
        before_s = (engine.queue_s or 0.0) + (engine.load_s or 0.0)
        prefill_s = _difference(timeline.first_token_at_s, begin, before_s)
    return prefill_s, _stream_decode(timeline), "stream"


def _all_at_once(timeline: Timeline, choices: int) -> bool:
    """Return True if many tokens came in one read: the engine had collected them, a tool call say.

    Then the first of them does not tell when prefill ended, nor the last how long decode took.
    """
    first_at_s, completion = timeline.first_token_at_s, timeline.tokens.completion or 0
    in_one_read = first_at_s is not None and first_at_s == timeline.last_token_at_s
    return in_one_read and completion > MAX_BURST_TOKENS * choices


def _queue(
    timeline: Timeline, engine: EngineTimings, source: Source, early_head: bool
) -> float | None:
    """The engine's word, else the shortest wait that its own work leaves room for.

    The first visible token alone would not do: while an engine collects a tool call it decodes,
    and shows nothing. Nor does the head: a llama-server was seen to send it while it queued.
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
    """Begin of prefill, first token and last token, on the proxy's clock."""
    answered = _answered_at_s(timeline)
    first = timeline.first_token_at_s if timeline.stream else None
    if source in ("engine", "metrics") and answered is not None and decode_s is not None:
        # The first tokens may not have shown: those of a tool call, or of a hidden thought.
        first = answered - decode_s if first is None else min(first, answered - decode_s)
    if _only_read(timeline):
        first = answered
    begin = None if first is None or prefill_s is None else first - prefill_s
    if timeline.sent_at_s is not None:
        first = None if first is None else max(first, timeline.sent_at_s)
        begin = None if begin is None else max(begin, timeline.sent_at_s)
    end = timeline.last_token_at_s if timeline.stream else None
    return begin, first, answered if end is None else end


def _only_read(timeline: Timeline) -> bool:
    """Return True if a whole reply generated nothing, as embeddings do: all of it was prefill."""
    return timeline.tokens.completion == 0 and not timeline.stream


def _answered_at_s(timeline: Timeline) -> float | None:
    """When the engine was done with the request; its last token where the stream was cut."""
    if timeline.last_byte_at_s is not None:
        return timeline.last_byte_at_s
    return timeline.last_token_at_s


def _taken_until_s(timeline: Timeline) -> float | None:
    """When the client had the answer, or left while the rest of it waited to be taken."""
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
    """Tokens per second of one answer: the first token of each belongs to the prefill."""
    if completion is None or not decode_s or completion <= choices:
        return None
    return (completion - choices) / choices / decode_s
