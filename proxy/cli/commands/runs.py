"""`slowtok runs` and `slowtok run [ID|last]`: agent runs, from the running proxy or its log."""

import os
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from rich.console import Console, RenderableType

from slowtok.config.settings import Settings
from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.render.console import json_text
from slowtok.proxy.cli.render.runs import run_page, runs_page
from slowtok.proxy.cli.running_proxy import NoLog, NotThere, log_to_search, names_a_log, read_page
from slowtok.proxy.runs.ledger import NEWEST, Ledger, run_records
from slowtok.proxy.runtime.log_files import NotASlowtokLogError

DONE, FAILED, NOWHERE = 0, 1, 3
FILE_COLUMNS = 140
NO_RUN_YET = "no run yet: a run is two requests that belong together, or one with a name"


def run_runs(settings: Settings) -> int:
    """Print the newest runs. Returns 1 where the log is no log, 3 where nothing can be read."""
    try:
        found = _from_proxy(settings, "runs")
        runs = _ledger(settings).newest_first() if found is None else found["runs"]
    except NoLog as reason:
        return complain(str(reason), NOWHERE)
    except NotASlowtokLogError as reason:
        return complain(str(reason), FAILED)
    return _put(settings, {"runs": runs}, lambda told, columns: runs_page(told["runs"], columns))


def run_run(settings: Settings, wanted: str) -> int:
    """Print one run in full. Returns 1 where there is none such, 3 where nothing can be read."""
    try:
        run = _from_proxy(settings, f"runs/{quote(wanted, safe='')}")
        run = _ledger(settings).one(wanted) if run is None else run
    except NoLog as reason:
        return complain(str(reason), NOWHERE)
    except NotASlowtokLogError as reason:
        return complain(str(reason), FAILED)
    if run is None:
        none_such = f"no run with id or name {wanted}; `slowtok runs` lists the runs"
        return complain(NO_RUN_YET if wanted == NEWEST else none_such, FAILED)
    return _put(settings, run, run_page)


def _from_proxy(settings: Settings, page: str) -> Any:
    """Return a page of the running proxy; None where a log is meant, or it has none such."""
    if names_a_log(settings):
        return None
    try:
        return read_page(settings, page)
    except NotThere:
        return None


def _ledger(settings: Settings) -> Ledger:
    """Return the runs that the log tells of.

    Raises:
        NoLog: there is none, or it cannot be read.
        NotASlowtokLogError: it is another kind of file.
    """
    path = log_to_search(settings)
    ledger = Ledger()
    if path is None:
        return ledger
    try:
        for record in run_records(path, lambda _: None):
            ledger.add(record)
    except OSError as error:
        raise NoLog(f"{error.filename or path}: {error.strerror}") from None
    return ledger


def _put(settings: Settings, told: Any, page: Callable[[Any, int], RenderableType]) -> int:
    if settings.json_lines:
        sys.stdout.write(json_text(told) + "\n")
        return DONE
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=FILE_COLUMNS)
    console.print(page(told, console.width))
    return DONE
