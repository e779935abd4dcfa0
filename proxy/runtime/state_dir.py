"""The state directory: files are replaced atomically, and a second slowtok using it is noticed.

A second one is reported but not forbidden. Both work, since the database allows several writers.
But two processes that rotate one log lose lines, and what one learns the other reads only at its
next start.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

CLAIM_FILE = "in-use"
MAX_CHARS = 200


@contextlib.contextmanager
def claimed(directory: Path, who: str) -> Iterator[str | None]:
    """Claim a state directory for the duration of the block; yields the other owner, or None.

    The system drops the claim with the process, however it ends. On Windows, and where nothing can
    be written, other owners are not noticed.
    """
    with contextlib.ExitStack() as opened:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(directory / CLAIM_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            yield None
            return
        opened.callback(os.close, file)
        if _is_ours(file):
            with contextlib.suppress(OSError):
                os.ftruncate(file, 0)
                os.write(file, who.encode("utf-8", "replace"))
            yield None
        else:
            yield os.read(file, MAX_CHARS).decode("utf-8", "replace") or "it has not said which"


def _is_ours(file: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: not known, so nobody is accused
        return True
    return True


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to a temporary file and rename it to `path`; a crash leaves the old file.

    Raises:
        OSError: the disk is full, or the directory cannot be created or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_suffix(".new")
    unfinished.touch(mode=0o600)
    unfinished.write_bytes(content)
    unfinished.replace(path)
