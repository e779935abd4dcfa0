"""Timings that vLLM adds to any API with `--enable-per-request-metrics`."""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.reply import Reply, number_of

_MS = 1000.0


def read_metrics(event: Mapping[str, Any], reply: Reply) -> None:
    """Parse the event's `metrics`; their time to first token excludes the queue."""
    metrics = event.get("metrics")
    if not isinstance(metrics, dict):
        return
    reply.prefill_s = _seconds(metrics.get("time_to_first_token_ms"))
    reply.decode_s = _seconds(metrics.get("generation_time_ms"))
    reply.queue_s = _seconds(metrics.get("queue_time_ms"))


def _seconds(milliseconds: Any) -> float | None:
    number = number_of(milliseconds)
    return None if number is None else number / _MS
