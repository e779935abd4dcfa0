"""One whole reply out of a stream of OpenAI's chunks, equal in meaning to the engine's own.

Strategy: merge what comes, field by field, known or not. Text that grows is joined, lists are
joined, objects are merged, and of everything else the last word stands. Tool calls are told apart
by their index, answers (n > 1) by theirs.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from slowtok.proxy.stream.sse import SseReader

_WHOLE_ONLY = ("best_of", "use_beam_search", "prompt_logprobs", "echo")  # some engines stream none
_NAMES = frozenset({"id", "type", "role", "object"})  # told once or again and again, never in parts
_OBJECTS = {"chat.completion.chunk": "chat.completion"}


def ask_for_stream(body: bytes, said: Mapping[str, Any]) -> bytes | None:
    """Return the body that asks for the same as a stream; None where that cannot be had."""
    if said.get("stream") or "stream_options" in said or any(said.get(k) for k in _WHOLE_ONLY):
        return None
    asked = {**said, "stream": True, "stream_options": {"include_usage": True}}
    return orjson.dumps(asked)


class Assembler:
    """Takes a stream's bytes and gives one reply; `error` is what the engine reported instead."""

    def __init__(self) -> None:
        self.error: Any = None
        self._reader = SseReader()
        self._top: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usages: list[Mapping[str, Any]] = []  # those of chunks without a choice
        self._choice_usages: dict[int, Mapping[str, Any]] = {}

    def feed(self, chunk: bytes) -> None:
        """Take bytes of the stream, in any pieces.

        Raises:
            ValueError: an event that is not a JSON object, or whose parts do not fit together.
        """
        self._take(self._reader.feed(chunk))

    def whole(self) -> bytes | None:
        """Return the reply after the last byte; None where not every answer came to its end."""
        self._take(self._reader.flush())
        ended = [choice.get("finish_reason") is not None for choice in self._choices.values()]
        if self.error is not None or self._reader.dropped or not ended or not all(ended):
            return None
        choices = [_finished(choice) for _, choice in sorted(self._choices.items())]
        usages = self._usages or list(self._choice_usages.values())
        usage = {"usage": _added(usages)} if usages else {}
        return orjson.dumps({**_finished(self._top), "choices": choices, **usage})

    def _take(self, events: list[bytes]) -> None:
        for event in events:
            if event and event != b"[DONE]":
                said = orjson.loads(event)
                if not isinstance(said, dict):
                    raise ValueError("an event that is no object")
                self._merge(said)

    def _merge(self, said: dict[str, Any]) -> None:
        if said.get("error"):
            self.error = self.error or said["error"]
            return
        choices, usage = said.pop("choices", None) or (), said.pop("usage", None)
        if isinstance(usage, dict) and not choices:
            self._usages.append(usage)
        if said.get("object") in _OBJECTS:
            said["object"] = _OBJECTS[said["object"]]
        _put(self._top, said)
        for choice in choices:
            index = choice.get("index") or 0
            if isinstance(usage, dict):
                self._choice_usages[index] = usage
            self._merge_choice(self._choices.setdefault(index, {"index": index}), choice)

    def _merge_choice(self, merged: dict[str, Any], choice: dict[str, Any]) -> None:
        delta, text = choice.pop("delta", None), choice.pop("text", None)
        _put(merged, choice)
        if delta is not None:
            _grow(merged.setdefault("message", {"role": "assistant", "content": None}), delta)
        if text is not None:
            _grow(merged, {"text": text})


class _Text(list[str]):
    """A text that grows: joined once, at the end."""


def _put(into: dict[str, Any], said: Mapping[str, Any]) -> None:
    """Let the last word stand; lists are joined, objects merged, and null says nothing new."""
    for name, value in said.items():
        before = into.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            _put(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            before.extend(value)
        elif value is not None or name not in into:
            into[name] = value


def _grow(into: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add what a delta says to what was said so far."""
    for name, value in delta.items():
        before = into.get(name)
        if name == "tool_calls" and isinstance(value, list):
            _grow_calls(into.setdefault(name, []), value)
        elif isinstance(value, str) and name not in _NAMES:
            _grow_text(into, name, value)
        elif isinstance(value, dict):
            _grow(into.setdefault(name, {}) if before is None else before, value)
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
        _grow(call, {name: value for name, value in delta.items() if name != "index"})


def _finished(value: Any) -> Any:
    """Return the plain value: texts joined, and calls without the index that only a stream has."""
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, list):
        return [_finished(one) for one in value]
    if not isinstance(value, dict):
        return value
    plain = {name: _finished(one) for name, one in value.items()}
    for call in plain.get("tool_calls") or ():
        call.pop("index", None)
    return plain


def _added(usages: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the usage; llama-server counts each of several answers (n > 1) on its own."""
    total = dict(usages[-1])
    if len(usages) > 1 and all("prompt_tokens" in usage for usage in usages):
        total["completion_tokens"] = sum(usage.get("completion_tokens", 0) for usage in usages)
        total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    return total
