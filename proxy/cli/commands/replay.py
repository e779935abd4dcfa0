"""`slowtok replay FILE...`: recorded cases, diagnosed again by this version.

Judgement, detectors, ranking and budget are done again. What is in the case stays as it was
recorded, the expectation too, unless it is asked for anew.
"""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from slowtok.config.settings import Settings
from slowtok.detectors.case.case import Case
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.detectors.expectation.envelope import with_expectation
from slowtok.proxy.cli.render.console import VERDICT_STYLES, plain
from slowtok.proxy.cli.render.explanation import explanation
from slowtok.proxy.observe import runs
from slowtok.proxy.outputs.case_file import BadCase, RecordedCase, read_cases
from slowtok.proxy.outputs.record import known, make_record

STDIN = "-"
SUFFIXES = (".json", ".jsonl")

Record = dict[str, Any]


def run_replay(
    settings: Settings,
    names: list[str],
    *,
    expect_again: bool,
    ram_bytes_per_s: float | None = None,
) -> int:
    """Diagnose the cases in files, directories and standard input again, and print them.

    `ram_bytes_per_s` is how fast the recorded machine reads its RAM: the expectation then follows
    from it. Returns 1 where something could not be read or diagnosed; the rest is done all the
    same.
    """
    printer = _Printer(json=settings.json_lines)
    paths = [path for name in names for path in _files(name)]
    with printer.bar as bar:
        task = bar.add_task("", total=_size_bytes(paths))
        for where, found in _cases(paths, lambda count: bar.advance(task, count)):
            if isinstance(found, BadCase):
                printer.complain(where, found.reason)
                continue
            try:
                record = replayed(
                    found,
                    settings.disable,
                    expect_again=expect_again,
                    ram_bytes_per_s=ram_bytes_per_s,
                )
            except Exception as error:  # noqa: BLE001 - values that no request could have had
                printer.complain(where, f"cannot be diagnosed: {type(error).__name__}")
            else:
                printer.show(record)
    printer.sum_up()
    return 1 if printer.unreadable else 0


def replayed(
    found: RecordedCase,
    disabled: Collection[str],
    *,
    expect_again: bool,
    ram_bytes_per_s: float | None = None,
) -> Record:
    """Return the record that this version makes of a case; `replay` in it says what changed."""
    case = found.case
    if ram_bytes_per_s is not None:
        case, expect_again = _with_ram(case, ram_bytes_per_s), True
    case = with_expectation(case) if expect_again else case
    was = found.record
    record = make_record(case, diagnose(case, disabled=disabled))
    record |= {name: was[name] for name in runs.FIELDS if was and name in was}
    record["replay"] = known(
        {
            "recorded_by": found.slowtok,
            "was": was and _judged(was),
            "changed": None if was is None else _changed(was, orjson.loads(orjson.dumps(record))),
            "expected_again": expect_again or None,
            "unknown_fields": list(found.unknown) or None,
        }
    )
    return record


def _with_ram(case: Case, bytes_per_s: float) -> Case:
    device = replace(
        case.device, ram_bandwidth_bytes_per_s=bytes_per_s, ram_bandwidth_source="given"
    )
    return replace(case, device=device)


def replay_line(record: Record) -> Text:
    """Return the line of one case: what it was called, and what it is called now."""
    rate = record.get("rate", {}).get("decode_tps")
    model = plain(str(record.get("model") or "?"))
    speed = "no rate" if rate is None else f"{rate:.1f}/s"
    line = Text(f"{plain(record['id'])}  {model}  {speed}  ", end="")
    was, changed = record["replay"].get("was"), record["replay"].get("changed")
    now = _judged(record)
    if was is None:
        line.append("not recorded -> ", "dim")
    elif was != now:
        line.append_text(_words(was)).append(" -> ")
    line.append_text(_words(now))
    if changed:
        line.append(f"  (changed: {', '.join(changed)})", "dim")
    elif was is not None:
        line.append("  (as recorded)", "dim")
    return line


