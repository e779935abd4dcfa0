"""OpenAI chat and text completions, with what llama-server, vLLM and Ollama add to them.

The first token is the first non-empty content, reasoning, tool call or text: role-only chunks,
usage chunks and pings are not tokens.
"""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.reply import (
    MAX_REASON_CHARS,
    ChoiceTimings,
    Reply,
    count_of,
    number_of,
    text_of,
)

_MS = 1000.0
_TEXT_FIELDS = (  # llama-server and vLLM disagree on the name of reasoning
    "content",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "refusal",
    "function_call",
)


def read(event: Mapping[str, Any], reply: Reply) -> bool:
    """Note what one event (or one whole body) says; True when it carried a token."""
    if event.get("error"):
        reply.failed = True
    reply.model = reply.model or text_of(event.get("model"))
    reply.fingerprint = reply.fingerprint or text_of(event.get("system_fingerprint"))
    carried = False
    for choice in event.get("choices") or ():
        carried |= _read_choice(choice, reply)
    if isinstance(usage := event.get("usage"), dict):
        _read_usage(usage, reply)
    if isinstance(timings := event.get("timings"), dict) and "prompt_progress" not in event:
        _read_timings(timings, reply)  # those of a progress report are of a prefill half done
    if isinstance(metrics := event.get("metrics"), dict):
        _read_vllm_metrics(metrics, reply)
    return carried


def _read_choice(choice: Mapping[str, Any], reply: Reply) -> bool:
    reply.last_choice = count_of(choice.get("index")) or 0
    reply.choices_seen = max(reply.choices_seen, reply.last_choice + 1)
    reply.finish = text_of(choice.get("finish_reason"), MAX_REASON_CHARS) or reply.finish
    if choice.get("text"):
        return True
    said = choice.get("delta") or choice.get("message") or {}
    return any(said.get(name) for name in _TEXT_FIELDS)


def _read_usage(usage: Mapping[str, Any], reply: Reply) -> None:
    prompt = count_of(usage.get("prompt_tokens"))
    if not prompt:
        return  # Ollama's text completions put a usage of zeros on every chunk
    reply.prompt_tokens = prompt
    reply.completion_tokens = count_of(usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        reply.cached_tokens = count_of(details.get("cached_tokens"))


def _read_timings(timings: Mapping[str, Any], reply: Reply) -> None:
    """llama-server's object; Ollama's has no `cache_n` and counts the cached in `prompt_n`."""
    prompt_ms, predicted_ms = (
        number_of(timings.get("prompt_ms")),
        number_of(timings.get("predicted_ms")),
    )
    prompt_n, predicted_n = count_of(timings.get("prompt_n")), count_of(timings.get("predicted_n"))
    if prompt_ms is None or predicted_ms is None or prompt_n is None or predicted_n is None:
        return
    cached = count_of(timings.get("cache_n"))
    reply.timings[reply.last_choice] = ChoiceTimings(
        prompt_tokens=prompt_n + (cached or 0),
        cached_tokens=cached,
        completion_tokens=predicted_n,
        prefill_s=prompt_ms / _MS,
        decode_s=predicted_ms / _MS,
        drafted=count_of(timings.get("draft_n")),
        accepted=count_of(timings.get("draft_n_accepted")),
    )


def _read_vllm_metrics(metrics: Mapping[str, Any], reply: Reply) -> None:
    """`--enable-per-request-metrics`; its time to first token leaves the queue out."""
    ttft_ms = number_of(metrics.get("time_to_first_token_ms"))
    decode_ms = number_of(metrics.get("generation_time_ms"))
    queue_ms = number_of(metrics.get("queue_time_ms"))
    reply.prefill_s = None if ttft_ms is None else ttft_ms / _MS
    reply.decode_s = None if decode_ms is None else decode_ms / _MS
    reply.queue_s = None if queue_ms is None else queue_ms / _MS
