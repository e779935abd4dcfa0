"""The client had given up on the very same prompt before, and asked again.

Signal:
Within minutes before this request, one or more requests with exactly this prompt were cut short by
their client, or timed out. This explains how long the user waited in all; it makes no request slow.

Not to be confused with:
- A benchmark asks the same prompt again as well, but after it got its answer.
- A conversation that continues sends a longer prompt, not the same one.
- `abandoned-request`: the engine still works for the tries that were given up.

Remedy:
Give the client a longer timeout and fewer retries, and find out what made the first try so long.

Sources:
- OpenAI's Python SDK (timeout of 600 s, two retries after half a second to 8 s), and clients with
  shorter ones: earendil-works/pi#1886 (gives up after 3.5 s, loads take 30 to 120 s).
"""

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits

TITLE = "Retried by its client"
TRAITS = Traits(phases=("delivery",), in_exchange=True)

CONFIDENCE = 0.9


def detect(case: Case) -> Finding | None:
    """Explain a request that is a further try."""
    repeat = case.repeat
    if repeat is None or repeat.count < 1:
        return None
    tries = "once" if repeat.count == 1 else f"{repeat.count} times"
    how = "it timed out" if repeat.ended == "timeout" else "the client left"
    return Finding(
        phase="delivery",
        confidence=CONFIDENCE,
        lost_s=repeat.spent_s,
        informational=True,
        summary=(
            f"The same prompt had been asked {tries} just before and was cut short ({how}), which "
            f"took {repeat.spent_s:.1f} s more than this request shows."
        ),
        remedy=(
            "Give the client a longer timeout, so that it does not start over, and find out from "
            "the first try what made it long."
        ),
        evidence=(
            Evidence(name="tries cut short", value=repeat.count, unit="requests"),
            Evidence(name="spent on them", value=repeat.spent_s, unit="s"),
        ),
    )
