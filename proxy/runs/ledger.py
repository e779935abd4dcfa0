"""The runs that were seen or that a log tells of, newest first, and each one in full: bounded."""

import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from slowtok.proxy.runs.account import Json, account, summary
from slowtok.proxy.runs.turn import NoTurn, Turn, turn_of
from slowtok.proxy.runtime.log_files import LogCheck, lines, log_paths, open_log

KEEP_TURNS = 4096  # of all runs, about 2 KiB each
KEEP_TURNS_OF_ONE = 2048
MAX_LISTED = 200
MIN_ID_CHARS = 4  # of an id that is given by its begin or end alone
NEWEST = "last"

NEWEST_BYTES = 4 * 1024 * 1024  # about a thousand records; read before the start
_HAS_RUN = b'"run":'


class Ledger:
    """Keeps the turns of runs by run, the one that was asked last at the end."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, list[Turn]] = OrderedDict()
        self._turns = 0

    def add(self, record: Mapping[str, Any]) -> None:
        """Take up the turn that a record tells of; a record of no run is left out."""
        if "run" not in record:
            return
        try:
            turn = turn_of(record)
        except NoTurn:
            return
        turns = self._runs.setdefault(turn.run, [])
        self._runs.move_to_end(turn.run)
        turns.append(turn)
        self._turns += 1
        if len(turns) > KEEP_TURNS_OF_ONE:
            del turns[0]
            self._turns -= 1
        while self._turns > KEEP_TURNS and len(self._runs) > 1:
            self._turns -= len(self._runs.popitem(last=False)[1])

    def newest_first(self, live: Iterable[Turn] = (), limit: int = MAX_LISTED) -> list[Json]:
        """Return the runs in short; one guessed run of one request is a request, and left out."""
        runs = [turns for turns in self._with(live).values() if is_run(turns)]
        runs.sort(key=lambda turns: max(turn.started_s for turn in turns), reverse=True)
        return [summary(turns) for turns in runs[:limit]]

    def one(self, wanted: str, live: Iterable[Turn] = ()) -> Json | None:
        """Return one run in full: by its id, or a part of it, by its name, or the newest."""
        runs = self._with(live)
        turns = runs.get(wanted) or _meant(runs, wanted)
        return account(turns) if turns else None

    def _with(self, live: Iterable[Turn]) -> dict[str, Sequence[Turn]]:
        runs: dict[str, Sequence[Turn]] = dict(self._runs)
        for turn in live:
            done = runs.get(turn.run, ())
            if all(other.request != turn.request for other in done):
                runs[turn.run] = [*done, turn]
        return runs


def is_run(turns: Sequence[Turn]) -> bool:
    """Return True if requests are a run: several, or one that has a name or a client's number."""
    return len(turns) > 1 or turns[0].by != "prompt"


def _meant(runs: Mapping[str, Sequence[Turn]], wanted: str) -> Sequence[Turn] | None:
    """Return the newest run that is meant.

    By `last`, its name, either end of its id, or the id of one of its requests or the end of one.
    """
    newest = sorted(runs.values(), key=lambda turns: max(t.started_s for t in turns), reverse=True)
    if wanted == NEWEST:
        return next((turns for turns in newest if is_run(turns)), None)
    for turns in newest:
        if any(wanted in (turn.name, turn.request) for turn in turns):
            return turns
    if len(wanted) < MIN_ID_CHARS:
        return None
    found = itertools.chain(
        (turns for turns in newest if turns[0].run.startswith(wanted)),
        (turns for turns in newest if turns[0].run.endswith(wanted)),
        (turns for turns in newest if any(turn.request.endswith(wanted) for turn in turns)),
    )
    return next(found, None)


def newest_records(path: Path, most_bytes: int = NEWEST_BYTES) -> list[dict[str, Any]]:
    """Return the records of runs at the end of a log, the oldest first; none where it is not."""
    found: list[dict[str, Any]] = []
    left = most_bytes
    try:
        for one in reversed(log_paths(path)):
            if left <= 0:
                break
            if not one.is_file():  # a device or a pipe would be read for ever
                continue
            with one.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - left, 0))
                if size > left:
                    file.readline()
                found = [record for line in file if (record := _record(line))] + found
            left -= size
    except OSError:
        return found
    return found


def run_records(path: Path, advance: Callable[[int], None]) -> Iterator[dict[str, Any]]:
    """Yield each record of a run in a log and its rotated files, the oldest first.

    Raises:
        OSError: one of them cannot be read.
        NotASlowtokLogError: it is another kind of file.
    """
    check = LogCheck()
    with open_log(path) as files:
        for file in files:
            for line in lines(file, advance):
                if not check.own:  # one line of slowtok's is enough
                    check.entry(line)
                if line is not None and (record := _record(line)):
                    yield record
    check.raise_if_foreign(path)


def _record(line: bytes) -> dict[str, Any] | None:
    if _HAS_RUN not in line:
        return None
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    is_one = isinstance(found, dict) and found.get("event") == "request"
    return found if is_one and isinstance(found.get("run"), dict) else None
