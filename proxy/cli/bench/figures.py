"""The figures of a benchmark: for each rate the median with its spread. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from slowtok.proxy.cli.render.console import named

ON_PURPOSE = "prompt-cache-miss"
"""What an own prompt would be blamed for: each run changes its beginning."""

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """One run: its rates in tokens/s, the expected band, and what slowtok said of it.

    `decode_tps` is None for a prefill run, `prefill_tps` for a decode run. Prefill counts the
    tokens that were computed, `cached_tokens` not among them.
    """

    label: str
    id: str
    verdict: str
    phase: str | None = None
    reason: str | None = None
    decode_tps: float | None = None
    prefill_tps: float | None = None
    expected_low_tps: float | None = None
    expected_high_tps: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    energy_j_per_token: float | None = None
    findings: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure over all runs. `spread` is the sample standard deviation; None of one run."""

    name: str
    unit: str
    values: tuple[float, ...]
    more_is_better: bool = True
    median: float = field(init=False)
    spread: float | None = field(init=False)

    def __post_init__(self) -> None:
        spread = statistics.stdev(self.values) if len(self.values) > 1 else None
        object.__setattr__(self, "median", statistics.median(self.values))
        object.__setattr__(self, "spread", spread)


FIGURES = (  # field of Run, unit, whether more is better
    ("decode_tps", "tokens/s", True),
    ("prefill_tps", "tokens/s", True),
    ("energy_j_per_token", "J/token", False),
)


def run_of(label: str, record: Record) -> BenchRun:
    """Return what counts of a run's record."""
    rate, tokens, expected = (record.get(k, {}) for k in ("rate", "tokens", "expected"))
    prefill, decode = label.startswith("prefill"), label.startswith("decode")
    return BenchRun(
        label=label,
        id=str(record.get("id", "")),
        decode_tps=None if prefill else rate.get("decode_tps"),
        prefill_tps=None if decode else rate.get("prefill_tps"),
        expected_low_tps=None if prefill else expected.get("decode_low_tps"),
        expected_high_tps=None if prefill else expected.get("decode_high_tps"),
        prompt_tokens=tokens.get("prompt"),
        cached_tokens=tokens.get("cached"),
        completion_tokens=tokens.get("completion"),
        energy_j_per_token=None if prefill else _energy(record),
        **_judgement(record),
    )


def _judgement(record: Record) -> dict[str, Any]:
    """Return the verdict with its causes; a prompt cache that was avoided on purpose is none."""
    findings = [f for f in named(record) if f["cause"] != ON_PURPOSE]
    verdict, phase = str(record.get("verdict", "unknown")), record.get("phase")
    reason = record.get("reason")
    if verdict == "slow" and not findings and named(record):
        verdict, phase, reason = "unknown", None, "the prompt cache was avoided on purpose"
    return {
        "verdict": verdict,
        "phase": phase,
        "reason": reason,
        "findings": tuple(_finding(f) for f in findings),
    }


def figures_of(runs: Sequence[BenchRun]) -> list[Figure]:
    """Return each figure that at least one run gave."""
    found = []
    for name, unit, more_is_better in FIGURES:
        values = tuple(v for run in runs if (v := getattr(run, name)) is not None)
        if values:
            found.append(Figure(name=name, unit=unit, values=values, more_is_better=more_is_better))
    return found


def to_json(run: BenchRun) -> dict[str, Any]:
    """Return a run without what is not known."""
    return {k: v for k, v in asdict(run).items() if v is not None}


def _finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("cause", "confidence", "lost_ms", "phase", "summary", "remedy")
    return {name: finding[name] for name in kept if name in finding}


def _energy(record: Record) -> float | None:
    """Return the energy of all GPUs for each token; None where one of them does not tell."""
    told = [gpu.get("energy_j_per_token") for gpu in record.get("gpu", ())]
    return None if not told or None in told else sum(told)
