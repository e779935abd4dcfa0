"""Server-sent events: bytes in, the data of each complete event out.

Strategy: cut the bytes into lines, keep what is not a whole line yet, join the `data` lines of an
event at the empty line that ends it. Comments, ids and event names are skipped: no dialect needs
them. Line ends are LF, CRLF or CR (WHATWG HTML, section 9.2.5). An event that grows past
`MAX_EVENT_BYTES` is dropped and counted, so that memory stays bounded.
"""

MAX_EVENT_BYTES = 16 * 1024 * 1024  # ten times the largest event seen in recordings (logprobs)


class SseReader:
    """Splits a byte stream, in whatever pieces it arrives, into the data of its events."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of a line that has not ended
        self._data: list[bytes] = []  # data lines of the event that has not ended
        self._piece_bytes = 0
        self._data_bytes = 0
        self._dropping = False
        self.dropped = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of every event that `chunk` completes; most chunks complete one."""
        if not self._pieces and not self._data and chunk.endswith(b"\n\n") and b"\r" not in chunk:
            return [_data_of(event) for event in chunk[:-2].split(b"\n\n") if event]
        return self._feed_slowly(chunk)

    def flush(self) -> list[bytes]:
        """Return the last event where the stream ended without its empty line."""
        return self.feed(b"\n\n") if self._pieces or self._data else []

    def _feed_slowly(self, chunk: bytes) -> list[bytes]:
        if b"\n" not in chunk and b"\r" not in chunk:
            self._hold(chunk)
            return []
        text = b"".join((*self._pieces, chunk))
        self._pieces.clear()
        self._piece_bytes = 0
        # A CR at the very end may be the first half of CRLF: it waits for the next bytes.
        lines = text.splitlines(keepends=True)
        if not text.endswith(b"\n"):
            self._hold(lines.pop())
        events = []
        for line in lines:
            event = self._take(line.rstrip(b"\r\n"))
            if event is not None:
                events.append(event)
        return events

    def _hold(self, piece: bytes) -> None:
        if self._dropping:
            return
        self._pieces.append(piece)
        self._piece_bytes += len(piece)
        self._drop_if_too_long()

    def _drop_if_too_long(self) -> None:
        if self._piece_bytes + self._data_bytes <= MAX_EVENT_BYTES:
            return
        self._dropping = True
        self.dropped += 1
        self._pieces.clear()
        self._data.clear()
        self._piece_bytes = self._data_bytes = 0

    def _take(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data, self._data_bytes = self._data, [], 0
            dropping, self._dropping = self._dropping, False
            return b"\n".join(data) if data and not dropping else None
        if line.startswith(b"data:") and not self._dropping:
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._data_bytes += len(line)
            self._drop_if_too_long()
        return None


def _data_of(event: bytes) -> bytes:
    """Return the data of one event given without its empty line; empty for a bare comment."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = (line for line in event.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(line[6:] if line[5:6] == b" " else line[5:] for line in lines)
