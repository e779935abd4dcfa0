"""Requests usage on a client's behalf, and removes the answer again.

A stream reports its token counts only if `stream_options.include_usage` is set. If the client did
not set it, slowtok does, and removes the one extra chunk (`"choices":[]` with a `usage`), so that
the client sees the bytes that it would have seen without the proxy. llama-server is never asked:
its `timings` have all counts anyway, and asking would move them.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import orjson

MAX_USAGE_EVENT_BYTES = 16_384  # a usage chunk is under 2 KiB; anything longer is not one
# Two line ends: LF, CRLF or CR, of which the last is none before it is seen that no LF follows.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r(?=[^\n])){2}")
_MAX_END_BYTES = 3  # of an end that may still be incomplete
_CHOICE = (b'"choices":[{', b'"choices": [{')


def ask_for_usage(body: bytes, payload: Mapping[str, Any]) -> bytes | None:
    """Return `body` with include_usage set; None if the client set it itself.

    The field is inserted before the others, and every other byte is kept; only an existing
    `stream_options` has to be serialised again. A malformed one is left to the server.
    """
    if "stream_options" not in payload:
        start = body.index(b"{") + 1
        comma = b"," if payload else b""
        return body[:start] + b'"stream_options":{"include_usage":true}' + comma + body[start:]
    options = payload["stream_options"]
    if options is None:
        options = {}
    if not isinstance(options, dict) or options.get("include_usage"):
        return None
    # vLLM ignores continuous_usage_stats without include_usage; with it each chunk would change.
    kept = {name: value for name, value in options.items() if name != "continuous_usage_stats"}
    return orjson.dumps({**payload, "stream_options": {**kept, "include_usage": True}})


class UsageRemover:
    """Passes on SSE bytes without the usage chunk that only slowtok requested.

    Complete events pass at once. Bytes of an incomplete event are held back only while it could be
    the usage chunk: until it shows a choice, or is too long for one.
    """

    def __init__(self) -> None:
        self._held = b""
        self._passing = False  # inside an event that is known not to be the usage chunk
        self._passed_tail = b""  # its last bytes: the end of an event may come in pieces
        self._server_insists = False  # usage on ordinary chunks: the client would have seen it

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that may go to the client now."""
        if not (self._passing or self._held or b'"usage"' in chunk) and chunk.endswith(b"\n\n"):
            return chunk  # whole events; nearly all of a stream is that
        passed = b""
        if self._passing:
            cut = self._end_of_passing_event(chunk)
            if cut is None:
                return chunk
            passed, chunk = chunk[:cut], chunk[cut:]
        text = self._held + chunk
        last = _last_end(text)
        whole, rest = text[:last], text[last:]
        if b'"usage"' in whole:
            whole = b"".join(event for event in _events(whole) if not self._is_ours(event))
        return passed + whole + self._hold(rest)

    def flush(self) -> bytes:
        """Return the bytes held back when the stream ended within an event."""
        held, self._held = self._held, b""
        return b"" if self._is_ours(held) else held

    def _hold(self, rest: bytes) -> bytes:
        """Hold back the begin of an event while it may be the usage chunk; else return it."""
        if len(rest) <= MAX_USAGE_EVENT_BYTES and not any(mark in rest for mark in _CHOICE):
            self._held = rest
            return b""
        self._held = b""
        self._passing = True
        self._passed_tail = rest[-_MAX_END_BYTES:]
        return rest

    def _end_of_passing_event(self, chunk: bytes) -> int | None:
        text = self._passed_tail + chunk
        match = _EVENT_END.search(text)
        if match is None:
            self._passed_tail = text[-_MAX_END_BYTES:]
            return None
        self._passing = False
        return match.end() - len(self._passed_tail)

    def _is_ours(self, event: bytes) -> bool:
        if b'"usage"' not in event:
            return False
        lines = event.splitlines()  # others than `data`, such as ids and names, belong to its event
        try:
            payload = orjson.loads(b"\n".join([line[5:] for line in lines if line[:5] == b"data:"]))
        except orjson.JSONDecodeError:
            return False
        usage = payload.get("usage") if isinstance(payload, dict) else None
        if not isinstance(usage, dict):
            return False
        if payload.get("choices") != []:
            # Ollama's text completions carry zeros on every chunk; real counts mean that the
            # server sends usage unasked (vLLM --enable-force-include-usage).
            self._server_insists |= bool(usage.get("prompt_tokens"))
            return False
        return not self._server_insists


def _last_end(text: bytes) -> int:
    """Return where the last complete event ends; 0 if there is none."""
    if b"\r" in text:
        return max((match.end() for match in _EVENT_END.finditer(text)), default=0)
    return text.rfind(b"\n\n") + 2 if b"\n\n" in text else 0


def _events(text: bytes) -> Iterator[bytes]:
    ends = [match.end() for match in _EVENT_END.finditer(text)]
    for begin, end in pairwise((0, *ends, len(text))):
        yield text[begin:end]
