"""Messages in every framing that HTTP/1.1 allows, and in some that it does not, drawn from a seed.

Each request has a number, its bytes say that number over and over, and so do those of its reply: a
byte of another's is seen wherever it turns up.
"""

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from fakes.strict_http import State, read_reply

SIZES = (0, 1, 2, 17, 300, 5000)
LARGE_BYTES = 200_000  # several reads, and several slices
EARLY = (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
STRAY = (b"H", b"\r\n", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray")
BAD_SIZES = (b"-1", b"+5", b"0x5", b"zz", b"", b" 5", b"5\n", b"1" * 40)
BAD_HEADS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n",
    b"HTTP/2 200\r\n",
    b"ICY 200 OK\r\n",
)
_FIRST_SIZE = re.compile(rb"hunked\r\n(?:[^\r\n]+\r\n)*\r\n([0-9a-fA-F]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One request, and what its engine does.

    `sent` is the request on the wire; `leaves_after` bytes of it its client vanishes, if at all.
    `reads` is the reply, as it is written piece by piece. Then the engine ends the connection as
    `ends` says: not at all, "closed" or "reset". `is_sound`: there is nothing wrong with the reply;
    `is_whole`: all of it is there, and `body` is what it holds by the rules.
    """

    number: int
    method: bytes
    asked_body: bytes
    sent: tuple[bytes, ...]
    leaves_after: int | None
    expects: bool
    status: int
    body: bytes
    reads: tuple[bytes, ...]
    ends: str
    is_sound: bool
    is_whole: bool
    is_last: bool  # of what its client asks for over one connection


def plan(rng: Random, number: int, *, is_hostile: bool, is_last: bool) -> Planned:
    """Draw one request with its reply; only `is_hostile` ones may have something wrong."""
    kind = rng.choice(("whole", "stream", "other", "other"))
    method = rng.choice((b"GET", b"HEAD", b"POST", b"PUT")) if kind == "other" else b"POST"
    old = is_last and rng.random() < 0.1
    asked = _asked(rng, kind, method, number)
    expects = bool(asked) and not old and rng.random() < 0.1
    request = _request(rng, kind, method, number, asked, old=old, expects=expects)
    leaves = is_hostile and is_last and rng.random() < 0.3
    status, body, wire, ends = _reply(rng, kind, method, number)
    is_sound = is_whole = True
    if is_hostile and rng.random() < 0.6:
        is_sound = False
        wire, ends = _spoil(rng, wire, ends)
        found = read_reply(wire, ended=ends == "closed", asked=method)
        body, is_whole = found.body, found.state is State.WHOLE
    return Planned(
        number=number,
        method=method,
        asked_body=asked,
        sent=split(rng, request),
        leaves_after=rng.randrange(len(request)) if leaves else None,
        expects=expects,
        status=status,
        body=body,
        reads=split(rng, wire) if is_sound else _split_but_the_end(rng, wire),
        ends=ends,
        is_sound=is_sound,
        is_whole=is_whole,
        is_last=is_last,
    )


def split(rng: Random, wire: bytes) -> tuple[bytes, ...]:
    """Cut a message at random places, some of them a byte apart."""
    cuts = {rng.randrange(len(wire) + 1) for _ in range(rng.choice((0, 0, 1, 3, 8)))}
    if rng.random() < 0.5:  # where lines end, and what comes next may look like something
        cuts = {wire.find(b"\n", cut) + 1 for cut in cuts}
    if cuts and rng.random() < 0.5:
        cuts |= {min(cut + 1, len(wire)) for cut in cuts}
    edges = [0, *sorted(cuts), len(wire)]
    return tuple(wire[a:b] for a, b in pairwise(edges) if a < b)


def _split_but_the_end(rng: Random, wire: bytes) -> tuple[bytes, ...]:
    """Cut it, but leave what is beyond a reply in one read with its end."""
    kept = max(len(wire) - 200, 0)
    return (*split(rng, wire[:kept]), wire[kept:]) if wire else ()


def _said(rng: Random, number: int) -> bytes:
    size = LARGE_BYTES if rng.random() < 0.05 else rng.choice(SIZES)
    unit = rng.choice((b"%d,", b"%d,", b"%d,\r\n3\r\nabc\r\n", b"%d,\r\n0\r\n\r\n")) % number
    return (unit * (size // len(unit) + 1))[:size]


def _asked(rng: Random, kind: str, method: bytes, number: int) -> bytes:
    if kind == "other":
        return b"" if method in (b"GET", b"HEAD") else _said(rng, number)
    asked: dict[str, object] = {"model": "m", "messages": [], "user": _said(rng, number).decode()}
    if kind == "stream":  # what slowtok would ask for has been asked for: nothing is put in
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(asked).encode()


def _request(
    rng: Random, kind: str, method: bytes, number: int, body: bytes, *, old: bool, expects: bool
) -> bytes:
    path = b"/x" if kind == "other" else b"/v1/chat/completions"
    fields = [b"Host: localhost", b"X-Number: %d" % number]
    if kind != "other":
        fields.append(b"Content-Type: application/json")
    if expects:
        fields.append(b"Expect: 100-continue")
    framed = body
    if not old and method in (b"POST", b"PUT") and rng.random() < 0.4:
        fields.append(b"Transfer-Encoding: chunked")
        framed = _chunked(rng, body)
    elif body or method in (b"POST", b"PUT"):
        fields.append(b"Content-Length: %d" % len(body))
    rng.shuffle(fields)
    before = b"\r\n" if rng.random() < 0.1 else b""  # RFC 9112, section 2.2
    line = b"%b %b HTTP/1.%d" % (method, path, 0 if old else 1)
    return before + b"\r\n".join([line, *fields, b"", b""]) + framed


def _chunked(rng: Random, body: bytes) -> bytes:
    """Frame a body in chunks of odd sizes, written oddly."""
    wire, at = b"", 0
    while at < len(body):
        size = min(rng.choice((1, 2, 3, 40, 1000, 70_000)), len(body) - at)
        if at and len(body) > 10_000:
            size = min(rng.choice((1000, 70_000)), len(body) - at)
        wire += _size_line(rng, size) + body[at : at + size] + b"\r\n"
        at += size
    trailer = rng.choice((b"", b"", b"X-Sum: 1\r\n", b"X-Sum: 1\r\nX-More: caf\xe9\r\n"))
    return wire + _size_line(rng, 0) + trailer + b"\r\n"


def _size_line(rng: Random, size: int) -> bytes:
    written = rng.choice((b"%x", b"%X", b"000%x")) % size
    return written + rng.choice((b"", b"", b"", b";a", b";a=b", b';a="b c"')) + b"\r\n"


def _reply(rng: Random, kind: str, method: bytes, number: int) -> tuple[int, bytes, bytes, str]:
    """Return a sound reply's status, its body, the bytes on the wire, and how it ends."""
    status = rng.choice((200, 200, 200, 200, 201, 404, 500, 204, 304))
    body = _said(rng, number)
    if kind == "stream":
        status, events = 200, rng.choice((1, 3, 20))
        event = b'data: {"choices":[{"index":0,"delta":{"content":"%d,"}}]}\n\n' % number
        body = event * events + b"data: [DONE]\n\n"
    kind_of = b"text/event-stream" if kind == "stream" else b"application/json"
    fields = [b"X-Number: %d" % number, b"Content-Type: " + kind_of]
    bodiless = method == b"HEAD" or status in (204, 304)
    framing = rng.choice(("length", "chunks", "chunks", "end"))
    minor, ends = 1, ""
    if bodiless:
        body, framed = b"", b""
    elif framing == "length":
        fields.append(b"Content-Length: %d" % len(body))
        framed = body
        minor = rng.choice((0, 1, 1))
    elif framing == "chunks":
        fields.append(rng.choice((b"Transfer-Encoding: chunked", b"transfer-encoding:Chunked")))
        framed = _chunked(rng, body)
    else:
        minor, framed, ends = rng.choice((0, 1)), body, "closed"
    if not ends and (minor == 0 or rng.random() < 0.1):
        fields.append(b"Connection: close")
        ends = "closed"
    rng.shuffle(fields)
    early = b"".join(rng.choice(EARLY) for _ in range(rng.choice((0, 0, 0, 1, 3))))
    line = b"HTTP/1.%d %d Whatever" % (minor, status)
    return status, body, early + b"\r\n".join([line, *fields, b"", b""]) + framed, ends


def _spoil(rng: Random, wire: bytes, ends: str) -> tuple[bytes, str]:
    """Make something wrong: a reset, an early end, more than the reply, a size, a head."""
    by_the_end = ends == "closed" and b"Connection: close" not in wire
    faults = ["reset", "head", "size", "other size"]
    if not by_the_end:  # else an end is an end, and what comes before it is the body
        faults += ["cut", "stray", "silent end"]
    fault, ends_after = rng.choice(faults), "closed"
    if fault == "cut":
        wire = wire[: rng.randrange(len(wire))]
    elif fault == "stray":
        wire, ends_after = wire + rng.choice(STRAY), ends
    elif fault == "size" and b"hunked" in wire:
        at = wire.find(b"\r\n\r\n") + 4
        wire = wire[:at] + rng.choice(BAD_SIZES) + b"\r\n" + wire[at:]
    elif fault == "other size" and (found := _FIRST_SIZE.search(wire)):
        size = max(int(found[1], 16) + rng.choice((-1, 1, 7)), 1)
        wire = wire[: found.start(1)] + b"%x" % size + wire[found.end(1) :]
    elif fault == "head":
        wire = rng.choice(BAD_HEADS) + b"\r\nevil,evil,"
    elif fault != "silent end":  # which nobody announced
        wire, ends_after = wire[: rng.randrange(len(wire) + 1)], "reset"
    return wire, ends_after
