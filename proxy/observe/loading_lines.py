"""Takes llama-swap's own lines out of a stream's times: they are no tokens.

With `sendLoadingState` it writes what looks like thinking while it starts an engine. The engine's
word on its prefill and decode tells when its first token can have come at the earliest.
"""

from dataclasses import replace

from slowtok.detectors.case.case import Timeline


def without_loading_lines(timeline: Timeline) -> Timeline:
    """Return the times of the engine's tokens alone; as they are where the engine told none."""
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
