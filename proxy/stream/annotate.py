"""Inserts a request's record into its own stream, as a comment or as a chunk.

Strategy: events pass as soon as they are complete. Only an event that may be the last one is held
back: `data: [DONE]`, and for `chunk` one with a finish reason. When no further event can follow,
`ending` is set; the caller then makes the record and calls `close` with it.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

import orjson

from slowtok.proxy.stream.framing import MAX_EVENT_BYTES

Mode = Literal["comment", "chunk"]

_SSE_END = re.compile(rb"\r\n\r\n|\n\r?\n|\r\r")
_LINE_END = re.compile(rb"\n")
_DONE = re.compile(rb"data: ?\[DONE\]\s*")
_MAY_END = re.compile(
    rb'"finish_reason" ?: ?"|"choices" ?: ?\[\]|"(?:stop|done)" ?: ?true'
    rb'|"(?:message_stop|response\.(?:completed|incomplete|failed))"'
)
_LAST_TYPES = ("message_stop", "response.completed", "response.incomplete", "response.failed")


def mode_of(asked: str | None, setting: str) -> Mode | None:
    """Return how a stream carries its record; the request's header wins over the setting."""
    mode = asked if asked in ("comment", "chunk", "off") else setting
    return "comment" if mode == "comment" else "chunk" if mode == "chunk" else None


class Annotator:
    """Passes on a stream's bytes, and inserts one record.

    `ending` says that the record is due. An event longer than any that engines send turns the
    annotation off.
    """

    def __init__(self, mode: Mode, *, ndjson: bool) -> None:
        self.ending = False
        self._chunk = mode == "chunk"
        self._ndjson = ndjson
        self._end = _LINE_END if ndjson else _SSE_END
        self._rest = b""  # of an event that is not whole
        self._held = b""  # that may be the last event with data
        self._over = False

    def feed(self, piece: bytes) -> bytes:
        """Return the bytes that may go to the client now."""
        if self._over:
            return piece
        begin = max(len(self._rest) - 3, 0)  # an end may come in pieces
        text = self._rest + piece
        if (last := _last_end(self._end, text, begin)) is None:
            self._rest = text
            return self.flush() if len(text) > MAX_EVENT_BYTES else b""
        whole, self._rest = text[:last], text[last:]
        return self._pass(whole)

    def close(self, record: Mapping[str, Any] | None) -> bytes:
        """Return the bytes held back, with the record in or before them; None leaves it out."""
        held, rest, was_over = self._held, self._rest, self._over
        self._held = self._rest = b""
        self._over = True
        self.ending = False
        if record is None or was_over:
            return held + rest
        if self._chunk:
            return _inside(held, record) + rest
        return b": slowtok " + orjson.dumps(record) + b"\n\n" + rest

    @property
    def is_over(self) -> bool:
        """Whether the record has been inserted, or will not be."""
        return self._over

    def flush(self) -> bytes:
        """Return the bytes held back unchanged: there will be no record."""
        return self.close(None)

    def _pass(self, whole: bytes) -> bytes:
        passed = []
        begin = 0
        for match in self._end.finditer(whole):
            event = whole[begin : match.end()]
            if not self._ndjson and _DONE.fullmatch(event):
                self._rest = whole[begin:] + self._rest
                self.ending = True
                break
            if not _is_silent(event):
                passed.append(self._held)
                self._held = b""
            if self._chunk and _may_be_last(event):
                self._held = event
            else:
                passed.append(event)
            begin = match.end()
        return b"".join(passed)


def _last_end(end: re.Pattern[bytes], text: bytes, begin: int) -> int | None:
    last = None
    for match in end.finditer(text, begin):
        last = match.end()
    return last


def _is_silent(event: bytes) -> bool:
    """Return True for an empty event or a comment, which may overtake one that is held back."""
    return event.startswith(b":") or not event.strip()


def _may_be_last(event: bytes) -> bool:
    if not _MAY_END.search(event):
        return False
    try:
        payload = orjson.loads(_data(event))
    except orjson.JSONDecodeError:
        return False
    if not isinstance(payload, dict) or not payload:
        return False
    if (
        payload.get("done") is True
        or payload.get("stop") is True
        or payload.get("type") in _LAST_TYPES
    ):
        return True
    choices = payload.get("choices")
    if not isinstance(choices, list):
        return False
    return all(isinstance(c, dict) and c.get("finish_reason") is not None for c in choices)


def _data(event: bytes) -> bytes:
    """Return the data of an event that ends with it, usually one line of JSON."""
    text = event.strip()
    at = text.rfind(b"\ndata:") + 1
    return text[at:].removeprefix(b"data:") if text[at:].startswith(b"data:") else text


def _inside(event: bytes, record: Mapping[str, Any]) -> bytes:
    """Insert the record at the end of the event's JSON object; all other bytes are unchanged."""
    if not event:
        return b""
    added = {"slowtok": record}
    if b'"timings"' not in event and (timings := timings_of(record)):
        added["timings"] = timings
    at = event.rindex(b"}")
    return event[:at] + b"," + orjson.dumps(added)[1:-1] + event[at:]


def timings_of(record: Mapping[str, Any]) -> dict[str, float] | None:
    """Return llama-server's `timings` made from a record; None if the engine has its own.

    None also if none are known. Clients that show rates read this object.
    """
    timing, tokens = record.get("timing", {}), record.get("tokens", {})
    prefill_ms, decode_ms = timing.get("prefill_ms"), timing.get("decode_ms")
    prompt, completion = tokens.get("prompt"), tokens.get("completion")
    if timing.get("source") in (None, "engine"):
        return None
    if None in (prefill_ms, decode_ms, prompt, completion):
        return None
    cached = tokens.get("cached")
    rates = record.get("rate", {})
    known = {
        "cache_n": cached,
        "prompt_n": max(prompt - (cached or 0), 0),
        "prompt_ms": prefill_ms,
        "prompt_per_second": rates.get("prefill_tps"),
        "predicted_n": completion,
        "predicted_ms": decode_ms,
        "predicted_per_second": rates.get("decode_tps"),
    }
    return {name: value for name, value in known.items() if value is not None}
