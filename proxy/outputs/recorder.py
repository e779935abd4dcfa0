"""`--record DIR`: each diagnosed request as a case file that can be diagnosed again elsewhere."""

import os
import tempfile
from pathlib import Path
from typing import Any

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.outputs.case_file import dump_case
from slowtok.proxy.runtime.background_writer import BackgroundWriter
from slowtok.proxy.runtime.version import own_version

MAX_QUEUED_CASES = 100  # each holds its samples: up to a few hundred KiB


class Recorder:
    """Writes one JSON file a request, readable by its owner only; holds no prompt and no key.

    Raises:
        OSError: the directory cannot be made, or no file can be made in it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._version = own_version()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=directory):
            pass
        self.writer = BackgroundWriter(self._write, max_queued=MAX_QUEUED_CASES)

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Write the case of a diagnosed request."""
        if diagnosis is not None:
            self.writer.write((case, record))

    def _write(self, item: tuple[Case, dict[str, Any]]) -> None:
        case, record = item
        content = dump_case(case, record, self._version)
        path = self._directory / f"{case.timeline.request_id}.json"  # an ID of our own making
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        except OSError:  # the disk is full: half a case is none
            path.unlink(missing_ok=True)
            raise
