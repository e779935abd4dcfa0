"""The newest rates of each setup on one engine process and load, whatever their verdict.

What a running engine gave a moment ago tells what is new in a slow request: a cause that stands
from the load of the model on was there then, too. Nothing of it outlives this process.
"""

import statistics
from collections import deque
from typing import NamedTuple

from slowtok.detectors.case.case import Case
from slowtok.proxy.history.keys import BaselineKey
from slowtok.proxy.runtime.bounded_map import BoundedMap

MAX_KEPT = 8
"""The median of so many is the usual rate: what is new is told before it has become usual."""

MAX_SETUPS = 256
MIN_USUAL = 2
"""One request alone is no habit."""

_LOAD_STEP_S = 2.0
"""Times of a load are told anew with each request, to about a second."""

_Process = tuple[object, ...]


class _Rate(NamedTuple):
    tps: float
    expected_tps: float | None
    healthy: bool


class UsualRate(NamedTuple):
    """The recent median, None before there is any habit, and how many were healthy."""

    tps: float | None
    healthy: int


NOT_KNOWN = UsualRate(None, 0)


class Recent:
    """Rates by setup, process and load."""

    def __init__(self) -> None:
        self._rates: BoundedMap[tuple[BaselineKey, _Process], deque[_Rate]] = BoundedMap(MAX_SETUPS)

    def add(self, case: Case, setup: BaselineKey, *, healthy: bool) -> None:
        """Take note of a rate, where it is known which process gave it."""
        process, tps = _process(case), case.phases.decode_tps
        if process is None or tps is None:
            return
        key = (setup, process)
        rates = self._rates.get(key) or deque(maxlen=MAX_KEPT)
        rates.append(_Rate(tps, case.envelope.roofline_tps, healthy))
        self._rates[key] = rates

    def of(self, case: Case, setup: BaselineKey) -> UsualRate:
        """Return what this setup gave just before on the very process and load of the case.

        At the case's own context, by what first principles expect there.
        """
        process = _process(case)
        rates = self._rates.get((setup, process), ()) if process is not None else ()
        if not rates:
            return NOT_KNOWN
        unit_tps = case.envelope.roofline_tps
        found = [
            rate.tps * unit_tps / rate.expected_tps if unit_tps and rate.expected_tps else rate.tps
            for rate in rates
        ]
        usual_tps = statistics.median(found) if len(found) >= MIN_USUAL else None
        return UsualRate(usual_tps, sum(rate.healthy for rate in rates))


def _process(case: Case) -> _Process | None:
    """Return which process and load served a case; None where that is not known.

    An engine that loads models on demand keeps its pid: there the load's time, the context and the
    memory that the model took tell loads apart.
    """
    server, loads = case.server, case.history.loads
    if server.pid is None or server.local is False:
        return None
    loaded_at = None
    if loads:
        loaded_at = round((case.timeline.accepted_at_s - loads[0].age_s) / _LOAD_STEP_S)
    return (
        server.url,
        server.pid,
        server.version,
        server.context_tokens,
        server.loaded_gpu_bytes,
        loaded_at,
    )
