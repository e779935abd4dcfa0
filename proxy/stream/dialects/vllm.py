"""Fields that vLLM adds with `--enable-per-request-metrics`, whatever the API."""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.reply import Reply, number_of

_MS = 1000.0


def read_metrics(event: Mapping[str, Any], reply: Reply) -> None:
    """Note the event's `metrics`; its time to first token leaves the queue out."""
    metrics = event.get("metrics")
    if not isinstance(metrics, dict):
        return
    reply.prefill_s = _seconds(metrics.get("time_to_first_token_ms"))
    reply.decode_s = _seconds(metrics.get("generation_time_ms"))
    reply.queue_s = _seconds(metrics.get("queue_time_ms"))


def _seconds(milliseconds: Any) -> float | None:
    number = number_of(milliseconds)
    return None if number is None else number / _MS
