"""OpenAI's Responses API: typed events, and a response object that grows until its end.

vLLM announces a response before its prefill, llama-server with the first token. So only a delta
counts as a token, or the name of a function to be called.
"""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.dialects.llama_server import read_timings
from slowtok.proxy.stream.dialects.vllm import read_metrics
from slowtok.proxy.stream.reply import MAX_REASON_CHARS, Reply, count_of, text_of

_FINISH = {"completed": "stop", "max_output_tokens": "length"}  # in the words of chat completions


def read(event: Mapping[str, Any], reply: Reply) -> bool:
    """Parse one event (or one whole body) into `reply`; True if it carried a token."""
    kind = event.get("type")
    if event.get("error") or kind == "error":
        reply.failed = True
    if not isinstance(kind, str):  # a whole body is the response itself
        return _read_response(event, reply)
    if isinstance(response := event.get("response"), dict):
        _read_response(response, reply)
        read_timings(event, reply)  # beside the response, not in it
    if kind == "response.output_item.added":
        return _calls(event.get("item"))
    if not kind.endswith(".delta") or not event.get("delta"):
        return False
    reply.is_thinking = kind.startswith("response.reasoning")
    return True


def _read_response(response: Mapping[str, Any], reply: Reply) -> bool:
    reply.model = reply.model or text_of(response.get("model"))
    reply.response_id = reply.response_id or text_of(response.get("id"))
    output = response.get("output") or ()
    status = response.get("status")
    if status == "failed":
        reply.failed = True
    elif status in ("completed", "incomplete"):
        reply.finish = _finish(response, status, called=any(_calls(item) for item in output))
    if isinstance(usage := response.get("usage"), dict):
        _read_usage(usage, reply)
    read_metrics(response, reply)
    return bool(output)


def _finish(response: Mapping[str, Any], status: str, *, called: bool) -> str | None:
    if called and status == "completed":
        return "tool_calls"
    details = response.get("incomplete_details") or {}
    reason = text_of(details.get("reason"), MAX_REASON_CHARS) or status
    return _FINISH.get(reason, reason)


def _calls(item: Any) -> bool:
    return isinstance(item, dict) and str(item.get("type")).endswith("_call")


def _read_usage(usage: Mapping[str, Any], reply: Reply) -> None:
    reply.prompt_tokens = count_of(usage.get("input_tokens"))
    reply.completion_tokens = count_of(usage.get("output_tokens"))
    details = usage.get("input_tokens_details")
    if isinstance(details, dict):
        reply.cached_tokens = count_of(details.get("cached_tokens"))
    details = usage.get("output_tokens_details")
    if isinstance(details, dict):
        reply.reasoning_tokens = count_of(details.get("reasoning_tokens"))
