"""slowtok itself held the request up.

Signal:
slowtok itself held the request for at least 50 ms and 5 % of its time: before it was sent, after it
was answered, or by a late event loop, as far as that delay shows in the arrival or the delivery of
the answer. slowtok also reports a freeze of a second or more in the middle of an answer while its
event loop was blocked, although that loses next to no time in the end.

Not to be confused with:
- `slow-reader`: the client's connection is full, so slowtok can write no more.
- `slow-network`: the engine's answer came late to this machine.
- A loop that was late while there was nothing to pass on cost nothing.

Remedy:
If all cores are busy, leave one to slowtok. Otherwise it is a fault of slowtok's: please report it,
with the case file that `--record DIR` writes.

Sources:
- Measured by slowtok itself: the times between its own steps, and a timer in its event loop.
"""

from slowtok.detectors.analysis.host_window import mean
from slowtok.detectors.analysis.rate_shape import stalls_of
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits, weigh

TITLE = "slowtok itself was late"
TRAITS = Traits(phases=("delivery",), in_exchange=True)

MIN_LATE_S = 0.05
MIN_LATE_RATIO = 0.05
"""Heuristic: a hundred times and more of what a request takes here."""

MIN_FROZEN_S = 1.0
"""What interrupts a train of thought (Nielsen, Usability Engineering, 1993); a loaded machine holds
every program up for less now and then."""

MIN_OF_GAP_RATIO = 0.8
"""A gap is slowtok's own where its loop was late for nearly all of it. Heuristic."""

BUSY_RATIO = 0.95
"""Of the machine's cores, from where on a program may have to wait for one. Heuristic."""


def detect(case: Case) -> Finding | None:
    """Fire when slowtok's own part is more than is felt."""
    held_s, lag_s = case.timeline.proxy_s, _lag_s(case)
    lost_s = held_s + lag_s
    if lost_s < MIN_LATE_S or lost_s < MIN_LATE_RATIO * case.phases.total_s:
        return _frozen(case, lost_s)
    return Finding(
        phase="delivery",
        confidence=weigh("counter", "gauge"),
        lost_s=lost_s,
        summary=(
            f"slowtok itself held this request up: {held_s:.2f} s in its own steps, {lag_s:.2f} s "
            "because its event loop woke late; that cost about {lost}, and neither the engine nor "
            "the client is to blame."
        ),
        remedy=_remedy(case),
        evidence=(
            Evidence(name="slowtok's own steps", value=held_s, unit="s", limit=MIN_LATE_S),
            Evidence(name="late event loop", value=lag_s, unit="s", limit=MIN_LATE_S),
        ),
    )


def _frozen(case: Case, lost_s: float) -> Finding | None:
    """Return what a client saw stand still because slowtok's loop did, though it caught up."""
    late_s = case.timeline.loop_lag_s or 0.0
    frozen = [s.gap_s for s in stalls_of(case) if s.gap_s <= late_s / MIN_OF_GAP_RATIO]
    if late_s < MIN_FROZEN_S or not frozen:
        return None
    return Finding(
        phase="delivery",
        confidence=weigh("counter", "gauge"),
        lost_s=lost_s,
        informational=True,
        summary=(
            f"slowtok itself stood still for up to {late_s:.1f} s while this answer came, so the "
            f"client saw it freeze {len(frozen)} time{'s' if len(frozen) > 1 else ''}; the missing "
            f"tokens came right after, so the whole answer was only {lost_s:.2f} s late."
        ),
        remedy=_remedy(case),
        evidence=(
            Evidence(name="late event loop", value=late_s, unit="s", limit=MIN_FROZEN_S),
            Evidence(name="longest freeze", value=max(frozen), unit="s", limit=MIN_FROZEN_S),
        ),
    )


def _lag_s(case: Case) -> float:
    """Return the loop's lateness as far as the answer was late: what arrived, or what went out."""
    phases = case.phases
    way_s = max((phases.decode_stream_s or 0.0) - (phases.decode_s or 0.0), 0.0)
    return min(case.timeline.loop_lag_s or 0.0, way_s + (phases.delivery_s or 0.0))


def _remedy(case: Case) -> str:
    cores = mean(case.host, lambda s: s.cpu_cores)
    busy_cores = mean(case.host, lambda s: s.cpu_busy_cores)
    if cores and busy_cores is not None and busy_cores >= BUSY_RATIO * cores:
        threads = max(round(cores) - 1, 1)
        engine = {
            "llama-server": f" (start llama-server with --threads {threads})",
            "ollama": f" (set num_thread to {threads})",
        }.get(case.server.kind, "")
        return (
            f"All {cores:.0f} cores of this machine were busy: leave one to slowtok{engine}, stop "
            "other programs, or run slowtok on another machine."
        )
    return (
        "This is a fault of slowtok's; please report it: start slowtok with --record DIR and "
        "attach the case file of this request. `slowtok status` shows what else slowtok was doing "
        "(overhead)."
    )
