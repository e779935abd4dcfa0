"""The two interfaces of outputs: a sink of finished requests, and a watcher of their steps."""

from typing import Any, Literal, Protocol, runtime_checkable

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.relay.exchange import Exchange

Step = Literal["begin", "sent", "end"]


class Sink(Protocol):
    """An output of finished requests: takes case, diagnosis and record, and judges nothing."""

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Output a finished request."""
        ...


@runtime_checkable
class Watcher(Protocol):
    """A sink that also gets each step of a request in flight."""

    def note(self, step: Step, exchange: Exchange) -> None:
        """Take a step that was just made."""
        ...
