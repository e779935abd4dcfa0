"""Values that grow piece by piece: what a stream's events say, merged into one.

Text that grows is joined, lists are joined, objects are merged, and of everything else the last
word stands.
"""

from collections.abc import Mapping
from typing import Any

_NAMES = frozenset({"id", "type", "role", "object"})  # told once or again and again, never in parts


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
