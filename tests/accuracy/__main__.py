"""`make accuracy`: how often the diagnosis is right, on runs whose truth is known.

    python -m accuracy [--count N] [--split published|tuning] [--show-misses] [--write]

Only the published split is written to docs/accuracy.md; the other one is for those who change
detectors, who may look at what they got wrong there.
"""

import argparse
import datetime
import itertools
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from accuracy.page import misses, put, render
from accuracy.runs import labelled, reports, run_all
from accuracy.score import Answer, figures
from simulator.scenarios import Split
from slowtok.detectors.diagnosis.catalog import CATALOG
from slowtok.proxy.runtime.version import own_version

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "accuracy.md"
CASES = ROOT / "tests" / "cases"
MAX_MISSES = 400


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and write the page if asked to."""
    asked = _asked(arguments)
    split: Split = asked.split
    console = Console(width=None if Console().is_terminal else 120)
    answers = _run(asked.count, split, console)
    text = render(f"Simulated runs, {split} split", figures(answers))
    told = [
        answer
        for answer, (_, label) in zip(reports(CASES), labelled(CASES), strict=True)
        if label.get("split", "published") == split
    ]
    if told:
        text += "\n\n" + render("Reports", figures(told))
    console.print(Markdown(text))
    if asked.show_misses:
        for line in itertools.islice(misses([*answers, *told]), MAX_MISSES):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if asked.write:
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        note = f"Run on {day}, slowtok {own_version()}, {len(CATALOG)} causes, {asked.count} runs."
        PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), f"{note}\n\n{text}"), "utf-8")
    return 0


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m accuracy", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="simulated runs")
    parser.add_argument("--split", choices=("published", "tuning"), default="published")
    parser.add_argument("--show-misses", action="store_true", help="list them: tuning split only")
    parser.add_argument("--write", action="store_true", help="put the figures into the page")
    asked = parser.parse_args(arguments)
    if asked.show_misses and asked.split != "tuning":
        parser.error("--show-misses needs --split tuning: what is published is not looked at")
    if asked.write and asked.split != "published":
        parser.error("--write needs the published split")
    return asked


def _run(count: int, split: Split, console: Console) -> list[Answer]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{split} runs", total=count)
        return run_all(count, split, on_done=lambda done: progress.update(task, completed=done))


if __name__ == "__main__":
    raise SystemExit(main())
