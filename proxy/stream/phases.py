"""From a time line to phases: the engine's own timings first, the stream's arrivals otherwise."""

from slowtok.detectors.case import EngineTimings, Phases, Source, Timeline


def split(timeline: Timeline, *, choices: int = 1, early_head: bool = False, slept: bool = False) -> Phases:
    """Say where the time of one request went.

    Args:
        timeline: the request.
        choices: answers generated side by side (n > 1): rates are those of one of them.
        early_head: the engine sends the head when it starts on the prompt (llama-server since
            b9425), so that what comes before is the queue.
        slept: the engine had to load the model again first: the wait was a load, not a queue.
    """
    prefill_s, decode_s, source = _prefill_and_decode(timeline, early_head)
    queue_s, load_s = _queue_and_load(timeline, prefill_s, decode_s, source, early_head)
    if slept and load_s is None:
        queue_s, load_s = None, queue_s
    begin_s, first_s, end_s = _bounds(timeline, prefill_s, decode_s)
    end_at_s = timeline.delivered_at_s or timeline.last_byte_at_s or end_s or timeline.accepted_at_s
    return Phases(
        source=source,
        queue_s=queue_s,
        load_s=load_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
        delivery_s=_difference(timeline.delivered_at_s, timeline.last_byte_at_s),
        ttft_s=_difference(timeline.first_token_at_s, timeline.accepted_at_s),
        total_s=max(end_at_s - timeline.accepted_at_s, 0.0),
        decode_stream_s=_stream_decode(timeline),
        prefill_tps=_rate(timeline.tokens.processed, prefill_s),
        decode_tps=_decode_rate(timeline.tokens.completion, choices, decode_s),
        prefill_from_at_s=begin_s,
        decode_from_at_s=first_s,
        decode_to_at_s=end_s,
    )


def _prefill_and_decode(
    timeline: Timeline, early_head: bool
) -> tuple[float | None, float | None, Source]:
    engine = timeline.engine
    if engine is not None and (engine.prefill_s is not None or engine.decode_s is not None):
        return engine.prefill_s, engine.decode_s, "engine"
    if not timeline.stream:
        return None, None, "estimate"
    begin = timeline.headers_at_s if early_head else timeline.sent_at_s
    return _difference(timeline.first_token_at_s, begin), _stream_decode(timeline), "stream"


def _queue_and_load(
    timeline: Timeline,
    prefill_s: float | None,
    decode_s: float | None,
    source: Source,
    early_head: bool,
) -> tuple[float | None, float | None]:
    """The engine's word, else what is left of the wait when its prefill and decode are known."""
    engine = timeline.engine or EngineTimings()
    load_s = engine.load_s
    if engine.queue_s is not None:
        return engine.queue_s, load_s
    if source != "engine":
        return (_difference(timeline.headers_at_s, timeline.sent_at_s) if early_head else None), load_s
    if timeline.stream:
        waited_s = _difference(timeline.first_token_at_s, timeline.sent_at_s)
        known_s = (prefill_s or 0.0) + (load_s or 0.0)
    else:
        waited_s = _difference(timeline.last_byte_at_s, timeline.sent_at_s)
        known_s = (prefill_s or 0.0) + (decode_s or 0.0) + (load_s or 0.0)
    return (None if waited_s is None else max(waited_s - known_s, 0.0)), load_s


def _bounds(
    timeline: Timeline, prefill_s: float | None, decode_s: float | None
) -> tuple[float | None, float | None, float | None]:
    """Begin of prefill, first token and last token, on the proxy's clock."""
    end = timeline.last_token_at_s if timeline.stream else timeline.last_byte_at_s
    first = timeline.first_token_at_s if timeline.stream else None
    if first is None and end is not None and decode_s is not None:
        first = end - decode_s
    begin = None if first is None or prefill_s is None else first - prefill_s
    return begin, first, end


def _stream_decode(timeline: Timeline) -> float | None:
    if not timeline.stream:
        return None
    return _difference(timeline.last_token_at_s, timeline.first_token_at_s)


def _difference(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else max(later - earlier, 0.0)


def _rate(tokens: int | None, seconds: float | None) -> float | None:
    return tokens / seconds if tokens and seconds else None


def _decode_rate(completion: int | None, choices: int, decode_s: float | None) -> float | None:
    """Tokens per second of one answer: the first token of each belongs to the prefill."""
    if completion is None or not decode_s or completion <= choices:
        return None
    return (completion - choices) / choices / decode_s