class _Printer:
    """What people, or programs, see of it."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._screen = Console(highlight=False, soft_wrap=True)
        self._errors = Console(highlight=False, soft_wrap=True, stderr=True)
        self._said: set[str] = set()
        self._last: Record = {}
        self._cases = 0
        self._changed = 0
        self.unreadable = 0
        at = self._screen if self._screen.is_terminal else self._errors
        self.bar = Progress(
            TextColumn("diagnosing"),
            BarColumn(),
            TaskProgressColumn(),
            console=at,
            transient=True,
            disable=not at.is_terminal,
        )

    def show(self, record: Record) -> None:
        """Print one case."""
        self._cases += 1
        self._changed += bool(record["replay"].get("changed"))
        self._last = record
        if hidden := record["replay"].get("unknown_fields"):
            version = record["replay"].get("recorded_by", "another version")
            self._note(f"left out what slowtok {version} wrote: {', '.join(hidden)}")
        if self._json:
            self._screen.out(orjson.dumps(record).decode(), highlight=False)
        else:
            self._screen.print(replay_line(record))

    def complain(self, where: str, reason: str) -> None:
        """Name what could not be read."""
        self.unreadable += 1
        self._note(f"{where}: {reason}")

    def sum_up(self) -> None:
        """Print one case in full, of several how many there were."""
        if self._json:
            return
        if self._cases == 1:
            self._screen.print()
            Console(highlight=False).print(explanation(_printable(self._last)))
        elif self._cases:
            failed = f", {self.unreadable} could not be read" if self.unreadable else ""
            self._screen.print(f"{self._cases} cases, {self._changed} changed{failed}")

    def _note(self, text: str) -> None:
        """Say it on standard error, once."""
        line = plain(f"slowtok: {text}")
        if line not in self._said:
            self._said.add(line)
            self._errors.print(Text(line))


def _files(name: str) -> list[Path]:
    """Return the files that a name stands for; a directory's case files in order of their names."""
    path = Path(name)
    with contextlib.suppress(OSError):  # opening it says why
        if name != STDIN and path.is_dir():
            return sorted(p for p in path.iterdir() if p.suffix in SUFFIXES) or [path]
    return [path]


def _size_bytes(paths: list[Path]) -> int | None:
    """Return how much there is to read; None where it cannot be told."""
    with contextlib.suppress(OSError):
        return sum(path.stat().st_size for path in paths)
    return None


def _cases(
    paths: list[Path], advance: Callable[[int], None]
) -> Iterator[tuple[str, RecordedCase | BadCase]]:
    """Yield each case with its place, and call `advance` with the bytes read since."""
    for path in paths:
        name = "standard input" if str(path) == STDIN else str(path)
        try:
            for found, count in _in_one_line(_cases_of(path)):
                yield f"{name}, line {found.line}" if found.line else name, found
                advance(count)
        except IsADirectoryError:
            yield name, BadCase(line=None, reason="no case file (.json, .jsonl) in it")
        except OSError as error:
            yield name, BadCase(line=None, reason=error.strerror or type(error).__name__)


def _in_one_line(
    cases: Iterator[tuple[RecordedCase | BadCase, int]],
) -> Iterator[tuple[RecordedCase | BadCase, int]]:
    """Complain once of a file without a case; one that has any names each line that is none."""
    bad: list[tuple[RecordedCase | BadCase, int]] = []
    for found, count in cases:
        if isinstance(found, BadCase):
            bad.append((found, count))
            continue
        yield from [*bad, (found, count)]
        yield from cases
        return
    yield from bad[:1] if len(bad) < 2 else [(_no_case(bad[0][0]), sum(n for _, n in bad))]


def _no_case(first: RecordedCase | BadCase) -> BadCase:
    reason = first.reason if isinstance(first, BadCase) else ""
    return BadCase(line=None, reason=f"there is no case in it (line {first.line}: {reason})")


def _cases_of(path: Path) -> Iterator[tuple[RecordedCase | BadCase, int]]:
    if str(path) == STDIN:
        yield from ((found, 0) for found in read_cases(sys.stdin.buffer))
        return
    with path.open("rb") as file:
        read = 0
        for found in read_cases(file):
            begin, read = read, file.tell()
            yield found, read - begin


def _judged(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return verdict, phase and causes of a record, whoever wrote it."""
    findings = record.get("findings")
    listed = [f for f in findings if isinstance(f, dict)] if isinstance(findings, list) else []
    return {
        "verdict": str(record.get("verdict", "no verdict")),
        **({"phase": str(record["phase"])} if record.get("phase") else {}),
        "causes": [str(f.get("cause")) for f in listed if not f.get("informational")],
    }


def _changed(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in {**now, **was} if was.get(name) != now.get(name)]


def _words(judged: Mapping[str, Any]) -> Text:
    verdict = judged["verdict"]
    causes = ", ".join(judged["causes"])
    if verdict == "slow" and not causes:
        causes = "cause not visible"
    parts = (verdict, judged.get("phase"), causes)
    return Text(plain(" ".join(p for p in parts if p)), VERDICT_STYLES.get(verdict, ""))


def _printable(value: Any) -> Any:
    """Strip control characters at every depth: a case file may come from anybody."""
    if isinstance(value, dict):
        return {name: _printable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_printable(inner) for inner in value]
    return plain(value) if isinstance(value, str) else value
