"""The key under which foreign ids are hashed: kept, so that a run goes on after a restart."""

import contextlib
import os
from pathlib import Path

from slowtok.proxy.runs.book import KEY_BYTES
from slowtok.proxy.runtime.state_file import replace_file

NAME = "runs.key"


def run_key(state_dir: Path) -> bytes:
    """Return the key of a state directory, drawn at the first call.

    One that cannot be kept holds for this process alone: runs begin anew after a restart.
    """
    path = state_dir / NAME
    with contextlib.suppress(OSError):
        kept = path.read_bytes()
        if len(kept) == KEY_BYTES:
            return kept
    drawn = os.urandom(KEY_BYTES)
    with contextlib.suppress(OSError):
        replace_file(path, drawn)
    return drawn
