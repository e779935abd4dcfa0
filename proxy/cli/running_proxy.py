"""The slowtok that runs: its own pages, and whose log and state a command reads.

Those that were named, else its own. A slowtok may keep them anywhere, as the demo does; the one at
`listen` tells where.
"""

import errno
import os
import re
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal

import orjson
import psutil

from slowtok.config.settings import Settings
from slowtok.proxy.cli.render.console import plain
from slowtok.proxy.runtime.log_files import log_paths

STANDARD_OUTPUT = "-"
NO_LOG_HINT = (
    "`slowtok serve` writes one; name another with --log FILE, or a running slowtok with "
    "--listen HOST:PORT"
)
_NAME = re.compile(r"[A-Za-z0-9._-]+")

TIMEOUT_S = 2.0
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""What stands for every address of this machine, and the address by which itself reaches it."""


class NoLog(Exception):
    """There is no log to look anything up in, or it cannot be read. The text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The slowtok that runs: where it is, where it keeps things, and its engines as upstreams.

    `log` is None where it writes to standard output, `ram_bytes_per_s` where the bandwidth of RAM
    is not measured yet.
    """

    address: str
    state_dir: str
    log: Path | None
    upstream: tuple[str, ...]
    ram_bytes_per_s: float | None = None
    ram_source: Literal["given", "measured"] | None = None


def running_at(settings: Settings) -> Running | None:
    """Return the slowtok at `listen`; None where there is none, or one that does not tell."""
    try:
        status = read_page(settings, "status")
        log = str(status["log"])
        return Running(
            address=own_address(settings),
            state_dir=str(status["state_dir"]),
            log=None if log == STANDARD_OUTPUT else Path(log),
            upstream=tuple(_upstream(engine) for engine in status["engines"]),
            ram_bytes_per_s=_number(status["machine"].get("ram_bandwidth_bytes_per_s")),
            ram_source=_source(status["machine"].get("ram_bandwidth_source")),
        )
    except (NotThere, AttributeError, KeyError, TypeError, ValueError):
        return None


def log_of(settings: Settings) -> Path:
    """Return the log to read, and say on standard error where it is not the usual one.

    Raises:
        SettingsError: the log that is meant goes to standard output, which cannot be read again.
    """
    path, found = log_and_whose(settings)
    if path is None:
        whose = "the log" if found is None else f"the log of the slowtok at {found.address}"
        raise settings.fault(
            "log",
            f"{whose} goes to standard output and cannot be read again; name a file with --log",
        )
    if found is not None and path != settings.log_path:
        say_whose("log", str(path), found)
    elif found is None and settings.is_given("listen") and not _is_named(settings):
        _say(f"log: {path} (no slowtok answers at {settings.listen}, so it may be another's)")
    return path


def log_and_whose(settings: Settings) -> tuple[Path | None, Running | None]:
    """Return the log that is meant, and the running slowtok where it is its own."""
    found = None if _is_named(settings) else running_at(settings)
    return (settings.log_path if found is None else found.log), found


def log_to_search(settings: Settings) -> Path | None:
    """Return the log that is meant; None where a running slowtok has not written one to a file.

    Says on standard error where it is read because no slowtok answers.

    Raises:
        NoLog: there is none, and no slowtok that could have answered in its place.
    """
    path, found = log_and_whose(settings)
    if path is None:
        if found is None and running_at(settings) is None:
            elsewhere = "the log goes to standard output; name a log file with --log FILE"
            raise NoLog(f"no slowtok answers at {settings.listen}, and {elsewhere}")
        return None
    if log_paths(path):
        if found is None and not _is_named(settings):
            _say(f"log: {path} (no slowtok answers at {settings.listen})")
        return path
    if found is not None:
        return None
    nobody = "" if names_a_log(settings) else f"no slowtok answers at {settings.listen}, and "
    raise NoLog(f"{nobody}there is no log at {path}; {NO_LOG_HINT}")


def names_a_log(settings: Settings) -> bool:
    """Return True if a log was named that can be read: then no other one is meant."""
    return _is_named(settings) and settings.log_path is not None


def with_state_of(settings: Settings, found: Running | None) -> Settings:
    """Return the settings with the running slowtok's state directory, where none was named."""
    if found is None or settings.is_given("state_dir"):
        return settings
    return settings.model_copy(update={"state_dir": found.state_dir})


def say_whose(what: str, where: str, found: Running) -> None:
    """Say on standard error what was used that nobody named."""
    _say(f"{what}: {where} (of the slowtok at {found.address})")


