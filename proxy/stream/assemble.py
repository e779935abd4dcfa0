"""One whole reply out of a stream, equal in meaning to the engine's own.

Each API that can be had as a stream in place of a whole reply has its `Parts`: what its events say
is merged field by field, known or not. Text that grows is joined, lists are joined, objects are
merged, and of everything else the last word stands.
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
    """Return True for an error; llama-server's is a bare {code, message, type} at times."""
    is_bare = said.get("type") == "error" or isinstance(said.get("message"), str)
    return bool(said.get("error")) or is_bare


class _Text(list[str]):
    """A text that grows: joined once, at the end."""


def merge_fields(into: dict[str, Any], said: Mapping[str, Any]) -> None:
    """Let the last word stand; lists are joined, objects merged, and null says nothing new."""
    for name, value in said.items():
        before = into.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            merge_fields(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            before.extend(value)
        elif value is not None or name not in into:
            into[name] = value


def merge_delta(into: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add what a delta says to what was said so far."""
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
    """Return the plain value: texts joined, and calls without the index that only a stream has."""
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, list):
        return [finalize(one) for one in value]
    if not isinstance(value, dict):
        return value
    plain = {name: finalize(one) for name, one in value.items()}
    for call in plain.get("tool_calls") or ():
        call.pop("index", None)
    return plain


class Chunks:
    """Takes the chunks of chat or text completions in order.

    Tool calls are told apart by their index, answers (n > 1) by theirs.
    """

    def __init__(self) -> None:
        self._top: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usages: list[Mapping[str, Any]] = []  # those of chunks without a choice
        self._choice_usages: dict[int, Mapping[str, Any]] = {}

    def whole(self) -> dict[str, Any] | None:
        """Return the reply; None where not every answer came to its end."""
        ended = [choice.get("finish_reason") is not None for choice in self._choices.values()]
        if not ended or not all(ended):
            return None
        choices = [finalize(choice) for _, choice in sorted(self._choices.items())]
        usages = self._usages or list(self._choice_usages.values())
        usage = {"usage": _added(usages)} if usages else {}
        return {**finalize(self._top), "choices": choices, **usage}

    def add(self, said: dict[str, Any]) -> None:
        """Take one chunk, which is used up."""
        choices, usage = said.pop("choices", None) or (), said.pop("usage", None)
        if isinstance(usage, dict) and not choices:
            self._usages.append(usage)
        if said.get("object") in _OBJECTS:
            said["object"] = _OBJECTS[said["object"]]
        merge_fields(self._top, said)
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
    """Return the usage; llama-server counts each of several answers (n > 1) on its own."""
    total = dict(usages[-1])
    if len(usages) > 1 and all("prompt_tokens" in usage for usage in usages):
        total["completion_tokens"] = sum(usage.get("completion_tokens", 0) for usage in usages)
        total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    return total


class MessageAssembler:
    """Takes the events of Anthropic's `/v1/messages`: a start, blocks that grow, and an end."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}

    def add(self, said: dict[str, Any]) -> None:
        """Take one event; pings and what ends a block say nothing."""
        kind = said.get("type")
        if kind == "message_start":
            merge_fields(self._message, said["message"])
        elif kind == "content_block_start":
            merge_delta(self._blocks.setdefault(said["index"], {}), said["content_block"])
        elif kind == "content_block_delta":
            _grow_block(self._blocks[said["index"]], said["delta"])
        elif kind == "message_delta":
            more = {name: value for name, value in said.items() if name not in ("type", "delta")}
            merge_fields(self._message, {**more, **said["delta"]})

    def whole(self) -> dict[str, Any] | None:
        """Return the message; None where it did not come to its end."""
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
    """Return the plain block; a tool's input comes as the text of its JSON."""
    block: dict[str, Any] = finalize(grown)
    written = block.pop("partial_json", None)
    if written:
        try:
            block["input"] = orjson.loads(written)
        except orjson.JSONDecodeError:
            block["input"] = {}  # the answer was cut inside it
    return block


class Response:
    """Takes the events of OpenAI's Responses API, of which the last one carries the response."""

    def __init__(self) -> None:
        self._response: dict[str, Any] | None = None

    def add(self, said: dict[str, Any]) -> None:
        """Take one event."""
        response = said.get("response")
        if said.get("type") in _LAST_EVENTS and isinstance(response, dict):
            self._response = response

    def whole(self) -> dict[str, Any] | None:
        """Return the response; None where it did not come to its end."""
        return self._response
