"""A report for human eyes in a terminal. Pure: the JSON object in, text out."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slowtok.proxy.cli.render.console import hanging, plain
from slowtok.proxy.cli.render.units import clock, counted, duration, percent

Report = Mapping[str, Any]
MAX_NAME_CHARS = 28
BAR_CHARS = 12
NO_REQUEST = "No request in this time."


def page(report: Report) -> RenderableType:
    """Return the whole report, what to do first at its end, where the eye stays."""
    if not report["requests"]:
        return Group(_head(report), Text(NO_REQUEST, "yellow"), *_notes(report))
    parts: list[RenderableType] = [_head(report), _numbers(report)]
    for title, table in (
        ("Time lost, by cause", _causes(report)),
        ("Time spent, by phase", _spent(report["spent_ms"])),
        ("Runs, by time that a cure would win", _runs(report["runs"])),
        ("Models, by time lost", _groups("model", report["models"])),
        ("Clients, by time lost", _groups("client", report["clients"])),
        ("Busiest hours", _hours(report["busiest_hours"])),
    ):
        if table.row_count:
            parts += [Text(f"\n{title}", "bold underline"), table]
    return Group(*parts, *_cache(report), *_trend(report), *_notes(report), _first(report))


def short_name(name: str, most_chars: int = MAX_NAME_CHARS) -> str:
    """Return a model's name so that a table can hold it; of a path its last part."""
    last = plain(PurePath(name).name or name)
    return last if len(last) <= most_chars else f"{last[: most_chars - 3]}..."


def trend_lines(report: Report) -> Iterator[str]:
    """Yield what changed against the period before."""
    before = report.get("before")
    if before is None:
        return
    yield f"requests {before['requests']:,} -> {report['requests']:,}"
    slow, judged = report["verdicts"]["slow"], _judged(report)
    was = before.get("slow_ratio")
    if was is not None and judged:
        yield f"slow {percent(was) or '0 %'} -> {percent(slow / judged)}"
    yield f"time lost {duration(before['lost_ms'])} -> {duration(report['lost_ms'])}"
    if "decode_tps" in before and "decode_tps" in report:
        yield f"decode {before['decode_tps']:.1f} -> {report['decode_tps']:.1f} tokens/s"


def unread(count: int) -> str:
    """Return how much of the log could not be read, as a sentence."""
    return f"{counted(count, 'line')} of the log could not be read."


def _judged(report: Report) -> int:
    return int(report["verdicts"]["slow"] + report["verdicts"]["normal"])


def chosen(report: Report) -> str:
    """Return which requests were asked for, as a sentence; empty for all of them."""
    asked = (report.get("only") or {}).items()
    said = ", ".join(f"{name} {plain(value)}" for name, value in asked if value)
    return f"Only requests with {said}." if said else ""


def _head(report: Report) -> Text:
    head = Text(f"slowtok report, {clock(report['since'])} to {clock(report['until'])}", "bold")
    return head.append(f"\n{only}", "not bold") if (only := chosen(report)) else head


def _numbers(report: Report) -> Text:
    verdicts = report["verdicts"]
    text = Text(f"{counted(report['requests'], 'request')}: ")
    text.append(f"{verdicts['normal']:,} normal", "green").append(", ")
    text.append(f"{verdicts['slow']:,} slow", "bold red").append(", ")
    text.append(f"{verdicts['unknown']:,} could not be judged", "yellow")
    if passed := report["requests"] - report["generations"]:
        text.append(f", {passed:,} merely passed")
    text.append(f"\n{duration(report['total_ms'])} in all, lost {duration(report['lost_ms'])}")
    if "lost_ratio" in report:
        text.append(f" ({percent(report['lost_ratio'])})")
    if "decode_tps" in report:
        tokens = counted(report["tokens_generated"], "token")
        text.append(f"; {tokens} generated, decoded at {report['decode_tps']:.1f}/s")
    if report["failed"]:
        said = ", ".join(f"{count:,} {name}" for name, count in report["failed"].items())
        text.append(f"\nFailed: {plain(said)}", "bold red")
    return text


