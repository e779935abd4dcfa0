"""`slowtok explain [ID]`: one request in full, from the running proxy or from its log."""

import contextlib
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from rich.console import Console

from slowtok.config.settings import Settings
from slowtok.proxy.commands.own_page import NotThere, read_page
from slowtok.proxy.outputs.console import explanation, plain


def run_explain(settings: Settings, request_id: str | None) -> int:
    """Print one request, the newest diagnosed one where no id is given. Returns the exit code."""
    record = _from_proxy(settings, request_id) or _from_log(settings.log_path, request_id)
    if record is None:
        what = f"no request with id {request_id}" if request_id else "no diagnosed request"
        where = f"at {settings.listen} nor in {settings.log_path or 'a log'}"
        sys.stderr.write(plain(f"slowtok: {what}, neither {where}") + "\n")
        return 1
    if settings.json_lines:
        sys.stdout.write(orjson.dumps(record, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        Console(highlight=False).print(explanation(record))
    return 0


def _from_proxy(settings: Settings, request_id: str | None) -> dict[str, Any] | None:
    page = f"requests/{quote(request_id, safe='')}" if request_id else "requests"
    try:
        found = read_page(settings, page)
    except NotThere:
        return None
    records = found if isinstance(found, list) else [found]
    return next((r for r in records if _is_meant(r, request_id)), None)


def _from_log(path: Path | None, request_id: str | None) -> dict[str, Any] | None:
    if path is None:
        return None
    newest = None
    try:
        with path.open("rb") as file:
            for line in file:
                with contextlib.suppress(orjson.JSONDecodeError):
                    record = orjson.loads(line)
                    newest = record if _is_meant(record, request_id) else newest
    except OSError:
        return None
    return newest


def _is_meant(record: Any, request_id: str | None) -> bool:
    """Say whether this is the record asked for; without an id, any that was diagnosed."""
    if not isinstance(record, dict) or record.get("event") != "request":
        return False
    return "verdict" in record if request_id is None else record.get("id") == request_id
