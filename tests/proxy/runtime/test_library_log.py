"""What libraries log, as events."""

import logging
from typing import Any

import pytest

from slowtok.proxy.runtime.library_log import MAX_WARNINGS, LibraryLog


@pytest.mark.parametrize(
    ("logger", "event"),
    [
        ("aiohttp.server", "internal-error"),
        ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "export-failed"),
        ("opentelemetry.exporter.otlp.proto.grpc.exporter", "export-failed"),
    ],
)
def test_an_entry_is_an_event_without_its_text(logger: str, event: str) -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    log = LibraryLog(lambda name, **facts: logged.append((name, facts)))
    log.handle(logging.LogRecord(logger, logging.ERROR, "", 0, "the key is sk-1", None, None))

    assert logged == [(event, {"logger": logger, "error": None, "at": None})]


def test_what_a_module_of_slowtok_warns_of_is_told_once_in_its_words() -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    log = LibraryLog(lambda name, **facts: logged.append((name, facts)))
    for file in ("a", "b", "a"):
        entry = ("slowtok.x", logging.WARNING, "", 0, "%s cannot be read", (file,), None)
        log.handle(logging.LogRecord(*entry))

    assert logged == [("warning", {"said": f"{file} cannot be read"}) for file in ("a", "b")]


def test_how_many_warnings_there_may_be_is_bounded() -> None:
    logged: list[str] = []
    log = LibraryLog(lambda name, **_: logged.append(name))
    for number in range(10 * MAX_WARNINGS):
        log.handle(logging.LogRecord("slowtok.x", logging.WARNING, "", 0, f"{number}", None, None))

    assert len(logged) == MAX_WARNINGS


def test_an_error_in_slowtok_itself_is_told_by_its_place() -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    log = LibraryLog(lambda name, **facts: logged.append((name, facts)))
    error = ValueError("the key is sk-1")
    raised = (ValueError, error, None)
    log.handle(logging.LogRecord("slowtok.x", logging.ERROR, "", 0, "broke", None, raised))

    facts = {"logger": "slowtok.x", "error": "ValueError", "at": None}
    assert logged == [("internal-error", facts)]
