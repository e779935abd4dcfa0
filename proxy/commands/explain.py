"""`slowtok explain [ID]`: one request in full, from the running proxy or from its log."""

import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from rich.console import Console

from slowtok.config.settings import Settings
from slowtok.proxy.outputs.console import explanation

TIMEOUT_S = 2.0


def run_explain(settings: Settings, request_id: str | None) -> int:
    """Print one request, the newest diagnosed one where no id is given. Returns the exit code."""
    record = _from_proxy(settings, request_id) or _from_log(settings.log_path, request_id)
    if record is None:
        what = f"no request with id {request_id}" if request_id else "no diagnosed request"
        sys.stderr.write(
            f"slowtok: {what}, neither at {settings.listen} nor in {settings.log_path}\n"
        )
        return 1
    if settings.json_lines:
        sys.stdout.write(orjson.dumps(record, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        Console(highlight=False).print(explanation(record))
    return 0


def _from_proxy(settings: Settings, request_id: str | None) -> dict[str, Any] | None:
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{settings.port}/slowtok/requests"
    if request_id:
        url += f"/{quote(request_id, safe='')}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as reply:
            found = orjson.loads(reply.read())
    except (OSError, urllib.error.URLError, orjson.JSONDecodeError):
        return None
    records = found if isinstance(found, list) else [found]
    return next((r for r in records if request_id or "verdict" in r), None)


def _from_log(path: Path | None, request_id: str | None) -> dict[str, Any] | None:
    if path is None:
        return None
    newest = None
    try:
        with path.open("rb") as file:
            for line in file:
                record = _diagnosed(line)
                if record and request_id in (None, record.get("id")):
                    newest = record
    except OSError:
        return None
    return newest


def _diagnosed(line: bytes) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and "verdict" in record else None
