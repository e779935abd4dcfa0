"""`--record DIR`: each diagnosed request as a case file that can be diagnosed again elsewhere."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from slowtok.detectors.case import Case
from slowtok.detectors.finding import Diagnosis
from slowtok.proxy.outputs.lines import Writer

MAX_QUEUED_CASES = 100  # each holds its samples: up to a few hundred KiB


class Recorder:
    """Writes one JSON file a request, readable by its owner only; holds no prompt and no key."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.writer = Writer(self._write, max_queued=MAX_QUEUED_CASES)

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Write the case of a diagnosed request."""
        if diagnosis is not None:
            self.writer.write(case)

    def _write(self, case: Case) -> None:
        path = self._directory / f"{case.timeline.request_id}.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(orjson.dumps(asdict(case)) + b"\n")
