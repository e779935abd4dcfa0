"""`make reports`: what slowtok says of the reports of users, as a table in docs/accuracy.md.

PYTHONPATH=tests .venv/bin/python -m cases.table [--write]
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases.build_reports import FOLDER, reports
from cases.parts import Report
from cases.untold import UNTOLD, Untold
from slowtok.detectors.case.finding import Diagnosis
from slowtok.detectors.diagnosis.diagnose import diagnose

PAGE = Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"
BEGIN, END = "<!-- reports: written by `make reports` -->", "<!-- end of reports -->"

MEANING = {
    "right": "the right cause first, or nothing where nothing was wrong",
    "open": "the report does not give enough to name its cause, and no wrong one is named",
    "later": "slowtok has no name for the cause yet, and no wrong one is named",
    "wrong": "another cause, or none where one was to be seen, or a verdict that is not right",
    "not a case": "the report gives too little to be judged again",
}

INTRODUCTION = """## Reports of users

This table shows what slowtok says of public reports of requests that were slow, or seemed so.
A report that gives enough numbers is a case file in `tests/cases/reports`, or several. The label of
a case says what was inferred for it; what a report does not give is not known in its case."""

HEAD = """| report | what it tells | cause | slowtok says | | what it would need to see |
| --- | --- | --- | --- | --- | --- |"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; `kind` is a key of `MEANING`."""

    url: str
    says: str
    cause: str
    said: str
    kind: str
    needs: str


def rows() -> list[Row]:
    """Return all lines: cases first, then reports that are none."""
    wrong = json.loads((FOLDER / "expected.json").read_text("utf-8"))["disagreements"]
    return [*(_judged(report, wrong) for report in reports()), *map(_not_judged, UNTOLD)]


def section(found: Sequence[Row]) -> str:
    """Return the section of the page."""
    counts = Counter(row.kind for row in found)
    told = "\n".join(f"- {counts[kind]} *{kind}*: {means}." for kind, means in MEANING.items())
    table = "\n".join((HEAD, *map(_line, found)))
    return f"{INTRODUCTION}\n\n{told}\n\n{table}"


def put(document: str, text: str) -> str:
    """Return the document with its section replaced, or with one at its end."""
    head, _, rest = document.partition(BEGIN)
    tail = rest.partition(END)[2] or "\n"
    return f"{head.rstrip()}\n\n{BEGIN}\n\n{text.strip()}\n\n{END}{tail}"


def _judged(report: Report, wrong: dict[str, Any]) -> Row:
    found = diagnose(report.case)
    named = bool(report.primary) or (report.slow is False and found.verdict == "normal")
    kind = "later" if report.later else "right" if named else "open"
    return Row(
        url=report.url,
        says=report.says,
        cause=", ".join(_cause(report)),
        said=_said(found),
        kind="wrong" if report.name in wrong else kind,
        needs=wrong.get(report.name) or report.needs or "",
    )


def _cause(report: Report) -> Iterator[str]:
    if report.later:
        yield f"{report.later} (no name yet)"
    elif report.primary:
        yield " or ".join(f"`{cause}`" for cause in report.primary)
    elif report.slow is False:
        yield "none: nothing was wrong"
    elif report.allowed:
        yield "perhaps " + " or ".join(f"`{cause}`" for cause in report.allowed)
    else:
        yield "not known"


def _said(found: Diagnosis) -> str:
    causes = [f"`{cause}`" for cause, each in found.findings.items() if not each.informational]
    if found.verdict != "slow":
        return found.verdict
    return f"slow ({found.phase}): {', '.join(causes) or 'unexplained'}"


def _not_judged(report: Untold) -> Row:
    cause = f"{report.cause} (no name yet)" if report.later else report.cause
    return Row(
        url=report.url,
        says=report.says,
        cause=cause if report.later or ":" in cause else f"`{cause}`",
        said="",
        kind="not a case",
        needs=report.needs,
    )


def _line(row: Row) -> str:
    cells = (_link(row.url), row.says, row.cause, row.said, row.kind, row.needs)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _link(url: str) -> str:
    """Return `owner/project#number` as a link, or the page's name where it has no number."""
    place, _, trap = url.partition(" ")
    found = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)(?:/(?:issues|pull)/(\d+))?(.*)", place)
    if found is None:
        raise ValueError(url)
    project, number, rest = found.groups()
    name = f"{project}#{number}" if number else project
    if rest:
        name = f"{project} {rest.rpartition('/')[2]}"
    return f"[{name}]({place}){' ' + trap if trap else ''}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the section, or put it into the page."""
    parser = argparse.ArgumentParser(prog="python -m cases.table", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put it into docs/accuracy.md")
    text = section(rows())
    if parser.parse_args(arguments).write:
        PAGE.write_text(put(PAGE.read_text("utf-8"), text), "utf-8")
    else:
        sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
