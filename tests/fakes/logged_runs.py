"""A log with agent runs in it, of records as slowtok writes them."""

from pathlib import Path

import orjson

from fakes.cases import FIRING, healthy, with_timeline
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.record import make_record
from slowtok.proxy.runtime.utc import utc_text

NAME = "night job"
BEGAN_UNIX_S = 1_793_527_200.0


def two_runs(folder: Path) -> Path:
    """Write a healthy run of one request, then one with a name whose second request waited."""
    made = [
        ("older-1", None, {"id": "a" * 16, "by": "session", "turn": 1}),
        ("night-1", None, {"id": "b" * 16, "name": NAME, "by": "header", "turn": 1}),
        ("night-2", "queued", {"id": "b" * 16, "name": NAME, "by": "header", "turn": 2}),
    ]
    log = folder / "log.jsonl"
    with log.open("wb") as file:
        for number, (name, cause, run) in enumerate(made):
            case = with_timeline(FIRING[cause]() if cause else healthy(), request_id=name)
            record = make_record(case, diagnose(case)) | {
                "run": run,
                "ts": utc_text(BEGAN_UNIX_S + number),
            }
            file.write(orjson.dumps(record) + b"\n")
    return log
