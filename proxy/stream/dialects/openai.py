"""OpenAI chat and text completions, with what llama-server, vLLM and Ollama add to them.

The first token is the first non-empty content, reasoning, tool call or text: role-only chunks,
usage chunks and pings are not tokens.
"""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.dialects.llama_server import read_timings
from slowtok.proxy.stream.dialects.vllm import read_metrics
from slowtok.proxy.stream.reply import MAX_REASON_CHARS, Reply, count_of, text_of

_REASONING_FIELDS = frozenset({"reasoning_content", "reasoning"})
_TEXT_FIELDS = (  # llama-server and vLLM disagree on the name of reasoning
    "content",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "refusal",
    "function_call",
)


def read(event: Mapping[str, Any], reply: Reply) -> bool:
    """Parse one event (or one whole body) into `reply`; True if it carried a token."""
    if event.get("error"):
        reply.failed = True
    reply.model = reply.model or text_of(event.get("model"))
    reply.fingerprint = reply.fingerprint or text_of(event.get("system_fingerprint"))
    carried = False
    for choice in event.get("choices") or ():
        carried |= _read_choice(choice, reply)
    if isinstance(usage := event.get("usage"), dict):
        _read_usage(usage, reply)
    read_timings(event, reply)
    read_metrics(event, reply)
    return carried


def _read_choice(choice: Mapping[str, Any], reply: Reply) -> bool:
    reply.note_choice(choice.get("index"))
    reply.finish = text_of(choice.get("finish_reason"), MAX_REASON_CHARS) or reply.finish
    if choice.get("text"):
        return True
    message = choice.get("delta")
    if not message:
        message = choice.get("message") or {}
        if message:
            thought = message.get("reasoning_content") or message.get("reasoning")
            reply.note_thoughts(thought, message.get("content"))
    for name in _TEXT_FIELDS:
        if message.get(name):
            reply.is_thinking = name in _REASONING_FIELDS
            return True
    return False


def _read_usage(usage: Mapping[str, Any], reply: Reply) -> None:
    prompt = count_of(usage.get("prompt_tokens"))
    if not prompt:
        return  # Ollama's text completions put a usage of zeros on every chunk
    reply.prompt_tokens = prompt
    reply.completion_tokens = count_of(usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        reply.cached_tokens = count_of(details.get("cached_tokens"))
    details = usage.get("completion_tokens_details")
    if isinstance(details, dict):
        reply.reasoning_tokens = count_of(details.get("reasoning_tokens"))
