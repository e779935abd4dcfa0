"""The two ways in which a stream is changed on its way to the client, one after the other.

The usage chunk that only we asked for is taken out, and the record is put in where it was asked
for. A stream that needs neither never comes here.
"""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.annotate import Annotator, Mode
from slowtok.proxy.stream.usage import UsageRemover


class StreamRewriter:
    """Passes a stream's bytes on, changed in one or both ways; `ending`: its record is due."""

    def __init__(self, remover: UsageRemover | None, annotator: Annotator | None) -> None:
        self._remover = remover
        self._annotator = annotator

    @property
    def annotates(self) -> bool:
        """Return True while a record is still to be put in."""
        return self._annotator is not None and not self._annotator.is_over

    @property
    def ending(self) -> bool:
        """Return True if all but the end has passed, so that the record is due."""
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


def make_rewriter(
    content_type: str, *, takes_usage_out: bool, annotate: Mode | None
) -> StreamRewriter | None:
    """Return what changes a stream on its way; None for one that passes as it is."""
    ndjson = content_type.startswith("application/x-ndjson")
    can = annotate == "chunk" or not ndjson  # JSON lines have no comments
    annotator = Annotator(annotate, ndjson=ndjson) if annotate and can else None
    remover = UsageRemover() if takes_usage_out else None
    return StreamRewriter(remover, annotator) if annotator or remover else None
