"""Assembles one whole reply from a stream, equal in meaning to the engine's own.

Each API that can be requested as a stream in place of a whole reply has its `Parts`. They merge the
events field by field, known or not: growing texts and lists are concatenated, objects are merged,
and for everything else the last value wins.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from slowtok.proxy.stream.framing import SseReader

# Some engines stream none of the first four; the last is answered before it is computed.
_WHOLE_ONLY = ("best_of", "use_beam_search", "prompt_logprobs", "echo", "background")

_NAMES = frozenset({"id", "type", "role", "object"})  # told once or again and again, never in parts
_OBJECTS = {"chat.completion.chunk": "chat.completion"}
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")


class Parts(Protocol):
    """Accumulates the events of one stream."""

    def add(self, event: dict[str, Any]) -> None:
        """Add one event, which may be modified."""
        ...

    def reply(self) -> dict[str, Any] | None:
        """Return the reply; None if the stream ended before its answer did."""
        ...


class Assembler:
    """Parses a stream and assembles its reply; `error` is the reply to an error event."""

    def __init__(self, make_parts: Callable[[], Parts]) -> None:
        self.error: dict[str, Any] | None = None
        self._reader = SseReader()
        self._parts = make_parts()

    def feed(self, chunk: bytes) -> None:
        """Parse bytes of the stream, split anywhere.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: an event that is not a JSON object, or
                whose parts do not fit together.
        """
        self._take(self._reader.feed(chunk))

    def reply(self) -> bytes | None:
        """Return the reply after the last byte; None if not every answer is complete."""
        self._take(self._reader.flush())
        if self.error is not None or self._reader.dropped:
            return None
        reply = self._parts.reply()
        return None if reply is None else orjson.dumps(reply)

    def _take(self, events: list[bytes]) -> None:
        for event in events:
            if event and event != b"[DONE]":
                payload = orjson.loads(event)
                if not isinstance(payload, dict):
                    raise ValueError("an event that is no object")
                if _is_error(payload):
                    self.error = self.error or (
                        payload if payload.get("error") else {"error": payload}
                    )
                else:
                    self._parts.add(payload)


def ask_for_stream(payload: Mapping[str, Any], *, stream_options: bool) -> bytes | None:
    """Return a body that requests the same as a stream; None if that is not possible."""
    if (
        payload.get("stream")
        or "stream_options" in payload
        or any(payload.get(k) for k in _WHOLE_ONLY)
    ):
        return None
    usage = {"stream_options": {"include_usage": True}} if stream_options else {}
    return orjson.dumps({**payload, "stream": True, **usage})


def _is_error(payload: dict[str, Any]) -> bool:
    """Return True for an error event; llama-server's is sometimes a bare {code, message, type}."""
    is_bare = payload.get("type") == "error" or isinstance(payload.get("message"), str)
    return bool(payload.get("error")) or is_bare


class _Text(list[str]):
    """A growing text, joined once at the end."""


