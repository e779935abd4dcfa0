"""The two framings of streams, server-sent events and JSON lines: bytes in, complete events out.

Strategy of SSE: split the bytes into lines, keep an incomplete line, and join the `data` lines of
an event at the empty line that ends it. Comments, ids and event names are skipped: no dialect needs
them. Line ends are LF, CRLF or CR (WHATWG HTML, section 9.2.5). JSON lines are the framing of
Ollama's native API.

An event that grows beyond `MAX_EVENT_BYTES` is dropped and counted, so that memory stays bounded.
"""

BOM = b"\xef\xbb\xbf"  # a stream may begin with one; nothing else begins a line with it
MAX_EVENT_BYTES = 16 * 1024 * 1024  # heuristic; events with all logprobs are megabytes


class SseReader:
    """Splits a byte stream, however it is cut, into the data of its events."""

    frame = (b"data: ", b"\n\n")  # of nearly every event

    def __init__(self) -> None:
        self._line = bytearray()  # that has not ended
        self._data: list[bytes] = []  # data lines of the event that has not ended
        self._data_bytes = 0
        self._after_cr = False  # a LF that comes next belongs to it
        self._dropping = False
        self.inside = False  # anything of the above: an event that has not ended
        self.dropped = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of every event that `chunk` completes; most chunks complete one."""
        if not self.inside and _is_one(chunk):
            return [chunk[6:-2]]
        if self._dropping or self._after_cr or len(chunk) > MAX_EVENT_BYTES or b"\r" in chunk:
            return self._feed_slowly(chunk)
        begin = chunk.find(b"\n\n") + 2 if self.inside else 0  # of the first event that is whole
        end = chunk.rfind(b"\n\n")
        if begin == 1 or end < begin:
            return self._feed_slowly(chunk)
        first = self._feed_slowly(chunk[:begin]) if begin else []
        events = map(_data_of, chunk[begin:end].split(b"\n\n"))
        whole = [data for data in events if data is not None]
        rest = chunk[end + 2 :]
        return first + whole + self._feed_slowly(rest) if rest else first + whole

    def flush(self) -> list[bytes]:
        """Return the last event if the stream ended without its empty line."""
        return self.feed(b"\n\n") if self._line or self._data else []

    def _feed_slowly(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        lines = chunk.splitlines(keepends=True)
        rest = lines.pop() if chunk and not chunk.endswith((b"\n", b"\r")) else b""
        if lines:
            self._after_cr = not rest and chunk.endswith(b"\r")
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        taken = [self._take(line.rstrip(b"\r\n")) for line in lines]
        self._hold(rest)
        self.inside = bool(self._line or self._data or self._after_cr or self._dropping)
        return [data for data in taken if data is not None]

    def _hold(self, rest: bytes) -> None:
        if self._dropping and rest:
            self._line[:] = b":"  # the whole line is a comment, however it goes on
        else:
            self._line += rest
            self._drop_if_too_long()

    def _drop_if_too_long(self) -> None:
        if len(self._line) + self._data_bytes <= MAX_EVENT_BYTES:
            return
        self._dropping = True
        self.dropped += 1
        self._data.clear()
        self._data_bytes = 0
        self._line[:] = b":" if self._line else b""

    def _take(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data, self._data_bytes = self._data, [], 0
            self._dropping = False
            return b"\n".join(data) if data else None
        value = _value_of(line)
        if value is not None and not self._dropping:
            self._data.append(value)
            self._data_bytes += len(line)
            self._drop_if_too_long()
        return None


def _is_one(chunk: bytes) -> bool:
    """Return True if a chunk is exactly one event of one line, as it nearly always is."""
    if not chunk.startswith(b"data: ") or chunk.find(b"\n") != len(chunk) - 2:
        return False
    return chunk.endswith(b"\n") and b"\r" not in chunk and len(chunk) <= MAX_EVENT_BYTES


def _data_of(event: bytes) -> bytes | None:
    """Return the data of one event without its empty line; None for a comment only."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    values = (_value_of(line) for line in event.split(b"\n"))
    data = [value for value in values if value is not None]
    return b"\n".join(data) if data else None


def _value_of(line: bytes) -> bytes | None:
    """Return the value of a `data` line; None for a comment or another field."""
    line = line.removeprefix(BOM)
    if line.startswith(b"data:"):
        return line[6:] if line[5:6] == b" " else line[5:]
    return b"" if line == b"data" else None


class NdjsonReader:
    """Splits a byte stream, however it is cut, into its non-empty lines."""

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
        """Return the last line if the stream ended without a newline."""
        return self.feed(b"\n")

    def _hold(self, rest: bytes) -> None:
        if self._dropping:
            return
        self._line += rest
        if len(self._line) > MAX_EVENT_BYTES:
            self._dropping = True
            self.dropped += 1
            self._line.clear()
