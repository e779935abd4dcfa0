"""The series that `/slowtok/requests/ID/samples` shows: of the last requests only, as bytes."""

from collections import OrderedDict
from typing import Any

import orjson

from slowtok.detectors.case import Case
from slowtok.detectors.finding import Diagnosis
from slowtok.proxy.outputs.series import series

MAX_KEPT_BYTES = 8 * 2**20  # some 30 KiB for a minute with one GPU: hundreds of requests


class SeriesStore:
    """Keeps the newest `keep` series by request id, fewer where they take too much memory."""

    def __init__(self, keep: int, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._keep = keep
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Keep the series of a diagnosed request."""
        if diagnosis is None:
            return
        self._drop(record["id"])
        body = orjson.dumps(series(case))
        self._kept[record["id"]] = body
        self._bytes += len(body)
        while self._bytes > self._max_bytes or len(self._kept) > self._keep:
            self._drop(next(iter(self._kept)))

    def get(self, request_id: str) -> bytes | None:
        """Return the series of one request as JSON."""
        return self._kept.get(request_id)

    def _drop(self, request_id: str) -> None:
        self._bytes -= len(self._kept.pop(request_id, b""))
