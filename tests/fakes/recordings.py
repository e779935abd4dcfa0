"""The recorded replies of `tests/data`: what arrived, when, read by read."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import h11

STREAMS = Path(__file__).resolve().parent.parent / "data" / "streams"
OLLAMA = STREAMS.parent / "ollama"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One exchange: the request (`method`, `path`, `body`), and each read as (at_s, raw bytes)."""

    name: str
    request: dict[str, Any]
    chunks: tuple[tuple[float, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A recording without its HTTP framing; `pieces` are the body's bytes of each read."""

    status: int
    content_type: str
    headers_at_s: float
    ended_at_s: float
    pieces: tuple[tuple[float, bytes], ...]

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(piece for _, piece in self.pieces)


def names(pattern: str = "*", *, of: Path = STREAMS) -> list[str]:
    """The recordings of a folder whose name matches."""
    return sorted(path.stem for path in of.glob(f"{pattern}.jsonl"))


def load(name: str) -> Recording:
    """Read one recording."""
    folder = OLLAMA if name.startswith("ollama-") else STREAMS
    first, *rest = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    reads = [json.loads(line) for line in rest]
    return Recording(
        name=name,
        request=json.loads(first)["request"],
        chunks=tuple((read["at_s"], read["bytes"].encode()) for read in reads),
    )


def unframe(recording: Recording) -> Response:
    """Take the head and the chunk framing off; a read without body bytes gives no piece."""
    connection = h11.Connection(h11.CLIENT)
    request = recording.request
    connection.send(
        h11.Request(method=request["method"], target=request["path"], headers=[("Host", "engine")])
    )
    connection.send(h11.EndOfMessage())
    head: tuple[float, h11.Response] | None = None
    pieces = []
    ended_at_s = 0.0
    for at_s, raw in recording.chunks:
        connection.receive_data(raw)
        piece = b""
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Response):
                head = (at_s, event)
            elif isinstance(event, h11.Data):
                piece += event.data
            elif isinstance(event, h11.EndOfMessage):
                ended_at_s = at_s
                break
        if piece:
            pieces.append((at_s, piece))
    assert head is not None
    headers_at_s, response = head
    return Response(
        status=response.status_code,
        content_type=dict(response.headers).get(b"content-type", b"").decode(),
        headers_at_s=headers_at_s,
        ended_at_s=ended_at_s,
        pieces=tuple(pieces),
    )


def cut(body: bytes, offsets: Iterable[int]) -> Sequence[bytes]:
    """Cut a body at these offsets, in any order; offsets beyond its end are its end."""
    edges = [0, *sorted(min(offset, len(body)) for offset in offsets), len(body)]
    return [body[begin:end] for begin, end in pairwise(edges)]
