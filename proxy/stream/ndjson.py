"""Newline-delimited JSON, the framing of Ollama's native API: bytes in, complete lines out."""

from slowtok.proxy.stream.sse import MAX_EVENT_BYTES


class NdjsonReader:
    """Splits a byte stream, in whatever pieces it arrives, into its non-empty lines."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._dropping = False
        self.dropped = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return every line that `chunk` completes."""
        head, newline, rest = chunk.partition(b"\n")
        if not newline:
            self._hold(chunk)
            return []
        first = b"" if self._dropping else b"".join((*self._pieces, head))
        self._pieces.clear()
        self._held_bytes = 0
        self._dropping = False
        *lines, tail = rest.split(b"\n")
        self._hold(tail)
        return [line for line in (first, *lines) if line.strip()]

    def flush(self) -> list[bytes]:
        """Return the last line where the stream ended without a newline."""
        return self.feed(b"\n")

    def _hold(self, piece: bytes) -> None:
        if not piece or self._dropping:
            return
        self._pieces.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > MAX_EVENT_BYTES:
            self._dropping = True
            self.dropped += 1
            self._pieces.clear()