def _causes(report: Report) -> Table:
    table = _table(("cause", ""), ("lost", "r"), ("share", "r"), ("", ""), ("requests", "r"))
    for cause in report["causes"]:
        share = cause.get("share") or 0.0
        table.add_row(
            Text(plain(cause["cause"]), "bold"),
            duration(cause["lost_ms"]),
            percent(share),
            Text("#" * max(round(share * BAR_CHARS), 1), "red"),
            f"{cause['requests']:,}",
        )
    return table


def _spent(spent_ms: Report) -> Table:
    table = _table(("phase", ""), ("spent", "r"), ("share", "r"))
    whole_ms = sum(spent_ms.values())
    for phase, ms in sorted(spent_ms.items(), key=lambda item: -item[1]):
        if ms:
            table.add_row(phase, duration(ms), percent(ms / whole_ms))
    return table


def _runs(runs: Sequence[Report]) -> Table:
    table = _table(
        ("run", ""), ("started", ""), ("requests", "r"), ("took", "r"), ("would take", "r"),
        ("fix first", ""),
    )  # fmt: skip
    for run in runs:
        first = run.get("fix_first")
        table.add_row(
            short_name(run.get("name") or run["id"]),
            clock(run["started"]),
            f"{run['requests']:,}",
            duration(run["wall_ms"]),
            duration(first["wall_then_ms"]) if first else "",
            plain(first["cause"]) if first else "",
        )
    return table


def _groups(kind: str, groups: Sequence[Report]) -> Table:
    table = _table(
        (kind, ""), ("requests", "r"), ("slow", "r"), ("spent", "r"), ("lost", "r"),
        ("decode/s", "r"), ("first cause", ""),
    )  # fmt: skip
    for group in groups:
        table.add_row(
            short_name(group[kind]),
            f"{group['requests']:,}",
            f"{group['slow']:,}",
            duration(group["total_ms"]),
            duration(group["lost_ms"]),
            f"{group['decode_tps']:.1f}" if "decode_tps" in group else "",
            plain(group.get("first_cause", "")),
        )
    return table


def _hours(hours: Sequence[Report]) -> Table:
    table = _table(("hour", ""), ("requests", "r"), ("slow", "r"), ("lost", "r"))
    for hour in hours:
        table.add_row(
            clock(hour["hour"]),
            f"{hour['requests']:,}",
            f"{hour['slow']:,}",
            duration(hour["lost_ms"]),
        )
    return table


def _cache(report: Report) -> Iterator[RenderableType]:
    cache = report["prompt_cache"]
    if not cache["prompt_tokens"]:
        return
    said = (
        f"\nPrompt cache: {cache['cached_tokens']:,} of {cache['prompt_tokens']:,} prompt tokens "
        f"({percent(cache.get('cached_ratio'))}) came from it"
    )
    if cache["computed_again_tokens"]:
        said += (
            f"; {cache['computed_again_tokens']:,} were computed again although they were known, "
            f"which cost {duration(cache['lost_ms'])}"
        )
    yield Text(f"{said}.")


def _trend(report: Report) -> Iterator[RenderableType]:
    if lines := list(trend_lines(report)):
        yield Text(f"Against the time before: {', '.join(lines)}.")


def _notes(report: Report) -> Iterator[RenderableType]:
    if report["bad_lines"]:
        yield Text(unread(report["bad_lines"]), "yellow")


def _first(report: Report) -> RenderableType:
    cause = report.get("fix_first")
    if cause is None:
        return Text("\nNothing to fix: no time was lost to a known cause.", "green")
    text = Text("\nFix first: ", "bold")
    text.append(plain(cause["cause"]), "bold red")
    text.append(f" (lost {duration(cause['lost_ms'])} in {counted(cause['requests'], 'request')})")
    return Group(
        text,
        Text(plain(cause.get("summary", ""))),
        hanging("->", plain(cause["remedy"]), "bold"),
        Text(f"Its worst request: slowtok explain {plain(cause['worst_id'])}", "dim"),
    )


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, side in columns:
        table.add_column(name, justify="right" if side == "r" else "left", no_wrap=True)
    return table
