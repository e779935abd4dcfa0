"""Runs for human eyes in a terminal: the list, and one as a waterfall. Pure: JSON in, text out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slowtok.proxy.cli.render.console import plain
from slowtok.proxy.cli.render.hanging import hanging
from slowtok.proxy.cli.render.units import clock, counted, duration, percent
from slowtok.proxy.cli.report.text import short_name

Run = Mapping[str, Any]
WIDE = 110  # columns from which on each turn's causes have room, too
MAX_BAR_CHARS, LEAST_BAR_CHARS = 40, 10
SHORT_ID_CHARS = 8
MAX_TURNS = 100  # --json has them all
_STYLES = {"slow": "bold red", "normal": "green"}
_PARTS = {  # the letter in the waterfall, its style, and what it is
    "queue": ("q", "yellow", "waiting for the engine"),
    "load": ("l", "magenta", "loading the model"),
    "prefill": ("p", "cyan", "reading the prompt, needed"),
    "prefill_again": ("a", "bold red", "reading known prompt again"),
    "decode": ("d", "green", "generating"),
    "delivery": ("y", "yellow", "waiting for the client to take it"),
    "slowtok": ("s", "dim", "slowtok itself"),
    "client": (" ", "", "outside the model: tools, the client"),
}
_BY = {
    "header": "named by the header slowtok-run",
    "url": "named by its base URL",
    "session": "by a session id of its client",
    "prompt_cache_key": "by prompt_cache_key",
    "previous_response_id": "by previous_response_id",
    "conversation": "by its conversation",
    "metadata": "by the session in its metadata",
    "trace": "by its client's trace",
    "prompt": "guessed from its prompts",
}


def runs_page(runs: Sequence[Run], columns: int) -> RenderableType:
    """Return the list of runs, the newest first."""
    if not runs:
        return Text("No run yet: a run is two requests that belong together, or one with a name.")
    table = _table(
        ("run", ""), ("started", ""), ("steps", "r"), ("wall", "r"), ("verdict", ""),
        ("lost", "r"), ("fix first", ""), ("then", "r"),
    )  # fmt: skip
    for run in runs:
        first = run.get("fix_first") or {}
        table.add_row(
            Text(_title(run, columns // 4), "bold"),
            clock(run["started"])[0 if columns >= WIDE else 5 :],
            f"{run['requests']:,}" + (" ..." if run["live"] else ""),
            duration(run["wall_ms"]),
            Text(run["verdict"], _STYLES.get(run["verdict"], "")),
            duration(sum(run["lost_ms"].values())) if run["lost_ms"] else "",
            plain(first.get("cause", "")),
            duration(first["wall_then_ms"]) if first else "",
        )
    return Group(table, Text("One in full: slowtok run ID", "dim"))


def run_page(run: Run, columns: int) -> RenderableType:
    """Return one run: its verdict, where its time went, what to fix first, and each turn."""
    parts: list[RenderableType] = [_head(run), _split(run)]
    parts += [*_first(run), Text("\nTurns", "bold underline"), _turns(run, columns), _legend(run)]
    return Group(*parts)


def _title(run: Run, most_chars: int) -> str:
    return short_name(run.get("name") or run["id"][:SHORT_ID_CHARS], most_chars)


def _head(run: Run) -> Text:
    text = Text(run["verdict"].upper(), _STYLES.get(run["verdict"], "yellow"))
    name = f"{plain(run['name'])}, id " if run.get("name") else ""
    text.append(f"  run {name}{run['id']} ({_BY.get(run['by'], run['by'])})", "default")
    said = f"\n{counted(run['requests'], 'request')} in {duration(run['wall_ms'])}"
    if run["models"]:
        said += f", {', '.join(short_name(model) for model in run['models'])}"
    if run["clients"]:
        said += f", asked by {plain(', '.join(run['clients']))}"
    text.append(said + (", going on" if run["live"] else "") + ".", "default")
    text.append(f"\nMost of it: {plain(run['went_into'])}.", "default")
    return text


def _split(run: Run) -> Table:
    table = _table(("", ""), ("", ""), ("", "r"), ("", "r"))
    table.show_header = False
    for part, (letter, style, what) in _PARTS.items():
        if (took_ms := run["split_ms"][part]) >= 1:
            share = took_ms / run["wall_ms"] if run["wall_ms"] else 0.0
            table.add_row(Text(letter, style), what, duration(took_ms), percent(share))
    return table


def _first(run: Run) -> Iterator[RenderableType]:
    if run["lost_ms"]:
        lost = ", ".join(f"{plain(c)} {duration(ms)}" for c, ms in run["lost_ms"].items())
        yield Text(f"\nLost to: {lost}")
    first = run.get("fix_first")
    if first is None:
        yield Text("\nNothing to fix: no time was lost to a known cause.", "green")
        return
    text = Text("\nFix first: ", "bold")
    text.append(plain(first["cause"]), "bold red")
    text.append(
        f" (lost {duration(first['lost_ms'])} in {counted(first['requests'], 'request')}); "
        f"the run would then take about {duration(first['wall_then_ms'])}"
    )
    yield text
    if first["hint"]:
        yield hanging("->", plain(first["hint"]), "bold")


def _turns(run: Run, columns: int) -> Table:
    is_wide = columns >= WIDE
    bar_chars = min(max(columns - (90 if is_wide else 64), LEAST_BAR_CHARS), MAX_BAR_CHARS)
    table = _table(
        ("turn", "r"), ("after", "r"), ("tools", "r"), ("prompt", "r"), ("cached", "r"),
        ("again", "r"), ("out", "r"), ("took", "r"), ("", ""), *([("why slow", "")] * is_wide),
    )  # fmt: skip
    for turn in run["turns"][:MAX_TURNS]:
        tokens, causes = turn["tokens"], turn["causes"]
        why = ", ".join(causes) if turn.get("verdict") == "slow" else ""
        table.add_row(
            str(turn["turn"]),
            str(turn.get("parent", "")),
            _seconds(turn.get("client_ms")),
            *(_count(tokens.get(name)) for name in ("prompt", "cached", "recomputed")),
            _count(tokens.get("completion")),
            _seconds(turn["total_ms"]),
            _bar(turn, run["wall_ms"], bar_chars),
            *([plain(why)] * is_wide),
        )
    return table


def _legend(run: Run) -> Text:
    said = ", ".join(f"{letter} {what}" for letter, _, what in _PARTS.values() if letter != " ")
    more = len(run["turns"]) - MAX_TURNS
    left = f"; {counted(more, 'more turn')} with --json" if more > 0 else ""
    return Text(f"{said}{left}.\nOne request in full: slowtok explain ID", "dim")


def _bar(turn: Run, wall_ms: float, chars: int) -> Text:
    """Return where in the run a request was, a letter for each phase."""
    per_char_ms = max(wall_ms, 1.0) / chars
    at_ms, bar = turn["started_ms"], Text(no_wrap=True)
    bar.append(" " * min(round(at_ms / per_char_ms), chars - 1))
    for part, took_ms in turn["split_ms"].items():
        letter, style, _ = _PARTS[part]
        end = round((at_ms + took_ms) / per_char_ms)
        bar.append(letter * max(end - len(bar.plain), 0), style)
        at_ms += took_ms
    if not bar.plain.strip():
        largest = max(turn["split_ms"], key=turn["split_ms"].get, default="queue")
        bar.append(_PARTS[largest][0], _PARTS[largest][1])
    bar.truncate(chars, pad=True)
    return bar


def _seconds(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds / 1000:.1f} s"


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, side in columns:
        table.add_column(name, justify="right" if side == "r" else "left", no_wrap=True)
    return table
