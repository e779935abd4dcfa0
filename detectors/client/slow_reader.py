"""The client took the answer more slowly than the engine produced it.

Signal:
Writing to the client blocked for at least half a second and a fifth of the decode time, or the
rest of the answer was still on its way to the client that long after the engine's last byte.

Not to be confused with:
- `slow-network`: the way from the engine to this proxy.
- `kv-preemption`, `host-contention`: the tokens themselves came late from the engine.
- A slow page: a client that reads fast and draws slowly does not block.

Remedy:
Read the stream in the client without work between the reads; hand the text to another thread or
task. Over a slow link, ask for a non-streamed answer.

Sources:
- TCP flow control: a full receive window stops the writer (RFC 9293, section 3.8.6).
"""

from slowtok.detectors.case import Case
from slowtok.detectors.finding import Evidence, Finding

TITLE = "Client read slowly"

MIN_BLOCKED_RATIO = 0.20
"""Proposed, no published source: share of the decode time."""

MIN_BLOCKED_S = 0.5
"""No published source: shorter stops are a garbage collection or a screen refresh."""

CONFIDENCE = 0.95


def detect(case: Case) -> Finding | None:
    """Fire when writes to the client blocked for a notable part of the decode."""
    blocked_s = max(case.timeline.client_blocked_s, case.phases.delivery_s or 0.0)
    decode_s = case.phases.decode_stream_s or case.phases.decode_s or case.phases.total_s
    if blocked_s < MIN_BLOCKED_S or blocked_s < MIN_BLOCKED_RATIO * decode_s:
        return None
    share = f", {100 * blocked_s / decode_s:.0f} % of the decode time" if decode_s else ""
    return Finding(
        phase="delivery",
        confidence=CONFIDENCE,
        lost_s=blocked_s,
        summary=(
            f"The client did not read for {blocked_s:.1f} s while data was ready{share}; "
            "the engine was not the limit."
        ),
        remedy=(
            "In the client, read the stream without doing work between the reads (hand the text to "
            "another task), or ask for a non-streamed answer."
        ),
        evidence=(
            Evidence(name="client not reading", value=blocked_s, unit="s", limit=MIN_BLOCKED_S),
            Evidence(name="decode", value=decode_s, unit="s", limit=blocked_s / MIN_BLOCKED_RATIO),
        ),
    )
