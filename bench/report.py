"""The figures as a table: medians over the rounds, ratios to the naive relay with their spread."""

import statistics
from collections.abc import Iterable

from bench.workloads import Figures

Rounds = dict[tuple[str, str], list[Figures]]
"""What each round measured, by workload and way."""

LEFT_OUT = frozenset({"failed"})


def table(rounds: Rounds) -> list[str]:
    """Return a Markdown table with one row for each figure."""
    loads = list(dict.fromkeys(load for load, _ in rounds))
    ways = list(dict.fromkeys(way for _, way in rounds))
    lines = [
        "| load | figure | " + " | ".join(ways) + " | slowtok / naive |",
        "|---|---|" + "--:|" * (len(ways) + 1),
    ]
    for load in loads:
        names = dict.fromkeys(name for way in ways for name in _figures(rounds, load, way))
        for name in names:
            cells = [_cell(values_of(rounds, load, way, name)) for way in ways]
            lines.append(
                f"| {load} | {name} | {' | '.join(cells)} | {_ratio(rounds, load, name)} |"
            )
    return lines


def failures(rounds: Rounds) -> list[str]:
    """Return one line for each load and way with replies that failed."""
    sums = {what: round(sum(f.get("failed", 0) for f in all_)) for what, all_ in rounds.items()}
    return [
        f"{load}, {way}: {failed} replies failed" for (load, way), failed in sums.items() if failed
    ]


def ratio_of(rounds: Rounds, load: str, name: str) -> list[float]:
    """Return slowtok's figure as a multiple of the naive relay's, one for each round, sorted."""
    ours, naive = (values_of(rounds, load, way, name) for way in ("slowtok", "naive"))
    return sorted(a / b for a, b in zip(ours, naive, strict=False) if b)


def _figures(rounds: Rounds, load: str, way: str) -> Iterable[str]:
    first = next(iter(rounds.get((load, way), [])), {})
    return (name for name in first if name not in LEFT_OUT)


def values_of(rounds: Rounds, load: str, way: str, name: str) -> list[float]:
    """Return a figure of one way under one load, one for each round."""
    return [found[name] for found in rounds.get((load, way), []) if name in found]


def _cell(values: list[float]) -> str:
    return shown(statistics.median(values)) if values and any(values) else ""


def _ratio(rounds: Rounds, load: str, name: str) -> str:
    found = ratio_of(rounds, load, name)
    if not found:
        return ""
    middle = f"{statistics.median(found):.2f}"
    return middle if len(found) < 3 else f"{middle} ({found[0]:.2f} to {found[-1]:.2f})"


def shown(value: float) -> str:
    """Return a figure with three digits that matter."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
