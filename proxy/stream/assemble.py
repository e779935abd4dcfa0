"""One whole reply out of a stream, equal in meaning to the engine's own.

Each API that can be had as a stream in place of a whole reply has its `Parts`: what its events say
is merged field by field, known or not.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from slowtok.proxy.stream.sse import SseReader

# Some engines stream none of the first four; the last is answered before it is computed.
_WHOLE_ONLY = ("best_of", "use_beam_search", "prompt_logprobs", "echo", "background")


class Parts(Protocol):
    """What the events of one stream have said so far."""

    def add(self, said: dict[str, Any]) -> None:
        """Take one event, which may be changed."""
        ...

    def whole(self) -> dict[str, Any] | None:
        """Return the reply; None where the stream ended before its answer did."""
        ...


class Assembler:
    """Takes a stream's bytes and gives one reply; `error` is the reply to an error in it."""

    def __init__(self, make_parts: Callable[[], Parts]) -> None:
        self.error: dict[str, Any] | None = None
        self._reader = SseReader()
        self._parts = make_parts()

    def feed(self, chunk: bytes) -> None:
        """Take bytes of the stream, in any pieces.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: an event that is not a JSON object, or
                whose parts do not fit together.
        """
        self._take(self._reader.feed(chunk))

    def whole(self) -> bytes | None:
        """Return the reply after the last byte; None where not every answer came to its end."""
        self._take(self._reader.flush())
        if self.error is not None or self._reader.dropped:
            return None
        whole = self._parts.whole()
        return None if whole is None else orjson.dumps(whole)

    def _take(self, events: list[bytes]) -> None:
        for event in events:
            if event and event != b"[DONE]":
                said = orjson.loads(event)
                if not isinstance(said, dict):
                    raise ValueError("an event that is no object")
                if _is_error(said):
                    self.error = self.error or (said if said.get("error") else {"error": said})
                else:
                    self._parts.add(said)


def ask_for_stream(said: Mapping[str, Any], *, stream_options: bool) -> bytes | None:
    """Return the body that asks for the same as a stream; None where that cannot be had."""
    if said.get("stream") or "stream_options" in said or any(said.get(k) for k in _WHOLE_ONLY):
        return None
    usage = {"stream_options": {"include_usage": True}} if stream_options else {}
    return orjson.dumps({**said, "stream": True, **usage})


def _is_error(said: dict[str, Any]) -> bool:
    """Say whether an event is an error; llama-server's is a bare {code, message, type} at times."""
    is_bare = said.get("type") == "error" or isinstance(said.get("message"), str)
    return bool(said.get("error")) or is_bare