def merge_fields(into: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Merge fields: the last value wins, lists are joined, objects merged, and null is ignored."""
    for name, value in fields.items():
        before = into.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            merge_fields(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            before.extend(value)
        elif value is not None or name not in into:
            into[name] = value


def merge_delta(into: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Append a delta to the accumulated fields."""
    for name, value in delta.items():
        before = into.get(name)
        if name == "tool_calls" and isinstance(value, list):
            _grow_calls(into.setdefault(name, []), value)
        elif isinstance(value, str) and name not in _NAMES:
            _grow_text(into, name, value)
        elif isinstance(value, dict):
            merge_delta(into.setdefault(name, {}) if before is None else before, value)
        elif isinstance(value, list) and isinstance(before, list):
            before.extend(value)
        elif value is not None or name not in into:
            into[name] = value


def _grow_text(into: dict[str, Any], name: str, piece: str) -> None:
    before = into.get(name)
    if not isinstance(before, _Text):
        into[name] = _Text([piece])
    elif name != "name" or "".join(before) != piece:  # some servers name the function each time
        before.append(piece)


def _grow_calls(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    for delta in deltas:
        index = delta.get("index")
        if index is None:  # without one, an id begins another call
            index = len(calls) - (not delta.get("id") and bool(calls))
        call = next((call for call in calls if call["index"] == index), None)
        if call is None:
            call = {"index": index}
            calls.append(call)
        merge_delta(call, {name: value for name, value in delta.items() if name != "index"})


def finalize(value: Any) -> Any:
    """Return the plain value: texts joined, and tool calls without their stream index."""
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, list):
        return [finalize(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {name: finalize(item) for name, item in value.items()}
    for call in plain.get("tool_calls") or ():
        call.pop("index", None)
    return plain


class Chunks:
    """Accumulates the chunks of chat or text completions.

    Tool calls are told apart by their index, several answers (n > 1) by theirs.
    """

    def __init__(self) -> None:
        self._top: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usages: list[Mapping[str, Any]] = []  # those of chunks without a choice
        self._choice_usages: dict[int, Mapping[str, Any]] = {}

    def reply(self) -> dict[str, Any] | None:
        """Return the reply; None if not every answer is complete."""
        ended = [choice.get("finish_reason") is not None for choice in self._choices.values()]
        if not ended or not all(ended):
            return None
        choices = [finalize(choice) for _, choice in sorted(self._choices.items())]
        usages = self._usages or list(self._choice_usages.values())
        usage = {"usage": _added(usages)} if usages else {}
        return {**finalize(self._top), "choices": choices, **usage}

    def add(self, event: dict[str, Any]) -> None:
        """Add one chunk, which is modified."""
        choices, usage = event.pop("choices", None) or (), event.pop("usage", None)
        if isinstance(usage, dict) and not choices:
            self._usages.append(usage)
        if event.get("object") in _OBJECTS:
            event["object"] = _OBJECTS[event["object"]]
        merge_fields(self._top, event)
        for choice in choices:
            index = choice.get("index") or 0
            if isinstance(usage, dict):
                self._choice_usages[index] = usage
            self._merge_choice(self._choices.setdefault(index, {"index": index}), choice)

    def _merge_choice(self, merged: dict[str, Any], choice: dict[str, Any]) -> None:
        delta, text = choice.pop("delta", None), choice.pop("text", None)
        merge_fields(merged, choice)
        if delta is not None:
            merge_delta(merged.setdefault("message", {"role": "assistant", "content": None}), delta)
        if text is not None:
            merge_delta(merged, {"text": text})


def _added(usages: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summed usage: llama-server counts each of several answers (n > 1) separately."""
    total = dict(usages[-1])
    if len(usages) > 1 and all("prompt_tokens" in usage for usage in usages):
        total["completion_tokens"] = sum(usage.get("completion_tokens", 0) for usage in usages)
        total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    return total


class MessageAssembler:
    """Accumulates the events of Anthropic's `/v1/messages`: a start, growing blocks, an end."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Add one event; pings and the ends of blocks have no content."""
        kind = event.get("type")
        if kind == "message_start":
            merge_fields(self._message, event["message"])
        elif kind == "content_block_start":
            merge_delta(self._blocks.setdefault(event["index"], {}), event["content_block"])
        elif kind == "content_block_delta":
            _grow_block(self._blocks[event["index"]], event["delta"])
        elif kind == "message_delta":
            more = {name: value for name, value in event.items() if name not in ("type", "delta")}
            merge_fields(self._message, {**more, **event["delta"]})

    def reply(self) -> dict[str, Any] | None:
        """Return the message; None if it is not complete."""
        if self._message.get("stop_reason") is None:
            return None
        blocks = [_block(block) for _, block in sorted(self._blocks.items())]
        return {**self._message, "content": blocks}


def _grow_block(block: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "citation":
            block["citations"] = [*(block.get("citations") or ()), value]
        elif name != "type":  # of the delta, not of the block
            merge_delta(block, {name: value})


def _block(grown: dict[str, Any]) -> dict[str, Any]:
    """Return the plain block; a tool's input arrives as the text of its JSON."""
    block: dict[str, Any] = finalize(grown)
    written = block.pop("partial_json", None)
    if written:
        try:
            block["input"] = orjson.loads(written)
        except orjson.JSONDecodeError:
            block["input"] = {}  # the answer was cut inside it
    return block


class Response:
    """Accumulates the events of OpenAI's Responses API; the last one has the whole response."""

    def __init__(self) -> None:
        self._response: dict[str, Any] | None = None

    def add(self, event: dict[str, Any]) -> None:
        """Add one event."""
        response = event.get("response")
        if event.get("type") in _LAST_EVENTS and isinstance(response, dict):
            self._response = response

    def reply(self) -> dict[str, Any] | None:
        """Return the response; None if it is not complete."""
        return self._response
