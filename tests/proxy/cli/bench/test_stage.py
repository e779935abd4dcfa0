"""A benchmark that came to nothing leaves nothing behind; what was there stays."""

from pathlib import Path

import pytest

from slowtok.config.settings import Settings, load
from slowtok.proxy.cli.bench.stage import no_empty_traces
from slowtok.proxy.runtime.state_dir import CLAIM_FILE, claimed


def settings(state: Path) -> Settings:
    return load({"state_dir": str(state)}, {})


def serve(state: Path, logged: str = "") -> None:
    """Leave what a slowtok leaves that has run there."""
    with claimed(state, "me"):
        (state / "log.jsonl").write_text(logged, "utf-8")


def test_nothing_is_left(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with no_empty_traces(settings(state)):
        serve(state)

    assert not state.exists()


def test_a_log_with_something_in_it_stays(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with no_empty_traces(settings(state)):
        serve(state, "{}\n")

    assert (state / "log.jsonl").read_text("utf-8") == "{}\n"
    assert (state / CLAIM_FILE).exists()


def test_what_was_there_stays(tmp_path: Path) -> None:
    serve(tmp_path)
    with no_empty_traces(settings(tmp_path)):
        serve(tmp_path)

    assert (tmp_path / "log.jsonl").exists()


def test_a_directory_that_somebody_else_uses_by_now_stays(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with no_empty_traces(settings(state)):
        serve(state)
        other = claimed(state, "another")
        other.__enter__()
    try:
        assert (state / CLAIM_FILE).exists()
    finally:
        other.__exit__(None, None, None)


def test_it_is_cleaned_up_after_a_failure(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with pytest.raises(RuntimeError), no_empty_traces(settings(state)):  # noqa: PT012
        serve(state)
        raise RuntimeError

    assert not state.exists()
