"""Whether slowtok said of a request what was really done to it. Pure."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from slowtok.proxy.cli.render.console import named

Judgement = Literal["right", "missed", "wrong", "false alarm", "no effect"]

FELT_RATIO, FELT_MS = 0.9, 500.0
"""A decode below this share of the plain one was slowed; slowtok judges no shorter wait.
Heuristic."""


def judge(
    planted: Collection[str], record: Mapping[str, Any], plain_tps: float | None
) -> Judgement:
    """Return how the diagnosis compares with the causes that would be right; none is healthy.

    `plain_tps` is what decode gave with nothing planted. What slowed nothing need not be named.
    """
    found = causes(record)
    if not planted:
        return "false alarm" if record["verdict"] == "slow" else "right"
    if found:
        return "right" if found[0] in planted else "wrong"
    waited_ms = record.get("timing", {}).get("queue_ms") or 0.0
    tps = record.get("rate", {}).get("decode_tps")
    slowed = tps is not None and plain_tps is not None and tps < FELT_RATIO * plain_tps
    felt = waited_ms > FELT_MS if "queued" in planted else slowed
    return "missed" if felt or record["verdict"] == "slow" else "no effect"


def causes(record: Mapping[str, Any]) -> list[str]:
    """Return the causes of a slow request, the first one first."""
    return [finding["cause"] for finding in named(record)]
