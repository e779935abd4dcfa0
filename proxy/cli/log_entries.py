"""Lines of a log, told from those of a file that is none."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson


class Foreign(Exception):
    """A file that slowtok did not write. The text says so, in one line."""


@dataclass(slots=True)
class Reading:
    """What was read of a file: how many lines, and how many of them are slowtok's."""

    lines: int = 0
    own: int = 0

    def entry(self, line: bytes | None) -> dict[str, Any] | None:
        """Return what stands on a line; None where it is none of slowtok's."""
        self.lines += 1
        try:
            found = orjson.loads(line or b"")
        except orjson.JSONDecodeError:
            return None
        if not isinstance(found, dict) or "event" not in found:
            return None
        self.own += 1
        return found

    def check(self, path: Path) -> None:
        """Stop where nothing that was read is slowtok's; an empty log is one, too.

        Raises:
            Foreign: it is another kind of file.
        """
        if not self.own and (self.lines or _has_no_line(path)):
            count = f"{self.lines:,} line{'' if self.lines == 1 else 's'} read"
            raise Foreign(f"no line of {path} is a slowtok record ({count})")


def _has_no_line(path: Path) -> bool:
    """Say whether a file that gave no whole line begins otherwise than a line that is to come."""
    try:
        with path.open("rb") as file:
            return file.read(1) not in (b"", b"{")
    except OSError:
        return False
