"""Parses an engine's `/metrics` page, and computes the gain between two. Pure.

Strategy: only the wanted lines go through the parser. The page of a vLLM is 58 KiB for one engine,
nearly all of it histogram buckets: 7 to 13 ms as a whole, 0.3 to 0.5 ms so.

Counts are summed over engines (data parallel) and labels; a page is about one model, whatever names
it is served by. If a page has a metric under an old and a new name, the new one counts.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The values of one page, None if absent; gauges are readings, all others count from the start.

    `finished` counts answers: a request for n of them counts n times in it and once in `requests`.
    `prompt_tokens` include cached ones. `*_s` are sums over finished answers, but llama-server adds
    to `prefill_s` with each batch.
    """

    running: float | None = None
    waiting: float | None = None
    kv_used_ratio: float | None = None
    started_unix_s: float | None = None
    finished: float | None = None
    requests: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    drafted: float | None = None
    accepted: float | None = None


GAUGES: Mapping[str, tuple[str, ...]] = {
    "running": (
        "vllm:num_requests_running", "llamacpp:requests_processing", "sglang:num_running_reqs",
    ),
    "waiting": (
        "vllm:num_requests_waiting", "llamacpp:requests_deferred", "sglang:num_queue_reqs",
    ),
    "kv_used_ratio": (
        "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "llamacpp:kv_cache_usage_ratio",
        "sglang:token_usage",
    ),
    "started_unix_s": ("process_start_time_seconds",),
}  # fmt: skip
# Without the `_total` that newer client libraries write.
COUNTS: Mapping[str, tuple[str, ...]] = {
    "finished": ("vllm:e2e_request_latency_seconds_count",),
    "requests": ("vllm:request_params_n_count",),
    "preemptions": ("vllm:num_preemptions",),
    "prompt_tokens": ("vllm:prompt_tokens",),
    "cached_tokens": (
        "vllm:prompt_tokens_cached", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits",
        "llamacpp:prompt_tokens_cached",
    ),
    "queue_s": ("vllm:request_queue_time_seconds_sum",),
    "prefill_s": ("vllm:request_prefill_time_seconds_sum", "llamacpp:prompt_seconds"),
    "decode_s": ("vllm:request_decode_time_seconds_sum", "llamacpp:tokens_predicted_seconds"),
    "drafted": (
        "vllm:spec_decode_num_draft_tokens", "llamacpp:spec_decode_num_draft_tokens",
    ),
    "accepted": (
        "vllm:spec_decode_num_accepted_tokens", "llamacpp:spec_decode_num_accepted_tokens",
    ),
}  # fmt: skip
COMPUTED_TOKENS = "llamacpp:prompt_tokens"  # llama-server's prompt tokens leave the cached ones out
HIGHEST = frozenset({"kv_used_ratio", "started_unix_s"})  # of several engines; others are sums
CACHE_CONFIG = "vllm:cache_config_info"

_WANTED = {
    spelling
    for names in (*GAUGES.values(), *COUNTS.values(), (COMPUTED_TOKENS,))
    for name in names
    for spelling in (name, f"{name}_total")
}
_COUNT_FIELDS = tuple(field.name for field in fields(Counters) if field.name in COUNTS)


def read_counters(page: bytes) -> Counters | None:
    """Return the counters of a page; None if it has none of them.

    Raises:
        ValueError: a wanted line is not in Prometheus format.
    """
    values: dict[str, list[float]] = {}
    for name, _, value in _samples(page, _WANTED):
        values.setdefault(name.removesuffix("_total"), []).append(value)
    if all(name.startswith("process_") for name in values):
        return None
    found = {
        field: _one(field, next((values[name] for name in names if name in values), None))
        for field, names in {**GAUGES, **COUNTS}.items()
    }
    if COMPUTED_TOKENS in values and found["cached_tokens"] is not None:
        found["prompt_tokens"] = sum(values[COMPUTED_TOKENS]) + found["cached_tokens"]
    return Counters(**found)


def cache_config(page: bytes) -> list[dict[str, str]]:
    """Return the labels of vLLM's `cache_config_info`, one mapping for each engine.

    Labels whose value is "None" are left out.
    """
    return [
        {label: text for label, text in labels.items() if text != "None"}
        for _, labels, _ in _samples(page, {CACHE_CONFIG})
    ]


def gain(before: Counters, after: Counters) -> dict[str, float | None] | None:
    """Return the gain of each count; None if the engine restarted between the two."""
    gains: dict[str, float | None] = {}
    if before.started_unix_s != after.started_unix_s:
        return None
    for name in _COUNT_FIELDS:
        first, last = getattr(before, name), getattr(after, name)
        gains[name] = None if first is None or last is None else last - first
    return None if any(by is not None and by < 0 for by in gains.values()) else gains


def _one(field: str, values: list[float] | None) -> float | None:
    if not values:
        return None
    return max(values) if field in HIGHEST else sum(values)


def _samples(page: bytes, wanted: Iterable[str]) -> Iterable[tuple[str, Mapping[str, str], float]]:
    """Yield name, labels and value of the wanted lines that have a number."""
    names = {name.encode() for name in wanted}
    lines = [line for line in page.splitlines() if _name(line) in names]
    text = b"\n".join(lines).decode() + "\n"
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if math.isfinite(sample.value):
                yield sample.name, sample.labels, sample.value


def _name(line: bytes) -> bytes:
    return line.partition(b"{")[0].partition(b" ")[0]
