"""Previous verdicts: that on each model's last ended request, for the head of its next reply."""

from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.outputs.headers import previous
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.runtime.bounded_map import BoundedMap

MAX_MODELS = 256

EndedVerdict = tuple[float, str]
"""When a request ended, on the clock of this machine, and what `slowtok-previous` says of it."""


class PreviousVerdicts:
    """Keeps one verdict per model: that of the judged request that ended last."""

    def __init__(self) -> None:
        self._last: BoundedMap[str, EndedVerdict] = BoundedMap(MAX_MODELS)
        self._ended_at_s: BoundedMap[str, float] = BoundedMap(MAX_MODELS)

    def ended(self, exchange: Exchange) -> None:
        """Note that a request has ended; its verdict may follow later."""
        model, ended_at_s = exchange.model or "", exchange.ended_at_s or 0.0
        self._ended_at_s[model] = max(ended_at_s, self._ended_at_s.get(model, 0.0))

    def judged(self, exchange: Exchange, diagnosis: Diagnosis) -> None:
        """Store the verdict on a request that has ended."""
        header = previous(exchange.request_id, diagnosis)
        self.note(exchange.model, (exchange.ended_at_s or 0.0, header))

    def note(self, model: str | None, verdict: EndedVerdict) -> None:
        """Store a verdict, unless it is an older one; the last word on a request stands."""
        known = self._last.get(model or "")
        if known is None or known[0] <= verdict[0]:
            self._last[model or ""] = verdict

    def last(self, model: str | None) -> EndedVerdict | None:
        """Return the stored verdict; None before the first."""
        return self._last.get(model or "")

    def is_up_to_date(self, model: str | None) -> bool:
        """Return True if there is a verdict, and no ended request still waits for its own."""
        last = self._last.get(model or "")
        return last is not None and last[0] >= self._ended_at_s.get(model or "", 0.0)

    def header(self, model: str | None) -> dict[str, str]:
        """Return the header with the verdict; empty before the first."""
        last = self._last.get(model or "")
        return {} if last is None else {"slowtok-previous": last[1]}
