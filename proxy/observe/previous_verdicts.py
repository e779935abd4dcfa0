"""The last verdict on each model, which the next reply of that model tells."""

from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.outputs import headers
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.runtime.bounded_map import BoundedMap

KEEP_MODELS = 256


class PreviousVerdicts:
    """Keeps the verdict on the request that ended last, whichever was concluded last."""

    def __init__(self) -> None:
        self._last: BoundedMap[str, tuple[float, str]] = BoundedMap(KEEP_MODELS)

    def note(self, exchange: Exchange, diagnosis: Diagnosis) -> None:
        """Take note of a verdict; one that is known already, or an older one, changes nothing."""
        model, ended_at_s = exchange.model or "", exchange.ended_at_s or 0.0
        known = self._last.get(model)
        if known is not None and known[0] >= ended_at_s:
            return
        self._last[model] = (ended_at_s, headers.previous(exchange.request_id, diagnosis))

    def header(self, model: str | None) -> dict[str, str]:
        """Return the header that tells of it; none before the first."""
        known = self._last.get(model or "")
        return {} if known is None else {"slowtok-previous": known[1]}
