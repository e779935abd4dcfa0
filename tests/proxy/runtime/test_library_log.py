"""What libraries log, as events."""

import logging
from typing import Any

import pytest

from slowtok.proxy.runtime.library_log import LibraryLog


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
