"""A benchmark's result for human eyes. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slowtok.detectors.case.finding import number
from slowtok.proxy.cli.bench.advice import AdviceStep
from slowtok.proxy.cli.bench.comparison import CauseChange, Change, Difference
from slowtok.proxy.cli.bench.figures import BenchRun, Figure
from slowtok.proxy.cli.bench.result import Result
from slowtok.proxy.cli.render.console import VERDICT_STYLES, hanging, plain
from slowtok.proxy.cli.render.units import GIB, seconds

OUTCOME_STYLES = {"better": "bold green", "same": "", "worse": "bold red", "unknown": "yellow"}
NO_NOISE = "one run each: what is noise is not known"
NAMES = {
    "decode_tps": "decode",
    "prefill_tps": "prefill",
    "energy_j_per_token": "energy",
}
MAX_DIFFERENCES = 12
FULL_ANSWER_RATIO = 0.9


def head(result: Result, where: str) -> Text:
    """Return what was measured: engine, model, and the way to it."""
    engine, model = result.setup.get("engine", {}), result.setup.get("model", {})
    build = " ".join(str(engine[k]) for k in ("kind", "version") if engine.get(k)) or "engine"
    size = model.get("file_bytes")
    facts = [model.get("quantisation"), size and f"{size / GIB:.2f} GiB"]
    said = ", ".join(str(fact) for fact in facts if fact)
    text = Text(plain(result.model), "bold")
    text.append(plain(f"{f' ({said})' if said else ''} on {build}, through {where}"), "not bold")
    return text


def runs_table(runs: Sequence[BenchRun]) -> Table:
    """Return one row for each run; it fits into 80 columns."""
    both = any(run.prefill_tps is not None and run.decode_tps is not None for run in runs)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", no_wrap=True)
    for name in ("tokens", *(("prefill/s", "decode/s") if both else ("per s",)), "expected"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("cause")
    for run in runs:
        table.add_row(*_row(run, both=both))
    return table


def figures_table(figures: Iterable[Figure]) -> Table:
    """Return the median of each figure with its spread."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for figure in figures:
        spread = "one run: spread not known"
        if figure.spread is not None:
            low, high = min(figure.values), max(figure.values)
            share = 100 * figure.spread / figure.median if figure.median else 0.0
            spread = f"{number(low)} to {number(high)}, spread {share:.1f} %"
        table.add_row(
            Text(NAMES.get(figure.name, figure.name), "bold"),
            Text(f"{number(figure.median)} {figure.unit}", "bold"),
            f"median of {len(figure.values)}" if len(figure.values) > 1 else "",
            Text(spread, "dim"),
        )
    return table


def comparison(
    before: Result,
    found: Sequence[Change],
    causes: CauseChange,
    differ: Sequence[Difference],
    file: str,
) -> RenderableType:
    """Return what became of each figure and each cause, and what differs in the setup."""
    parts: list[RenderableType] = [Text(f"\nAgainst {plain(file)} ({plain(before.at)})", "bold")]
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for one in found:
        noise = NO_NOISE if one.limit is None else f"noise up to {number(one.limit)}"
        table.add_row(
            Text(one.outcome, OUTCOME_STYLES[one.outcome]),
            NAMES.get(one.name, one.name),
            f"{number(one.before)} -> {number(one.after)} {one.unit}",
            f"{one.ratio:+.1%}",
            Text(noise, "dim"),
        )
    parts.append(table if found else Text("They have no figure in common.", "yellow"))
    if any(one.outcome == "unknown" for one in found):
        parts.append(
            Text("No verdict: --runs 3, the default, tells a change from noise.", "yellow")
        )
    parts += [
        Text(plain(f"{word}: {', '.join(names)}"), style)
        for word, names, style in (
            ("Cause gone", causes.gone, "green"),
            ("Cause still there", causes.stayed, "yellow"),
            ("New cause", causes.new, "bold red"),
        )
        if names
    ]
    if differ:
        parts.append(Text("Not the same in the setup:", "bold"))
        parts += [_difference(one) for one in differ[:MAX_DIFFERENCES]]
        if len(differ) > MAX_DIFFERENCES:
            parts.append(Text(f"  and {len(differ) - MAX_DIFFERENCES} more; --json has them"))
    else:
        parts.append(Text("The setup is the same, as far as it can be seen.", "dim"))
    return Group(*parts)


def what_next(steps: Sequence[AdviceStep]) -> RenderableType:
    """Return what to try."""
    if not steps:
        return Text("\nNothing that was seen costs speed.", "green")
    parts: list[RenderableType] = [Text("\nTry next, one at a time:", "bold")]
    for n, step in enumerate(steps, 1):
        lost = f" (all runs: {seconds(step.lost_ms)} lost)" if step.lost_ms else ""
        parts.append(hanging(f"{n}.", f"{plain(step.what)}{lost}"))
        parts.append(hanging("   ->", plain(step.do), "bold"))
    return Group(*parts)


def short_answers(runs: Iterable[BenchRun], tokens: int) -> str | None:
    """Return how early answers ended, which makes a decode rate less sure; None where none did."""
    counts = [
        run.completion_tokens
        for run in runs
        if run.decode_tps is not None and run.completion_tokens is not None
    ]
    if not counts or min(counts) >= FULL_ANSWER_RATIO * tokens:
        return None
    return f"The model ended its answer early: {min(counts)} of {tokens} tokens."


def _row(run: BenchRun, *, both: bool) -> tuple[RenderableType, ...]:
    band = ""
    if run.expected_low_tps is not None and run.expected_high_tps is not None:
        band = f"{number(run.expected_low_tps)}-{number(run.expected_high_tps)}"
    word = f"{run.verdict} {run.phase}" if run.phase else run.verdict
    rates = ["" if rate is None else number(rate) for rate in (run.prefill_tps, run.decode_tps)]
    return (
        run.label,
        _tokens(run),
        *(rates if both else ("".join(rates),)),
        band,
        Text(word, VERDICT_STYLES.get(run.verdict, "")),
        Text(_cause(run), "bold" if run.findings else "dim"),
    )


def _tokens(run: BenchRun) -> str:
    """Return the tokens that the run is about: computed ones of the prompt, or generated ones."""
    if run.decode_tps is not None:
        return "?" if run.completion_tokens is None else f"{run.completion_tokens:,}"
    if run.prompt_tokens is None:
        return "?"
    return f"{run.prompt_tokens - (run.cached_tokens or 0):,}"


def _cause(run: BenchRun) -> str:
    if run.findings:
        first: Mapping[str, Any] = run.findings[0]
        return f"{first['cause']} (lost {seconds(float(first.get('lost_ms') or 0))})"
    if run.verdict == "slow":
        return "not visible"
    return plain(run.reason or "")


def _difference(one: Difference) -> Text:
    said = f"  {one.name}: {_shown(one.before)} -> {_shown(one.after)}"
    return Text(plain(said), "yellow")


def _shown(value: Any) -> str:
    return "not known" if value is None else str(value)
