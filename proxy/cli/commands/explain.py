"""`slowtok explain [ID]`: one request in full, from the running proxy or from its log."""

import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console

from slowtok.config.settings import Settings
from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.render.console import SHORT_ID_CHARS, json_text
from slowtok.proxy.cli.render.explanation import explanation
from slowtok.proxy.cli.running_proxy import (
    NoLog,
    NotThere,
    log_and_whose,
    log_to_search,
    names_a_log,
    read_page,
)
from slowtok.proxy.runs.ledger import NEWEST
from slowtok.proxy.runtime.log_files import LogCheck, NotASlowtokLogError, log_paths

DONE, FAILED, NOWHERE = 0, 1, 3
_ODD_SHAPE = (AttributeError, KeyError, TypeError, ValueError)
ID_CHARS = 36


def run_explain(settings: Settings, request_id: str | None) -> int:
    """Print one request, the newest diagnosed one where no id is given. Returns the exit code.

    1 where there is no such request, or one that cannot be shown; 3 where neither a slowtok nor a
    log is there.
    """
    request_id = None if request_id == NEWEST else request_id
    try:
        record = _found(settings, request_id)
    except NotASlowtokLogError as reason:
        return complain(str(reason), FAILED)
    except NoLog as reason:
        return complain(str(reason), NOWHERE)
    if record is None:
        what = f"no request with id {request_id}" if request_id else "no diagnosed request"
        short = f"; a short id is the last {SHORT_ID_CHARS} characters of one, or more"
        hint = short if request_id else ""
        return complain(f"{what}{_looked_in(settings)}{hint}", FAILED)
    if settings.json_lines:
        sys.stdout.write(json_text(record) + "\n")
        return DONE
    try:
        shown = explanation(record)
    except _ODD_SHAPE:  # written by another version
        return complain("this slowtok cannot explain that record; --json shows it", FAILED)
    Console(highlight=False).print(shown)
    return DONE


def _found(settings: Settings, request_id: str | None) -> dict[str, Any] | None:
    """Return the request out of the log that was named, else of the running proxy or its log."""
    if names_a_log(settings):
        return _from_log(settings, request_id)
    return _from_proxy(settings, request_id) or _from_log(settings, request_id)


def _looked_in(settings: Settings) -> str:
    log = log_and_whose(settings)[0] or "a log"
    if names_a_log(settings):
        return f" in {log}"
    return f", neither at {settings.listen} nor in {log}"


def _from_proxy(settings: Settings, request_id: str | None) -> dict[str, Any] | None:
    """Return the request from the running proxy; by the end of its id among the newest ones."""
    pages = ["requests"] if request_id is None or len(request_id) < ID_CHARS else []
    if request_id is not None:
        pages.insert(0, f"requests/{quote(request_id, safe='')}")
    for page in pages:
        try:
            found = read_page(settings, page)
        except NotThere:
            continue
        records = found if isinstance(found, list) else [found]
        if meant := next((r for r in records if _is_meant(r, request_id)), None):
            return dict(meant)
    return None


def _from_log(settings: Settings, request_id: str | None) -> dict[str, Any] | None:
    """Return the newest one that is meant, out of the log and its rotated files.

    Raises:
        NoLog: there is none, or it cannot be read.
        NotASlowtokLogError: it is another kind of file.
    """
    path = log_to_search(settings)
    if path is None:
        return None
    check = LogCheck()
    for one in reversed(log_paths(path)):
        try:
            newest = _newest(one, request_id, check)
        except OSError as error:
            raise NoLog(f"{one}: {error.strerror}") from None
        if newest is not None:
            return newest
    check.raise_if_foreign(path)
    return None


def _newest(path: Path, request_id: str | None, check: LogCheck) -> dict[str, Any] | None:
    newest = None
    with path.open("rb") as file:
        for line in file:
            entry = check.entry(line)
            newest = entry if _is_meant(entry, request_id) else newest
    return newest


def _is_meant(record: Any, request_id: str | None) -> bool:
    """Return True if this is the record asked for; without an id, any that was diagnosed.

    An id may be given by its end alone, as `tail` shows it where there is little room.
    """
    if not isinstance(record, dict) or record.get("event") != "request":
        return False
    if request_id is None:
        return "verdict" in record
    name = str(record.get("id"))
    by_its_end = len(request_id) >= SHORT_ID_CHARS and name.endswith(request_id)
    return name == request_id or by_its_end
