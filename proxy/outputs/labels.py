"""Metric labels of a request, each with a bounded number of values."""

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
    """Model names as labels; beyond `most` names, further ones become "other"."""

    def __init__(self, most: int = MAX_MODELS) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, case: Case) -> str:
        """Return the label for a request's model: the engine's name for it, else the client's.

        Only a successful request adds a new name, because clients request models that do not exist.
        """
        name = case.model.name or case.timeline.model or UNKNOWN_MODEL
        if name in self._known:  # the label of a label is the same
            return name
        label = _label(name)
        if label in self._known:
            return label
        if len(self._known) >= self._most or case.timeline.status != 200:
            return OTHER
        self._known.add(label)
        return label


def _label(name: str) -> str:
    """Return a name as a label: bounded, encodable, without folders."""
    if name.startswith("/") or name[1:3] == ":\\":  # llama-server's name for a file without alias
        name = name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return sendable(name[:MAX_NAME_CHARS] or UNKNOWN_MODEL)


def sendable(text: str) -> str:
    """Return text that can be encoded; a client may have sent lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def ending(case: Case) -> str:
    """Return the ending as a label; unknown finish reasons of engines are "other"."""
    return case.timeline.ended if case.timeline.ended in ENDINGS else OTHER


def unexplained_s(diagnosis: Diagnosis) -> dict[Phase, float]:
    """Return the loss of each slow phase that no cause was charged with."""
    left_s = {loss.phase: loss.lost_s for loss in diagnosis.losses if loss.slow}
    for finding in diagnosis.findings.values():
        if not finding.informational and finding.phase in left_s:
            left_s[finding.phase] -= finding.lost_s
    return {phase: lost_s for phase, lost_s in left_s.items() if lost_s > 0}
