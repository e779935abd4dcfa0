"""The series that `/slowtok/requests/ID/samples` shows: of the last requests only.

They are kept as compressed JSON. Those of short requests, of which there may be a thousand a
second, are written only when somebody asks for one: nobody has time to look at more than a few.
"""

import zlib
from collections import OrderedDict
from typing import Any

import orjson

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.outputs.series import series

MAX_KEPT_BYTES = 8 * 2**20  # some 4 KiB for a minute with one GPU
FASTEST = 1
SHORT_READINGS = 8  # samples and arrivals: a longer request would keep more memory than its bytes
MAX_UNWRITTEN = 500  # some 3 KiB each


class SeriesStore:
    """Keeps the newest `keep` series by request id, fewer where they take too much memory."""

    def __init__(self, keep: int, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._keep = keep
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()  # empty while it is not written
        self._unwritten: OrderedDict[str, Case] = OrderedDict()
        self._bytes = 0

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Keep the series of a diagnosed request."""
        if diagnosis is None:
            return
        request_id = record["id"]
        if request_id in self._kept:
            self._drop(request_id)
        self._kept[request_id] = b""
        self._unwritten[request_id] = case
        if len(case.host) + len(case.gpu) + len(case.timeline.token_at_s) > SHORT_READINGS:
            self._write(request_id)
        while len(self._kept) > self._keep:
            self._drop(next(iter(self._kept)))
        if len(self._unwritten) > MAX_UNWRITTEN:
            self._write(next(iter(self._unwritten)))
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def get(self, request_id: str) -> bytes | None:
        """Return the series of one request as JSON; None where there is none."""
        if request_id in self._unwritten:
            self._write(request_id)
        kept = self._kept.get(request_id)
        return None if kept is None else zlib.decompress(kept)

    def _write(self, request_id: str) -> None:
        case = self._unwritten.pop(request_id)
        try:
            body = zlib.compress(orjson.dumps(series(case)), FASTEST)
        except Exception:
            self._drop(request_id)  # what is there for it would be no JSON
            raise
        self._kept[request_id] = body
        self._bytes += len(body)

    def _drop(self, request_id: str) -> None:
        self._unwritten.pop(request_id, None)
        self._bytes -= len(self._kept.pop(request_id, b""))
