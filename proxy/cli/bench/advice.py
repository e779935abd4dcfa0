"""Advice after a benchmark: causes of its runs first, then what `slowtok doctor` says. Pure."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slowtok.proxy.cli.bench.figures import BenchRun
from slowtok.proxy.inspection.check import Check

MAX_STEPS = 3
"""One change at a time shows what helped; a long list is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceStep:
    """One thing to try. `lost_ms` is what its cause cost all runs together, where that is known."""

    what: str
    do: str
    said_by: str
    lost_ms: float | None = None


def next_steps(runs: Sequence[BenchRun], checks: Iterable[Check]) -> list[AdviceStep]:
    """Return what to try, the costliest first; empty where nothing costs speed."""
    found = {**_of_runs(runs)}
    for check in checks:
        if check.state == "warn" and check.advice and check.name not in found:
            found[check.name] = AdviceStep(what=check.said, do=check.advice, said_by="doctor")
    return list(found.values())[:MAX_STEPS]


def _of_runs(runs: Sequence[BenchRun]) -> dict[str, AdviceStep]:
    findings = [f for run in runs for f in run.findings]
    lost_ms: dict[str, float] = {}
    for finding in findings:
        cause = str(finding["cause"])
        lost_ms[cause] = lost_ms.get(cause, 0.0) + float(finding.get("lost_ms") or 0.0)
    costliest = sorted(lost_ms, key=lambda cause: -lost_ms[cause])
    return {cause: _step(cause, findings, lost_ms[cause]) for cause in costliest}


def _step(cause: str, findings: Sequence[dict[str, object]], lost_ms: float) -> AdviceStep:
    mine = [f for f in findings if f["cause"] == cause]
    worst = max(mine, key=lambda f: float(str(f.get("lost_ms") or 0)))
    return AdviceStep(
        what=f"{cause}: {worst.get('summary', '')}",
        do=str(worst.get("remedy", "")),
        said_by="diagnosis",
        lost_ms=lost_ms,
    )


def again(saved: Path, given: Sequence[tuple[str, str | None]]) -> str:
    """Return the command that measures the same again and compares; `given` are its options."""
    options = [part for name, value in given if value for part in (name, value)]
    return shlex.join(["slowtok", "bench", *options, "--compare", str(saved)])
