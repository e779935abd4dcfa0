"""The engine's answer took far longer to get here than the engine took to generate it.

Signal:
The engine reports how long it decoded, and the tokens arrived here over a time that is longer by at
least half a second and a fifth, often in bursts. slowtok also reports an answer that arrives in one
piece, its head included, long after its first token was generated, although that loses no time in
the end.

Not to be confused with:
- `slow-reader`: the connection from slowtok to the client is slow.
- `proxy-lag`: slowtok itself read late.
- Speculative decoding sends tokens in bursts, and an engine may hold back tool calls or hidden
  reasoning.
- If the engine reports no times of its own, the network and the engine look the same.

Remedy:
Run slowtok on the engine's machine, use a cable, and turn off the buffering of a reverse proxy in
between (nginx: `proxy_buffering off`, or the header `X-Accel-Buffering: no`). TCP_NODELAY helps
against bursts.

Sources:
- nginx, ngx_http_proxy_module (`proxy_buffering`, `X-Accel-Buffering`).
- llama-server sends the head of a stream when it begins on the prompt (since b9425).
"""

from slowtok.detectors.analysis.host_window import decode_s
from slowtok.detectors.analysis.phase_loss import MIN_WAIT_S
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits, need, weigh

TITLE = "Slow connection from the engine"
TRAITS = Traits(phases=("delivery",), in_exchange=True)

MIN_WAY_RATIO = 0.2
"""Of the time in which the answer arrived. Heuristic."""

MIN_OTHERS_RATIO = 0.5
"""Heuristic: a client or a proxy that was late for half of it explains it."""

MIN_HELD_S = 2.0
HELD_RATIO = 0.8
"""Of the decode that passed before anything came. Both are heuristic."""

MIN_BURST_TOKENS = 3.0
MAX_COUNTED_TOKENS = 8192
"""Arrival times of longer answers are thinned, and do not tell bursts."""


def detect(case: Case) -> Finding | None:
    """Fire where the engine's own decode is far shorter than the arrival of its tokens."""
    arrival_s = case.phases.decode_stream_s
    if not case.timeline.stream or arrival_s is None:
        return None
    if (held_s := _held_s(case)) >= MIN_HELD_S:
        return _held(case, held_s)
    if arrival_s < MIN_WAIT_S:
        return None
    told_s = case.phases.decode_s if case.phases.source in ("engine", "metrics") else None
    if told_s is None and case.server.local is not False:
        return None  # nothing but this machine is in between, and nothing speaks against it
    way_s = arrival_s - need(told_s, "decode time by the engine's own clock")
    if way_s < MIN_WAIT_S or way_s < MIN_WAY_RATIO * arrival_s or _late_here(case, way_s):
        return None
    return _finding(case, way_s, arrival_s)


def _late_here(case: Case, way_s: float) -> bool:
    """Return True if the client or slowtok itself kept the answer from being read."""
    timeline = case.timeline
    late_s = max(timeline.client_blocked_s, timeline.loop_lag_s or 0.0)
    return late_s >= MIN_OTHERS_RATIO * way_s


def _held_s(case: Case) -> float:
    """Return how long a whole answer was held back on the way; 0 where it was not."""
    timeline, phases = case.timeline, case.phases
    head_at_s, first_at_s = timeline.headers_at_s, timeline.first_token_at_s
    if (
        case.server.kind != "llama-server"  # the others send their head at other moments
        or phases.source != "engine"
        or phases.decode_s is None
        or None in (timeline.sent_at_s, head_at_s, first_at_s)
    ):
        return 0.0
    before_s = (phases.queue_s or 0.0) + (phases.load_s or 0.0) + (phases.prefill_s or 0.0)
    ready_at_s = (timeline.sent_at_s or 0.0) + before_s
    held_s = min(head_at_s or 0.0, first_at_s or 0.0) - ready_at_s
    return held_s if held_s >= HELD_RATIO * phases.decode_s else 0.0


def _finding(case: Case, way_s: float, arrival_s: float) -> Finding:
    engine_s, per_read = arrival_s - way_s, _tokens_per_read(case)
    evidence = [
        Evidence(name="decode by the engine", value=engine_s, unit="s"),
        Evidence(name="arrival of the tokens", value=arrival_s, unit="s", limit=engine_s),
    ]
    bursts = ""
    if per_read is not None and per_read >= MIN_BURST_TOKENS:
        bursts = f", in bursts of about {per_read:.0f} tokens"
        evidence.append(Evidence(name="tokens in one read", value=per_read, unit="tokens"))
    return Finding(
        phase="delivery",
        confidence=weigh("server", "gauge" if case.server.local is False else "inference"),
        lost_s=way_s,
        summary=(
            f"The engine generated the answer in {engine_s:.1f} s, but it arrived here over "
            f"{arrival_s:.1f} s{bursts}: the way from the engine to slowtok cost about {{lost}}, "
            "and neither the engine nor the client was the limit."
        ),
        remedy=_remedy(case),
        evidence=tuple(evidence),
    )


def _tokens_per_read(case: Case) -> float | None:
    tokens, reads = case.timeline.tokens, len(case.timeline.token_at_s)
    if not tokens.completion or not reads or tokens.drafted:
        return None
    return tokens.completion / reads if tokens.completion <= MAX_COUNTED_TOKENS else None


def _held(case: Case, held_s: float) -> Finding:
    return Finding(
        phase="delivery",
        confidence=weigh("server", "inference"),
        lost_s=held_s,
        informational=True,
        summary=(
            f"The answer came in one piece {held_s:.1f} s after its first token was ready: "
            "something between the engine and slowtok buffers it. The answer is complete no later, "
            "but nothing of it shows before its end."
        ),
        remedy=_remedy(case),
        evidence=(
            Evidence(name="first token held back", value=held_s, unit="s", limit=MIN_HELD_S),
            Evidence(name="decode by the engine", value=decode_s(case), unit="s"),
        ),
    )


def _remedy(case: Case) -> str:
    buffering = (
        "in a reverse proxy between them, turn buffering off (nginx: proxy_buffering off, or the "
        "header X-Accel-Buffering: no) and TCP_NODELAY on"
    )
    if case.server.local is False:
        return (
            f"Use a cable instead of Wi-Fi, or a direct address instead of a tunnel or VPN; "
            f"{buffering}; or run slowtok on the engine's machine."
        )
    return (
        "Point slowtok straight at the engine (--upstream) instead of at something in front of it "
        f"(llama-swap, an ssh tunnel, a container's port forwarding); {buffering}."
    )
