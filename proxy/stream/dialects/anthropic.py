"""Anthropic's `/v1/messages`, as llama-server, vLLM and Ollama serve it; none adds timings.

`input_tokens` excludes cached tokens. The counts in a stream's first event are used only if its end
has none: Ollama first sends a quarter of the prompt's characters, and the real count at the end.
"""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.reply import MAX_REASON_CHARS, Reply, count_of, text_of

_FINISH = {  # in the words of chat completions
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}
_DELTAS = ("text", "thinking", "partial_json")
_CALLS = ("tool_use", "server_tool_use")


def read(event: Mapping[str, Any], reply: Reply) -> bool:
    """Parse one event (or one whole body) into `reply`; True if it carried a token."""
    kind = event.get("type")
    if kind == "message":
        _read_message(event, reply)
        _read_end(event, event.get("usage"), reply)
        return bool(event.get("content"))
    if kind == "message_start":
        _read_message(event.get("message") or {}, reply)
    elif kind == "message_delta":
        _read_end(event.get("delta") or {}, event.get("usage"), reply)
    elif kind == "content_block_delta":
        delta = event.get("delta") or {}
        reply.is_thinking = bool(delta.get("thinking"))
        return any(delta.get(name) for name in _DELTAS)
    elif kind == "content_block_start":
        block = event.get("content_block") or {}
        return block.get("type") in _CALLS or any(block.get(name) for name in _DELTAS)
    elif kind == "error" or event.get("error") or isinstance(event.get("message"), str):
        reply.failed = True  # llama-server's error event is the bare {code, message, type}
    return False


def _read_message(message: Mapping[str, Any], reply: Reply) -> None:
    reply.model = reply.model or text_of(message.get("model"))
    if isinstance(usage := message.get("usage"), dict):
        reply.usage_at_start = usage


def _read_end(fields: Mapping[str, Any], usage: Any, reply: Reply) -> None:
    reason = text_of(fields.get("stop_reason"), MAX_REASON_CHARS)
    reply.finish = _FINISH.get(reason, reason) if reason else reply.finish
    if not isinstance(usage, dict):
        return
    counted = {**reply.usage_at_start, **usage}
    fresh = count_of(counted.get("input_tokens"))
    cached = count_of(counted.get("cache_read_input_tokens"))
    stored = count_of(counted.get("cache_creation_input_tokens"))
    reply.prompt_tokens = None if fresh is None else fresh + (cached or 0) + (stored or 0)
    reply.cached_tokens = cached
    reply.completion_tokens = count_of(counted.get("output_tokens"))
