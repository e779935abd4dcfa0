"""A generation request parsed from its JSON body: model, streaming or not, token limit."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from slowtok.proxy.stream.apis import Api
from slowtok.proxy.stream.reply import text_of

MAX_MARKS = 500_000
"""To read so many takes 0.2 s at worst, in which no token passes (measured: objects and lists in
each other, distinct keys). A prompt of a million tokens has fewer, be it of text. Heuristic."""

_MARKS = (b",", b"[", b"{")  # each value of a JSON text but the first comes after one of them


class Call(NamedTuple):
    """One generation request; `payload` is its parsed body, which never leaves the relay."""

    api: Api
    model: str | None
    stream: bool
    payload: Mapping[str, Any]


def is_quickly_read(body: bytes) -> bool:
    """Return True if a JSON body of these bytes has few enough values to be parsed at once."""
    return len(body) <= MAX_MARKS or sum(map(body.count, _MARKS)) <= MAX_MARKS


def read_call(api: Api, body: bytes) -> Call | None:
    """Parse a request body; None if it is not the JSON object that the API expects."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(payload, dict):
        return None
    stream = payload.get("stream")
    if not isinstance(stream, bool):
        stream = api.streams_by_default
    return Call(api, text_of(payload.get("model")), stream, payload)


def max_tokens_of(call: Call) -> int | None:
    """Return the most tokens that the answer may have; None if the call sets no limit.

    Of several limits the largest counts, because engines differ in which one they use. Several
    answers at once have no common limit, and limits below 1 mean none.
    """
    if call.payload.get("n") not in (None, 1):
        return None
    options = call.payload.get("options")
    places = (call.payload, options if isinstance(options, dict) else {})
    given = [place.get(name) for place in places for name in call.api.limits]
    return max((limit for limit in given if type(limit) is int and limit > 0), default=None)
