"""Newline-delimited JSON, the framing of Ollama's native API: bytes in, complete lines out."""

from slowtok.proxy.stream.sse import MAX_EVENT_BYTES


class NdjsonReader:
    """Splits a byte stream, in whatever pieces it arrives, into its non-empty lines."""

    frame = (b"", b"\n")

    def __init__(self) -> None:
        self._line = bytearray()  # that has not ended
        self._dropping = False
        self.dropped = 0
        self.inside = False  # a line that has not ended

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return every line that `chunk` completes."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"" if self._dropping else bytes(self._line) + lines[0]
            self._line.clear()
            self._dropping = False
        self._hold(rest)
        self.inside = bool(self._line or self._dropping)
        return [line for line in lines if line.strip()]

    def flush(self) -> list[bytes]:
        """Return the last line where the stream ended without a newline."""
        return self.feed(b"\n")

    def _hold(self, rest: bytes) -> None:
        if self._dropping:
            return
        self._line += rest
        if len(self._line) > MAX_EVENT_BYTES:
            self._dropping = True
            self.dropped += 1
            self._line.clear()
