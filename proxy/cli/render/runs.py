"""Runs for human eyes in a terminal: the list, and one as a waterfall. Pure: JSON in, text out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from slowtok.proxy.cli.render.console import SHORT_ID_CHARS, hanging, plain
from slowtok.proxy.cli.render.units import clock, counted, duration, percent
from slowtok.proxy.cli.report.text import short_name

Run = Mapping[str, Any]
WIDE = 110  # columns from which on there is room for what can be done without
MAX_BAR_CHARS, OTHER_CHARS = 40, 86  # of a waterfall, and of all columns beside it
LEAST_TOOLS_MS = 50  # shorter ones show as 0.0 s
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
    """Return the list of runs, the newest first; where there is little room, no number is cut."""
    if not runs:
        return Text("No run yet: a run is two requests that belong together, or one with a name.")
    is_wide = columns >= WIDE
    table = _table(("run", ""), *([("started", "")] * is_wide), ("steps", "r"), ("wall", "r"),
        *([("verdict", "")] * is_wide), ("lost", "r"), ("fix first", "wraps"), ("would take", "r"),
    )  # fmt: skip
    for run in runs:
        first = run.get("fix_first") or {}
        verdict = Text(run["verdict"], _STYLES.get(run["verdict"], ""))
        table.add_row(
            Text(_title(run, columns // (4 if is_wide else 5)), "bold"),
            *([clock(run["started"])] * is_wide),
            f"{run['requests']:,}" + (" ..." if run["live"] else ""),
            duration(run["wall_ms"]),
            *([verdict] * is_wide),
            duration(sum(run["lost_ms"].values())) if run["lost_ms"] else "",
            plain(first.get("cause", "")) if first or is_wide else verdict,
            duration(first["wall_then_ms"]) if first else "",
        )
    return Group(table, Text("One in full: slowtok run ID", "dim"))


def run_page(run: Run, columns: int) -> RenderableType:
    """Return one run: its verdict, where its time went, what to fix first, and each turn."""
    parts: list[RenderableType] = [_head(run), _split(run, columns), *_first(run)]
    parts += [Text("\nTurns", "bold underline"), _turns(run, columns), _legend(run, columns)]
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
        said += f", client {plain(', '.join(run['clients']))}"
    text.append(f"{said}{', going on' if run['live'] else ''}.", "default")
    text.append(f" It began at {clock(run['started'])}.", "default")
    text.append(f"\nMost of it: {plain(run['went_into'])}.", "default")
    return text


def _split(run: Run, columns: int) -> Table:
    is_wide = columns >= WIDE  # with a waterfall, of which these are the letters
    table = _table(*([("", "")] * is_wide), ("", ""), ("", "r"), ("", "r"))
    table.show_header = False
    for part, (letter, style, what) in _PARTS.items():
        if (took_ms := run["split_ms"][part]) >= 1:
            share = took_ms / run["wall_ms"] if run["wall_ms"] else 0.0
            mark = [Text(letter, style)] * is_wide
            table.add_row(*mark, what, duration(took_ms), percent(share))
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
    turns = run["turns"][:MAX_TURNS]
    has_parents = any("parent" in turn for turn in turns)
    has_tools = any((turn.get("client_ms") or 0) >= LEAST_TOOLS_MS for turn in turns)
    is_wide, bar_chars = columns >= WIDE, min(columns - OTHER_CHARS, MAX_BAR_CHARS)
    table = _table(
        ("turn", "r"), ("id", ""),
        *([("after", "r")] * has_parents), *([("tools", "r")] * has_tools),
        ("prompt", "r"), ("cached", "r"), ("again", "r"), ("out", "r"), ("took", "r"),
        ("why slow", "wraps"), *([("", "")] * is_wide),
    )  # fmt: skip
    for turn in turns:
        tokens, causes = turn["tokens"], turn["causes"]
        table.add_row(
            str(turn["turn"]),
            plain(turn["request"][-SHORT_ID_CHARS:]),
            *([str(turn.get("parent", ""))] * has_parents),
            *([_seconds(turn.get("client_ms"))] * has_tools),
            *(_count(tokens.get(name)) for name in ("prompt", "cached", "recomputed")),
            _count(tokens.get("completion")),
            _seconds(turn["total_ms"]),
            plain(", ".join(causes)) if turn.get("verdict") == "slow" else "",
            *([_bar(turn, run["wall_ms"], bar_chars)] if is_wide else []),
        )
    return table


def _legend(run: Run, columns: int) -> Text:
    lines = []
    if (more := len(run["turns"]) - MAX_TURNS) > 0:
        lines.append(f"{counted(more, 'more turn')} with --json.")
    if columns >= WIDE:
        marks = ", ".join(f"{mark} {what}" for mark, _, what in _PARTS.values() if mark != " ")
        lines.append(f"{marks}.")
    lines.append("One request in full: slowtok explain ID")
    return Text("\n".join(lines), "dim")


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
    """Return a table; a column is on the right ("r"), or one that wraps where room is short."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, how in columns:
        side: JustifyMethod = "right" if how == "r" else "left"
        table.add_column(name, justify=side, no_wrap=how != "wraps", overflow="fold")
    return table
