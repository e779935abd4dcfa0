"""Labels for metrics: what each request counts as, in a bounded number of words."""

from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.finding import Diagnosis

MAX_MODELS = 20
"""Names of models that get a label of their own; a dashboard with more cannot be read."""

MAX_NAME_CHARS = 128
OTHER = "other"
UNKNOWN_MODEL = "unknown"

ENDINGS = frozenset(
    {
        "stop",
        "length",
        "tool_calls",
        "content_filter",
        "complete",
        "client-gone",
        "no-engine",
        "upstream-error",
        "upstream-refused",
        "timeout",
        "http-error",
        "overloaded",
        "proxy-stopped",
        "unknown",
    }
)


class ModelLabels:
    """Models by name; beyond `most` names the rest is called "other"."""

    def __init__(self, most: int = MAX_MODELS) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, case: Case) -> str:
        """Return the label for a request's model: the engine's name for it, else the client's.

        Only a request that succeeded can bring in a new name: clients ask for models that are
        not there.
        """
        said = case.model.name or case.timeline.model or UNKNOWN_MODEL
        if said in self._known:  # the label of a label is the same
            return said
        name = _label(said)
        if name in self._known:
            return name
        if len(self._known) >= self._most or case.timeline.status != 200:
            return OTHER
        self._known.add(name)
        return name


def _label(said: str) -> str:
    """Return a name as a label: bounded, text that any encoding can carry, no folders."""
    if said.startswith("/") or said[1:3] == ":\\":  # llama-server's name for a file without alias
        said = said.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return sendable(said[:MAX_NAME_CHARS] or UNKNOWN_MODEL)


def sendable(text: str) -> str:
    """Return text that any encoding can carry: a client may have sent halves of characters."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def ending(case: Case) -> str:
    """Return how a request ended; an engine's own words beyond the known ones are "other"."""
    return case.timeline.ended if case.timeline.ended in ENDINGS else OTHER


def unexplained_s(diagnosis: Diagnosis) -> dict[Phase, float]:
    """Return what each slow phase lost beyond the parts that its causes are charged with."""
    left_s = {loss.phase: loss.lost_s for loss in diagnosis.losses if loss.slow}
    for finding in diagnosis.findings.values():
        if not finding.informational and finding.phase in left_s:
            left_s[finding.phase] -= finding.lost_s
    return {phase: lost_s for phase, lost_s in left_s.items() if lost_s > 0}
