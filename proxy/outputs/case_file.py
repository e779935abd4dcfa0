"""Writes and reads case files: a case as JSON, with the record that was made of it.

The format is in docs/case-files.md: the fields of `Case`, and `recorded`, the record made by the
slowtok that wrote the file. A file holds one case, or one case per line.

Reading is strict about invalid values, but ignores unknown fields: a field of a newer slowtok is
skipped and reported, because a bug report must not be lost over it.
"""

import dataclasses
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from pydantic import TypeAdapter, ValidationError

from slowtok.detectors.case.case import SCHEMA, Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.runtime.background_writer import BackgroundWriter
from slowtok.proxy.runtime.version import own_version

# Ten minutes of samples of eight GPUs are about 60 MB; twice that is no case. Heuristic.
MAX_CASE_BYTES = 128 * 2**20
MAX_BAD_LINES = 5  # with no case among them it is some other file; heuristic
RECORDED = "recorded"
_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 4096

MAX_QUEUED_CASES = 100  # each holds its samples: up to a few hundred KiB


class CaseError(ValueError):
    """The bytes are no case that this version can read; the text is the reason, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCase:
    """A case read from a file.

    `record` is what the version `slowtok` made of it; both are None if the file lacks them.
    `unknown` names the fields that this version does not know.
    """

    case: Case
    line: int | None = None
    record: Mapping[str, Any] | None = None
    slowtok: str | None = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BadCase:
    """A line that could not be read as a case; the whole file if `line` is None."""

    line: int | None
    reason: str


def dump_case(case: Case, record: Mapping[str, Any], version: str | None) -> bytes:
    """Return the file content of one case with its record; `version` is the writing slowtok's.

    Raises:
        TypeError: a value cannot be represented in JSON.
    """
    members = {field.name: getattr(case, field.name) for field in dataclasses.fields(case)}
    return orjson.dumps({**members, RECORDED: {"slowtok": version, "record": record}}) + b"\n"


def read_cases(file: BinaryIO) -> Iterator[RecordedCase | BadCase]:
    """Yield the cases of a file, one or one per line, and what could not be read.

    Raises:
        OSError: the file cannot be read any further.
    """
    lines = _lines(file)
    number, first = next(lines, (0, b""))
    if not first:
        yield BadCase(line=None, reason="it is empty")
    elif _is_binary(first):
        yield BadCase(line=None, reason="not UTF-8 text; is it compressed?")
    elif first.rstrip()[-1:] in b"{[,":  # one object over many lines
        yield _case_or_not(None, first + file.read(MAX_CASE_BYTES))
    else:
        yield from _line_by_line(itertools.chain([(number, first)], lines))


def parse_case(text: bytes) -> RecordedCase:
    """Parse one case.

    Raises:
        CaseError: it is no case, or one that this version cannot read.
    """
    raw = _json(text)
    _check_schema(raw)
    recorded_raw = raw.pop(RECORDED, None)
    recorded = recorded_raw if isinstance(recorded_raw, dict) else {}
    record, version = recorded.get("record"), recorded.get("slowtok")
    try:
        case = _reader().validate_python(raw)
    except ValidationError as error:
        raise CaseError(_describe_error(error)) from None
    return RecordedCase(
        case=case,
        record=record if isinstance(record, dict) else None,
        slowtok=version if isinstance(version, str) else None,
        unknown=tuple(dict.fromkeys(_unknown(raw, case))),
    )


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each non-empty line with its number; only the begin of one that is too long."""
    number = 0
    while line := file.readline(MAX_CASE_BYTES + 1):
        number += 1
        if line.strip():
            yield number, line
        while len(line) > MAX_CASE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MAX_CASE_BYTES + 1)


def _line_by_line(lines: Iterator[tuple[int, bytes]]) -> Iterator[RecordedCase | BadCase]:
    bad, any_good = 0, False
    for number, line in lines:
        found = _case_or_not(number, line)
        yield found
        any_good = any_good or isinstance(found, RecordedCase)
        bad += isinstance(found, BadCase)
        if bad >= MAX_BAD_LINES and not any_good:
            yield BadCase(line=number, reason=f"no case in {bad} lines: the rest was not read")
            return


def _case_or_not(line: int | None, text: bytes) -> RecordedCase | BadCase:
    try:
        return dataclasses.replace(parse_case(text), line=line)
    except CaseError as error:
        return BadCase(line=line, reason=str(error))


def _is_binary(first: bytes) -> bool:
    head = first[:_HEAD_BYTES]
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start < len(head) - 3  # the cut may have hit a character
    return b"\0" in head


def _json(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_CASE_BYTES:
        raise CaseError(f"larger than {MAX_CASE_BYTES // 2**20} MiB, so it is not a case file")
    try:
        raw = orjson.loads(text.removeprefix(_BOM))
    except orjson.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}" if b"\n" in text.strip() else ""
        at = at or f"column {error.colno}"
        raise CaseError(f"not JSON, or cut short: {error.msg} at {at}") from None
    if not isinstance(raw, dict):
        raise CaseError("expected a JSON object")
    if raw.get("event") is not None and "timeline" not in raw:
        raise CaseError("a line of the log, not a case; `slowtok serve --record DIR` writes cases")
    return raw


def _check_schema(raw: Mapping[str, Any]) -> None:
    schema = raw.get("schema")
    if schema is None:
        raise CaseError("not a case file: it has no `schema`")
    if type(schema) is int and schema > SCHEMA:
        raise CaseError(f"schema {schema} is of a newer slowtok; this one reads schema {SCHEMA}")
    if type(schema) is not int or schema != SCHEMA:
        raise CaseError(f"schema {str(schema)[:20]} is not known; this one reads schema {SCHEMA}")


@cache
def _reader() -> TypeAdapter[Case]:
    return TypeAdapter(Case)


def _describe_error(error: ValidationError) -> str:
    """Describe the first invalid field, and count the others."""
    first, *others = error.errors(include_url=False, include_input=False)
    name = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
    description = f"{name.removeprefix('.')}: {first['msg'][0].lower()}{first['msg'][1:]}"
    return f"{description} (and {len(others)} more)" if others else description


def _unknown(raw: Any, read: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of fields in `raw` that the parsed case does not have."""
    if isinstance(raw, list) and isinstance(read, tuple):
        for raw_item, read_item in zip(raw, read, strict=True):
            yield from _unknown(raw_item, read_item, f"{prefix}[]")
    elif isinstance(raw, dict) and not isinstance(read, dict):
        for name, value in raw.items():
            path = f"{prefix}.{name}" if prefix else name
            if name not in read.__dataclass_fields__:
                yield path
            elif isinstance(value, (dict, list)):
                yield from _unknown(value, getattr(read, name), path)


class Recorder:
    """Writes one JSON file per request, readable by its owner only; it has no prompt and no key.

    Raises:
        OSError: the directory cannot be created, or no file can be created in it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._version = own_version()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=directory):
            pass
        self.writer = BackgroundWriter(self._write, max_queued=MAX_QUEUED_CASES)

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Write the case of a diagnosed request."""
        if diagnosis is not None:
            self.writer.write((case, record))

    def _write(self, item: tuple[Case, dict[str, Any]]) -> None:
        case, record = item
        content = dump_case(case, record, self._version)
        path = self._directory / f"{case.timeline.request_id}.json"  # an ID of our own making
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        except OSError:  # the disk is full: half a case is none
            path.unlink(missing_ok=True)
            raise
