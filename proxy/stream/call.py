"""A generation request: its model, whether it streams, and its limit, read from the JSON body."""

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
    """One generation request; `payload` is its body and goes no further than the relay."""

    api: Api
    model: str | None
    stream: bool
    payload: Mapping[str, Any]


def is_quickly_read(body: bytes) -> bool:
    """Return True if a body, were it JSON, has so few values that reading it holds nobody up."""
    return len(body) <= MAX_MARKS or sum(map(body.count, _MARKS)) <= MAX_MARKS


def read_call(api: Api, body: bytes) -> Call | None:
    """Read a request body; None where it is not the JSON object that the API asks for."""
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
    """Return how many tokens its answer has at most; None where the call sets no limit.

    Of several limits the largest is taken: engines differ in which one counts. Several answers at
    once share no limit, and limits below 1 mean none.
    """
    if call.payload.get("n") not in (None, 1):
        return None
    options = call.payload.get("options")
    places = (call.payload, options if isinstance(options, dict) else {})
    given = [place.get(name) for place in places for name in call.api.limits]
    return max((limit for limit in given if type(limit) is int and limit > 0), default=None)
