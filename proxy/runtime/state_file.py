"""A file in the state directory: readable by its owner only, and never seen half-written."""

from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` beside `path` and move it there; a crash leaves the old file.

    Raises:
        OSError: the disk is full, or the directory cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_suffix(".new")
    unfinished.touch(mode=0o600)
    unfinished.write_bytes(content)
    unfinished.replace(path)
