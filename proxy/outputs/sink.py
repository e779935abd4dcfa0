"""The two kinds of output: a sink of finished requests, and one that also follows them."""

from typing import Any, Literal, Protocol, runtime_checkable

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.relay.exchange import Exchange

Step = Literal["begin", "sent", "end"]


class Sink(Protocol):
    """An output: takes a finished case with its diagnosis and its record, computes nothing."""

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Put it out."""
        ...


@runtime_checkable
class Watcher(Protocol):
    """A sink that is also told of each step of a request while it is on its way."""

    def note(self, step: Step, exchange: Exchange) -> None:
        """Take note of a step that has just been made."""
        ...
