"""llama-server's native `/completion` and `/infill`, and the `timings` that all its APIs share."""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.reply import ChoiceTimings, Reply, count_of, number_of, text_of

_MS = 1000.0
_FINISH = {"eos": "stop", "word": "stop", "limit": "length"}  # `stop_type` in OpenAI's words


def read(event: Mapping[str, Any], reply: Reply) -> bool:
    """Parse one event (or one whole body) into `reply`; True if it carried a token."""
    if event.get("error"):
        reply.failed = True
    reply.model = reply.model or text_of(event.get("model"))
    reply.note_choice(event.get("index"))
    if event.get("stop"):
        stop_type = text_of(event.get("stop_type")) or "eos"
        reply.finish = _FINISH.get(stop_type, stop_type)
        reply.prompt_tokens = count_of(event.get("tokens_evaluated"))
        reply.completion_tokens = count_of(event.get("tokens_predicted"))
    read_timings(event, reply)
    return bool(event.get("content"))


def read_timings(event: Mapping[str, Any], reply: Reply) -> None:
    """Parse the event's `timings`.

    Ollama's have no `cache_n`, and their `prompt_n` includes cached tokens.
    """
    timings = event.get("timings")
    if not isinstance(timings, dict) or "prompt_progress" in event:
        return  # those of a progress report are of a prefill half done
    get = timings.get
    prompt_ms, predicted_ms = number_of(get("prompt_ms")), number_of(get("predicted_ms"))
    prompt_n, predicted_n = count_of(get("prompt_n")), count_of(get("predicted_n"))
    if prompt_ms is None or predicted_ms is None or prompt_n is None or predicted_n is None:
        return
    cached = count_of(get("cache_n"))
    reply.timings[reply.last_choice] = ChoiceTimings(
        prompt_tokens=prompt_n + (cached or 0),
        cached_tokens=cached,
        completion_tokens=predicted_n,
        prefill_s=prompt_ms / _MS,
        decode_s=predicted_ms / _MS,
        drafted=count_of(get("draft_n")),
        accepted=count_of(get("draft_n_accepted")),
    )
