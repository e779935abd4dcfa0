"""Finds places of a prompt that seem to change from call to call: times, numbers, identifiers.

Found by the digits in them. A mark says where one stands and of what kind it is; of its text there
is a hash only, as of all of a prompt.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from slowtok.detectors.case.case import DifferenceKind

MARKED_CHARS = 65_536  # a difference further on leaves most of a prompt in the cache
MAX_MARKS = 1024  # about 130 KiB
MIN_ID_CHARS = 5  # Claude Code's cch has five (musistudio/claude-code-router#1220)

_ATTRIBUTION = "x-anthropic-billing-header"
_TOKEN = re.compile(r"\d(?:[\w:./+-]|,(?=\d))*")
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_NAMED_BEFORE = re.compile(rf"\b(?:(?:{_DAYS})\w*[,.]? )?(?:(?:{_MONTHS})\w*\.? )?(?<=[\w,.] )$")
_NAMED_AFTER = re.compile(rf"(?:st|nd|rd|th)?\.? (?:{_MONTHS})")
_TIME = re.compile(
    r"\d{4}[-/.]\d\d?[-/.]\d\d?.*"  # 2026-11-20T07:00:00Z
    r"|\d\d?[-/.]\d\d?[-/.]\d{2,4}"  # 20.11.2026
    r"|\d\d?:\d\d.*"  # 07:00:01
    r"|1[6-9]\d{8}(?:\d{3})?(?:\.\d+)?"  # seconds or milliseconds since 1970
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*\w{0,2}")
_NAMED_CHARS = 24


class VolatileSpan(NamedTuple):
    """Something that may change, from `begin` to `end`, and the hash of its text."""

    begin: int
    end: int
    kind: DifferenceKind
    whole: int


def find_marks(text: str) -> tuple[VolatileSpan, ...]:
    """Return the first marks of a text, in order."""
    header = _attribution(text)
    marks = [] if header is None else [header]
    covered = 0
    for found in _TOKEN.finditer(text, 0, MARKED_CHARS):
        if len(marks) >= MAX_MARKS:
            break
        begin, end = found.span()
        if begin >= covered and (header is None or not header.begin <= begin < header.end):
            marks.append(_mark(text, begin, end, covered))
            covered = end
    return tuple(sorted(marks))


def kind_at(
    new: Iterable[VolatileSpan], old: Iterable[VolatileSpan], begin: int, end: int
) -> DifferenceKind | None:
    """Return the kind of what differs between two places; None where no mark does."""
    pairs = zip(_within(new, begin, end), _within(old, begin, end), strict=False)
    changed = next(((a, b) for a, b in pairs if a.whole != b.whole), None)
    return changed[0].kind if changed and changed[0].kind == changed[1].kind else None


def _within(marks: Iterable[VolatileSpan], begin: int, end: int) -> list[VolatileSpan]:
    return [mark for mark in marks if mark.begin < end and begin < mark.end]


def _attribution(text: str) -> VolatileSpan | None:
    begin = text.find(_ATTRIBUTION, 0, MARKED_CHARS)
    if begin < 0:
        return None
    end = text.find("\n", begin)
    return _made(text, begin, len(text) if end < 0 else end, "attribution-header")


def _mark(text: str, begin: int, end: int, after: int) -> VolatileSpan:
    """Mark the word around the digits at `begin`."""
    while begin > after and (text[begin - 1].isalnum() or text[begin - 1] in "_-"):
        begin -= 1
    word = text[begin:end].rstrip(".:/+-")
    if _TIME.fullmatch(word):
        return _made(text, _with_names(text, begin), end, "time")
    if not _NUMBER.fullmatch(word):
        return _made(text, begin, end, "id" if len(word) >= MIN_ID_CHARS else "number")
    named = _with_names(text, begin)
    is_date = named < begin or _NAMED_AFTER.match(text, end, end + _NAMED_CHARS)
    return _made(text, named, end, "time" if is_date else "number")


def _made(text: str, begin: int, end: int, kind: DifferenceKind) -> VolatileSpan:
    return VolatileSpan(begin, end, kind, hash(text[begin:end]))


def _with_names(text: str, begin: int) -> int:
    """Return where the names of a day and a month before `begin` begin, else `begin`."""
    found = _NAMED_BEFORE.search(text[max(begin - _NAMED_CHARS, 0) : begin])
    return begin if found is None else begin - len(found.group())
