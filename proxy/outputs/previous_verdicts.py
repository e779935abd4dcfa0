"""The verdict on each model's request that ended last, which the next reply of the model tells."""

from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.outputs.headers import previous
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.runtime.bounded_map import BoundedMap

MAX_MODELS = 256

EndedVerdict = tuple[float, str]
"""When a request ended, on the clock of this machine, and what `slowtok-previous` says of it."""


class PreviousVerdicts:
    """Keeps one verdict for each model: that on the request that ended last, of those judged."""

    def __init__(self) -> None:
        self._last: BoundedMap[str, EndedVerdict] = BoundedMap(MAX_MODELS)
        self._ended_at_s: BoundedMap[str, float] = BoundedMap(MAX_MODELS)

    def ended(self, exchange: Exchange) -> None:
        """Take note that a request has ended; its verdict may come later."""
        model, ended_at_s = exchange.model or "", exchange.ended_at_s or 0.0
        self._ended_at_s[model] = max(ended_at_s, self._ended_at_s.get(model, 0.0))

    def judged(self, exchange: Exchange, diagnosis: Diagnosis) -> None:
        """Take note of the verdict on a request that has ended."""
        header = previous(exchange.request_id, diagnosis)
        self.note(exchange.model, (exchange.ended_at_s or 0.0, header))

    def note(self, model: str | None, verdict: EndedVerdict) -> None:
        """Take note of a verdict; one that is known already, or an older one, changes nothing."""
        known = self._last.get(model or "")
        if known is None or known[0] < verdict[0]:
            self._last[model or ""] = verdict

    def last(self, model: str | None) -> EndedVerdict | None:
        """Return the verdict that is kept; None before the first."""
        return self._last.get(model or "")

    def is_up_to_date(self, model: str | None) -> bool:
        """Return True if there is a verdict, and none is still to come of what has ended."""
        last = self._last.get(model or "")
        return last is not None and last[0] >= self._ended_at_s.get(model or "", 0.0)

    def header(self, model: str | None) -> dict[str, str]:
        """Return the header that tells of it; none before the first."""
        last = self._last.get(model or "")
        return {} if last is None else {"slowtok-previous": last[1]}
