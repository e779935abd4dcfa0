"""The two ways in which a stream is changed on its way to the client, one after the other.

The usage chunk that only we asked for is taken out, and the record is put in where it was asked
for. A stream that needs neither never comes here.
"""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.annotate import Annotator
from slowtok.proxy.stream.usage import UsageRemover


class Reshaping:
    """Passes a stream's bytes on, changed in one or both ways; `ending`: its record is due."""

    def __init__(self, remover: UsageRemover | None, annotator: Annotator | None) -> None:
        self._remover = remover
        self._annotator = annotator

    @property
    def annotates(self) -> bool:
        """Whether a record is to be put in."""
        return self._annotator is not None

    @property
    def ending(self) -> bool:
        """Whether all but the end has passed, so that the record is due."""
        return self._annotator is not None and self._annotator.ending

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that may go to the client now."""
        left = chunk if self._remover is None else self._remover.feed(chunk)
        return left if self._annotator is None else self._annotator.feed(left)

    def close(self, record: Mapping[str, Any] | None) -> bytes:
        """Return what was held back, with the record; None leaves it out."""
        left = b"" if self._remover is None else self._remover.flush()
        if self._annotator is None:
            return left
        return self._annotator.feed(left) + self._annotator.close(record)
