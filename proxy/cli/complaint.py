"""The one line on standard error with which a command says why it did not do its work."""

import sys

from slowtok.proxy.cli.render.console import plain


def complain(said: str, code: int) -> int:
    """Write the line; returns the exit code, so that a command can end with it."""
    sys.stderr.write(plain(f"slowtok: {said}") + "\n")
    return code
