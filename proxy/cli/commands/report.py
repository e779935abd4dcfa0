"""`slowtok report`: what the log of a day or a week says, on one page."""

import contextlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from slowtok.config.settings import Settings
from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.render.console import json_text, plain
from slowtok.proxy.cli.report import html, text
from slowtok.proxy.cli.report.choice import BadPeriod, Choice, Period, period_between
from slowtok.proxy.cli.report.summary import summarise
from slowtok.proxy.cli.report.tally import Tally
from slowtok.proxy.cli.running_proxy import NO_LOG_HINT, log_of
from slowtok.proxy.runtime.log_files import LogCheck, LogFile, NotASlowtokLogError, lines, open_log
from slowtok.proxy.runtime.state_dir import replace_file

DONE, FAILED, USAGE, NO_LOG = 0, 1, 2, 3
STEP_BYTES = 1_000_000  # between two moves of the bar
FILE_COLUMNS = 100
ALL = Choice()
Format = Literal["text", "json", "html"]
_NOT_COUNTED = (AttributeError, KeyError, TypeError, ValueError, OverflowError)


def run_report(
    settings: Settings,
    since: str,
    form: Format,
    output: Path | None,
    now: datetime | None = None,
    *,
    until: str | None = None,
    choice: Choice = ALL,
) -> int:
    """Write the report. Returns 2 for a time that is none, 3 where there is no log.

    Raises:
        SettingsError: the log goes to standard output, which cannot be read.
    """
    path = log_of(settings)
    try:
        period = period_between(since, until, now or datetime.now().astimezone())
        with open_log(path) as files:
            if not files:
                return complain(f"there is no log at {path}; {NO_LOG_HINT}", NO_LOG)
            report = make_report(files, period, choice)
    except NotASlowtokLogError as error:
        return complain(str(error), FAILED)
    except BadPeriod as error:
        which = "until" if until and str(error).startswith(repr(until)) else "since"
        return complain(f"--{which} {error}", USAGE)
    except OSError as error:
        return complain(f"{error.filename or path}: {error.strerror}", FAILED)
    return _put(report, "json" if settings.json_lines else form, output)


def make_report(files: Iterable[LogFile], period: Period, choice: Choice = ALL) -> dict[str, Any]:
    """Read the files of a log, the oldest first, and return the report on a period.

    Raises:
        NotASlowtokLogError: none of what was read is slowtok's.
    """
    meant = [f for f in files if f.written_unix_s >= period.before.since.timestamp()]
    now, before = Tally(zone=period.until.tzinfo), Tally(zone=period.until.tzinfo)
    bad_lines, check = 0, LogCheck()
    with _bar(sum(file.size_bytes for file in meant)) as advance:
        for file in meant:
            for line in lines(file, advance):
                bad_lines += not _count(check.entry(line), period, choice, now, before)
    if meant:
        check.raise_if_foreign(meant[-1].path)
    return summarise(period, now, before, choice=choice, bad_lines=bad_lines)


def _count(
    record: dict[str, Any] | None, period: Period, choice: Choice, now: Tally, before: Tally
) -> bool:
    """Count an entry where it belongs; False where its line could not be read."""
    if record is None:
        return False
    if record["event"] != "request":
        return True
    try:
        at = datetime.fromisoformat(record["ts"])
        if not choice.holds(record):
            return True
        if period.holds(at):
            now.add(record, at)
        elif period.before.holds(at):
            before.add(record, at)
    except _NOT_COUNTED:
        return False
    return True


def _put(report: dict[str, Any], form: Format, output: Path | None) -> int:
    said = _formed(report, form)
    if output is not None:
        if not output.absolute().parent.is_dir():
            return complain(f"--output {output}: no such folder", USAGE)
        try:
            replace_file(output, (said + "\n").encode("utf-8", "replace"))
        except OSError as error:
            return complain(f"--output {output}: {error.strerror}", FAILED)
        sys.stderr.write(f"slowtok: written to {plain(str(output))}\n")
    elif form == "text":
        Console(highlight=False).print(text.page(report))
    else:
        sys.stdout.write(said + "\n")
    return DONE


def _formed(report: dict[str, Any], form: Format) -> str:
    if form == "json":
        return json_text(report)
    if form == "html":
        return html.page(report)
    console = Console(highlight=False, width=FILE_COLUMNS, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(text.page(report))
    return captured.get().rstrip("\n")


@contextlib.contextmanager
def _bar(total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show how much of the log was read, where there is a terminal."""
    screen = Console(stderr=True, highlight=False)
    bar = Progress(
        TextColumn("reading the log"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=total_bytes)
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if done >= STEP_BYTES:
                bar.advance(task, done)
                done = 0

        yield advance
