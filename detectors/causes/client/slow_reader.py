"""The client took the answer more slowly than the engine produced it.

Signal:
The client had the rest of the answer at least half a second, and a tenth of the request's time,
after the engine had given its last byte. A client that fell behind earlier and caught up is
reported, but lost nothing.

Not to be confused with:
- `slow-network`: the connection from the engine to slowtok is slow.
- `proxy-lag`: slowtok itself wrote late.
- `kv-preemption`, `host-contention`: the tokens already came late from the engine.
- A client that reads fast and only draws its page slowly does not hold the answer up.

Remedy:
Read the stream in the client without work between the reads; hand the text to another thread or
task. Over a slow link, ask for a non-streamed answer.

Sources:
- TCP flow control: a full receive window stops the writer (RFC 9293, section 3.8.6).
"""

from slowtok.detectors.analysis.phase_loss import MIN_WAIT_RATIO, MIN_WAIT_S
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits, weigh

TITLE = "Client read slowly"
TRAITS = Traits(phases=("delivery",), in_exchange=True)

MAX_LAG_RATIO = 0.5
"""Heuristic: a loop that woke late by half of it is what delivered late."""


def detect(case: Case) -> Finding | None:
    """Fire when the engine was done long before the client had taken everything."""
    late_s, blocked_s = case.phases.delivery_s or 0.0, case.timeline.client_blocked_s
    if late_s < MIN_WAIT_S or late_s < MIN_WAIT_RATIO * case.phases.total_s:
        return None
    if (case.timeline.loop_lag_s or 0.0) >= MAX_LAG_RATIO * late_s:
        return None
    return Finding(
        phase="delivery",
        confidence=weigh("counter", "counter"),
        lost_s=late_s,
        summary=(
            f"The client took the last of the answer {late_s:.1f} s after the engine had given it; "
            f"it was behind for {max(blocked_s, late_s):.1f} s, and the engine was not the limit: "
            "reading slowly cost about {lost}."
        ),
        remedy=(
            "In the client, read the stream without doing work between the reads (hand the text to "
            "another task), or ask for a non-streamed answer."
        ),
        evidence=(
            Evidence(name="delivery after the end", value=late_s, unit="s", limit=MIN_WAIT_S),
            Evidence(name="client behind", value=max(blocked_s, late_s), unit="s"),
        ),
    )
