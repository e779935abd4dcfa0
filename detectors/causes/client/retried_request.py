"""The client had given up on the very same prompt before, and asked again.

Signal:
One or more requests with exactly this prompt were cut short by their client, or timed out, within
minutes before this one. It explains how long the user waited in all and makes no request slow.

Not to be confused with:
- The same prompt asked again after an answer, as benchmarks do.
- A conversation that continues.
- `abandoned-request`: the engine still works for the tries that were given up.

Remedy:
A longer timeout in the client, fewer retries, and whatever made the first try so long.

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
    how = "its time was up" if repeat.ended == "timeout" else "the client left"
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
            "Give the client a longer timeout, so that it does not begin again, and look at the "
            "first try for what made it long."
        ),
        evidence=(
            Evidence(name="tries cut short", value=repeat.count, unit="requests"),
            Evidence(name="spent on them", value=repeat.spent_s, unit="s"),
        ),
    )
