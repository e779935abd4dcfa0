"""One whole reply out of the chunks of chat or text completions, field by field, known or not.

Tool calls are told apart by their index, answers (n > 1) by theirs.
"""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.delta_merge import finalize, merge_delta, merge_fields

_OBJECTS = {"chat.completion.chunk": "chat.completion"}


class Chunks:
    """Takes the chunks in order."""

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