def _say(what: str) -> None:
    sys.stderr.write(plain(what) + "\n")


def _is_named(settings: Settings) -> bool:
    return settings.is_given("log") or settings.is_given("state_dir")


def _number(told: Any) -> float | None:
    return float(told) if isinstance(told, int | float) and told > 0 else None


def _source(told: Any) -> Literal["given", "measured"] | None:
    return told if told in ("given", "measured") else None


def _upstream(engine: Any) -> str:
    name, url = str(engine.get("name") or ""), str(engine["url"])
    return f"{name}={url}" if _NAME.fullmatch(name) else url


class NotThere(Exception):
    """The page could not be had; the text says why, in one line."""


def own_address(settings: Settings) -> str:
    """Return host and port at which a client on this machine reaches the proxy."""
    host = EVERYWHERE.get(settings.host, settings.host)
    return f"{f'[{host}]' if ':' in host else host}:{settings.port}"


def read_page(settings: Settings, path: str) -> Any:
    """Return what a path under `/slowtok/` gives, as plain values.

    Raises:
        NotThere: nobody listens, it does not answer in time, or somebody else is there.
    """
    url = f"http://{own_address(settings)}/slowtok/{path}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    key = settings.api_key.get_secret_value()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with opener.open(request, timeout=TIMEOUT_S) as reply:
            return orjson.loads(reply.read())
    except TimeoutError:
        raise NotThere(f"{settings.listen} did not answer within {TIMEOUT_S:g} s") from None
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise NotThere(_key_refused(settings, key)) from None
        said = _own_words(error)
        raise NotThere(
            not_slowtok(settings) if said is None else f"slowtok at {settings.listen}: {said}"
        ) from None
    except (HTTPException, ValueError):
        raise NotThere(not_slowtok(settings)) from None
    except OSError as error:
        reason = getattr(error, "reason", error)  # urllib wraps what the system said
        if isinstance(reason, TimeoutError):
            raise NotThere(f"{settings.listen} did not answer within {TIMEOUT_S:g} s") from None
        why = getattr(reason, "strerror", None) or type(reason).__name__
        raise NotThere(
            f"no slowtok answers at {settings.listen} ({why}); start one with `slowtok serve`, or "
            "name another address with --listen HOST:PORT"
        ) from None


def _own_words(error: urllib.error.HTTPError) -> str | None:
    """Return what slowtok said of its error; None where it is not slowtok that answered."""
    try:
        told = orjson.loads(error.read())["error"]
        return str(told["message"]) if told["type"] == "slowtok_error" else None
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None


def _key_refused(settings: Settings, key: str) -> str:
    if key:
        return (
            f"the API key that was given is not that of {settings.listen}: set SLOWTOK_API_KEY to "
            "its key"
        )
    return f"{settings.listen} requires an API key: set SLOWTOK_API_KEY to it"


def not_slowtok(settings: Settings) -> str:
    """Return the words for somebody else at `listen`, and what to do."""
    return (
        f"what listens at {settings.listen} is not slowtok; name slowtok's address with "
        "--listen HOST:PORT"
    )


# Finds who listens at a port that is taken, as far as this user may see.

IN_USE = frozenset({errno.EADDRINUSE})


def why_not(error: OSError | UnicodeError, port: int) -> str:
    """Return why a port cannot be had, by whom it is held, and what to do."""
    said = getattr(error, "strerror", None) or type(error).__name__
    if getattr(error, "errno", None) not in IN_USE:
        return f"cannot be used: {said}"
    holder = holder_of(port)
    by = f" by {holder}" if holder else ""
    return f"cannot be used: {said}{by}; --listen HOST:PORT takes another port"


def holder_of(port: int) -> str | None:
    """Return the program that listens there and its process, None where that cannot be seen."""
    try:
        found = (
            c.pid
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port
        )
        pid = next((pid for pid in found if pid), None)
        if pid is None:
            return None
        process = psutil.Process(pid)
        if not _is_slowtok(process):
            return f"{process.name()} (process {pid})"
        while (parent := process.parent()) is not None and _is_slowtok(parent):
            process = parent  # signals are for the first of them
        return f"another slowtok (process {process.pid})"
    except (psutil.Error, OSError):
        return None


def _is_slowtok(process: psutil.Process) -> bool:
    words = {os.path.basename(word) for word in process.cmdline()}  # noqa: PTH119 - bare text
    return not words.isdisjoint(("slowtok", "slowtok.proxy", "slowtok.proxy.workers"))
