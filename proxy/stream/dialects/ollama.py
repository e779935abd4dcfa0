"""Ollama's native `/api/chat`, `/api/generate` and `/api/embed`; its durations are nanoseconds.

`load_duration` lasts until the scheduler assigned a runner: a model load, and waiting for another
model's load or end. With the model loaded it was 30 to 60 ms in 0.17 and 1 ms in 0.34 (recorded),
so it is a load only if it is long. A request that waits for one of OLLAMA_NUM_PARALLEL places has
its runner already: that queue time is only in `total_duration`.
"""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.reply import MAX_REASON_CHARS, Reply, count_of, number_of, text_of

_NS = 1e9


def read(event: Mapping[str, Any], reply: Reply) -> bool:
    """Parse one line (or one whole body) into `reply`; True if it carried a token."""
    if event.get("error"):
        reply.failed = True
    reply.model = reply.model or text_of(event.get("model"))
    if event.get("done"):
        _read_end(event, reply)
    message = event.get("message") or {}
    thought = event.get("thinking") or message.get("thinking")
    answer = event.get("response") or message.get("content")
    reply.is_thinking = bool(thought) and not answer
    if thought and event.get("done"):
        reply.note_thoughts(thought, answer)
    return bool(thought or answer or message.get("tool_calls"))


def read_embedding(event: Mapping[str, Any], reply: Reply) -> bool:
    """Parse a body of `/api/embed`: after the load, all of its time is prefill."""
    if event.get("error"):
        reply.failed = True
        return False
    reply.model = reply.model or text_of(event.get("model"))
    reply.prompt_tokens = count_of(event.get("prompt_eval_count"))
    reply.completion_tokens = 0
    total_s, load_s = _seconds(event.get("total_duration")), _seconds(event.get("load_duration"))
    reply.load_s = load_s
    reply.prefill_s = None if total_s is None else max(total_s - (load_s or 0.0), 0.0)
    return False


def _read_end(event: Mapping[str, Any], reply: Reply) -> None:
    reply.finish = text_of(event.get("done_reason"), MAX_REASON_CHARS) or "stop"
    reply.prompt_tokens = count_of(event.get("prompt_eval_count"))
    reply.cached_tokens = count_of(event.get("prompt_eval_cached_count"))
    reply.completion_tokens = count_of(event.get("eval_count"))
    reply.load_s = _seconds(event.get("load_duration"))
    reply.prefill_s = _seconds(event.get("prompt_eval_duration"))
    reply.decode_s = _seconds(event.get("eval_duration"))


def _seconds(nanoseconds: Any) -> float | None:
    number = number_of(nanoseconds)
    return None if number is None else number / _NS
