"""Removes the empty log and state directory that a failed benchmark leaves behind."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from slowtok.config.settings import Settings
from slowtok.proxy.runtime.state_dir import CLAIM_FILE, claimed


@contextlib.contextmanager
def no_empty_traces(settings: Settings) -> Iterator[None]:
    """Take an empty log away again, and a state directory with nothing else in it.

    What was there before the block stays, and so does what somebody else uses by now.
    """
    state, log = settings.state_path, settings.log_path
    had_state, had_log = state.exists(), log is None or log.exists()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if log is not None and not had_log and not log.stat().st_size:
                log.unlink()
        if not had_state:
            _take_away(state)


def _take_away(state: Path) -> None:
    with contextlib.suppress(OSError):
        if [one.name for one in state.iterdir()] != [CLAIM_FILE]:
            return
        with claimed(state, "nobody") as other:
            if other is None:
                (state / CLAIM_FILE).unlink()
                state.rmdir()
