"""One whole message out of the events of Anthropic's `/v1/messages`."""

from typing import Any

import orjson

from slowtok.proxy.stream.delta_merge import finalize, merge_delta, merge_fields


class MessageAssembler:
    """Takes the events in order: a start, blocks that grow, and an end with the last counts."""

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
