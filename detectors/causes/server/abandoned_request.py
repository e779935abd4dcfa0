"""The engine worked for requests whose clients had left, while this one waited or shared with them.

Signal:
A client left before its answer was complete, and slowtok closed the connection to the engine at
once. Still the engine was seen at that task, or at more tasks than there were requests, while this
request waited for a slot or decoded. Where the engine shows nothing, a wait right after a client
left, with no other request there, is weaker evidence.

Not to be confused with:
- `queued`, `batch-shared`: the clients of the other requests still wait for their answers.
- `retried-request`: this is the same event, seen from the client that asks again.
- An engine needs a second or so to notice that a client left.

Remedy:
Make the engine stop in time: take a current build, send no X-Conversation-Id (with it llama-server
continues), use smaller batches (it checks between two of them), and limit the answer's length
(max_tokens).

Sources:
- ggml-org/llama.cpp#24496 (a router's slot continues until the context is full),
  ollama/ollama#11889 (a prefill ran to its end), vllm-project/vllm#10087 (a middleware hides that
  the client left).
- llama-server checks once a second, and not within a batch (tools/server/server-context.cpp).
"""

from slowtok.detectors.analysis.phase_loss import MIN_WAIT_S, judge_decode
from slowtok.detectors.analysis.waiting import wait_of
from slowtok.detectors.case.case import Abandoned, Case, Phase
from slowtok.detectors.case.finding import Evidence, Finding, Traits, weigh

TITLE = "Engine worked for clients that had left"
TRAITS = Traits(phases=("queue", "decode"), in_exchange=True)

MAX_LEFT_S = 30.0
"""Where only the time tells: a client who left longer ago is hardly why. Heuristic."""

MIN_SEEN_RATIO = 0.5
"""Of a wait, or of a decode: for less of it the others were why. Heuristic."""


def detect(case: Case) -> Finding | None:
    """Fire when what this request waited for, or shared with, had nobody waiting for it."""
    left = case.neighbours.abandoned
    if left is None:
        return None
    return _waited(case) or _shared(case)


def _waited(case: Case) -> Finding | None:
    left, wait = case.neighbours.abandoned, wait_of(case)
    if left is None or wait is None or wait.waited_s < MIN_WAIT_S:
        return None
    if left.seen_s is not None:
        if left.seen_s < MIN_SEEN_RATIO * wait.waited_s:
            return None
        lost_s, confidence = wait.waited_s, weigh("server", "counter")
    elif case.neighbours.in_flight_at_send or wait.others > left.count or left.left_s > MAX_LEFT_S:
        return None
    else:
        lost_s, confidence = wait.waited_s, weigh("gauge", "inference")
    return _finding(
        case,
        left,
        "queue",
        lost_s,
        confidence,
        "The request waited about {lost} for an engine that was still at work for "
        f"{_whom(left.count)}",
    )


def _shared(case: Case) -> Finding | None:
    left, took_s = case.neighbours.abandoned, case.phases.decode_s
    others, judged = case.neighbours.decode_mean, judge_decode(case)
    until_s = case.phases.decode_to_at_s
    if left is None or left.seen_s is None or not took_s or not judged.slow or until_s is None:
        return None
    since_s = case.phases.decode_from_at_s or until_s
    seen_s = left.seen_s - (since_s - (case.timeline.sent_at_s or since_s))
    if seen_s < MIN_SEEN_RATIO * took_s or others <= 0:
        return None
    share = min(left.count / others, 1.0)
    return _finding(
        case,
        left,
        "decode",
        judged.lost_s * share,
        weigh("server", "gauge"),
        f"The engine decoded for {_whom(left.count)} during this request, which cost it about "
        "{lost}",
    )


def _whom(count: int) -> str:
    return "a client that had left" if count == 1 else f"{count} clients that had left"


def _finding(
    case: Case, left: Abandoned, phase: Phase, lost_s: float, confidence: float, said: str
) -> Finding:
    which = "" if left.request_id is None else f" (request {left.request_id})"
    seen = (
        (Evidence(name="seen at work for them", value=left.seen_s, unit="s"),)
        if left.seen_s is not None
        else ()
    )
    return Finding(
        phase=phase,
        confidence=confidence,
        lost_s=lost_s,
        proof_s=lost_s if phase == "queue" else 0.0,
        summary=f"{said}{which}.",
        remedy=_remedy(case),
        evidence=(
            Evidence(name="left before their end", value=left.count, unit="requests"),
            Evidence(name="left before this was sent", value=left.left_s, unit="s"),
            *seen,
        ),
    )


def _remedy(case: Case) -> str:
    general = "limit answers (max_tokens), and give clients a longer timeout so that they stay"
    if case.server.kind == "llama-server":
        return (
            "Take a current llama-server, and send requests without X-Conversation-Id. It checks "
            "between two batches whether its clients are still there, so smaller batches "
            f"(--batch-size 512) help; {general}."
        )
    return f"Take a current version of the engine, which stops when a client leaves; {general}."
