"""The log: JSON lines, one a request and one for whatever else happens."""

from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from fakes.cases import healthy
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.log import Log, to_json
from slowtok.proxy.outputs.record import make_record
from slowtok.proxy.runtime.background_writer import BackgroundWriter


def written(*, request: bool = False, **event: Any) -> list[dict[str, Any]]:
    lines: list[str] = []
    log = Log(BackgroundWriter(lines.append))
    if request:
        log(healthy(), diagnose(healthy()), make_record(healthy(), diagnose(healthy())))
    if event:
        log.event("engine-found", **event)
    log.writer.close()
    assert all("\n" not in line for line in lines)
    return [orjson.loads(line) for line in lines]


def test_record_is_written_as_it_is() -> None:
    assert written(request=True) == [make_record(healthy(), diagnose(healthy()))]


def test_event_has_its_time_and_what_is_known() -> None:
    [event] = written(engine="llama-server:8080", version=None, models=["a\nb"])

    assert len(event.pop("ts")) == len(make_record(healthy(), None)["ts"]), "one format for all"
    assert event == {"event": "engine-found", "engine": "llama-server:8080", "models": ["a\nb"]}


def test_times_can_be_read() -> None:
    [event] = written(engine="x")

    assert datetime.fromisoformat(event["ts"]).utcoffset() is not None


def test_what_json_does_not_know_is_written_as_text() -> None:
    assert to_json({"path": Path("/x")}) == '{"path":"/x"}'
