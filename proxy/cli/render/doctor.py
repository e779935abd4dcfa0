"""Checks for human eyes: a table for each thing, what to do below what was found. Pure."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slowtok.proxy.cli.render.console import plain
from slowtok.proxy.inspection.check import Area, Check, State

TITLES: dict[Area, str] = {
    "engine": "Engines and models",
    "memory": "Memory: what is where, and what fits",
    "flags": "How the engines were started",
    "gpu": "GPUs",
    "host": "Host",
    "hidden": "Could not be inspected",
}
STYLES: dict[State, str] = {
    "ok": "green", "note": "cyan", "warn": "bold red", "unknown": "yellow",
}  # fmt: skip
STATE_WIDTH = 4
WORDS: dict[State, str] = {"ok": "ok", "note": "note", "warn": "WARN", "unknown": "?"}


def page(checks: Sequence[Check], *, is_anything: bool) -> RenderableType:
    """Return everything, the verdict last, where the eye stays."""
    width = max((len(check.name) for check in checks), default=0)
    parts: list[RenderableType] = []
    for area, title in TITLES.items():
        of_area = [check for check in checks if check.area == area]
        if of_area:
            parts += [Text(title, "bold underline"), *_groups(of_area, width), Text()]
    return Group(*parts, _verdict(checks, is_anything=is_anything))


def _groups(checks: Iterable[Check], name_width: int) -> Iterator[RenderableType]:
    """Yield the checks about one thing after the other, each under its name."""
    for about, group in itertools.groupby(checks, lambda check: check.about):
        if about is not None:
            yield Text(plain(about), "bold")
        yield _table(group, name_width)


def _table(checks: Iterable[Check], name_width: int) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=STATE_WIDTH)
    table.add_column(no_wrap=True, min_width=name_width)
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(Text(WORDS[check.state], STYLES[check.state]), check.name, _said(check))
    return table


def _said(check: Check) -> Text:
    text = Text(plain(check.said))
    if check.basis:
        text.append(f"\n{plain(check.basis)}", "dim")
    if check.advice:
        text.append(f"\n-> {plain(check.advice)}", "bold" if check.state == "warn" else "dim")
    return text


def _verdict(checks: Sequence[Check], *, is_anything: bool) -> Text:
    count = Counter(check.state for check in checks)
    if not is_anything:
        said = "Nothing to diagnose: no engine answered and no GPU was seen."
        return Text(said, STYLES["unknown"])
    if not count["warn"] and count["note"]:
        things = "thing" if count["note"] == 1 else "things"
        said = f"Nothing that was seen costs speed for sure; {count['note']} {things} may (note)."
        text = Text(said, STYLES["note"])
    elif not count["warn"]:
        text = Text("Nothing that was seen costs speed.", STYLES["ok"])
    else:
        things = "thing costs" if count["warn"] == 1 else "things cost"
        text = Text(f"{count['warn']} {things} speed (WARN).", STYLES["warn"])
    hidden = count["unknown"]
    if hidden:
        things = "thing" if hidden == 1 else "things"
        text.append(f" {hidden} {things} could not be told (?).", "default not bold")
    return text
