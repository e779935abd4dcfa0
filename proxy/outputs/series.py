"""Time series of one request for `/slowtok/requests/ID/samples`; kept for the last requests only.

A record has medians; the live page draws the readings over time. Each point is a sample as
measured: of many samples, every n-th is taken, never a mean. Times are seconds since the request
arrived.

They are kept as compressed JSON. Those of the newest requests are serialised only when one is
requested, or when newer ones need their place; beyond `MAX_WRITTEN_PER_S`, which nobody could look
at, some are dropped then.
"""

import itertools
import math
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import orjson

from slowtok.detectors.analysis.gpu.gpu_window import by_gpu, gpu_facts
from slowtok.detectors.analysis.rate_shape import step_of
from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.clocks_event import NAMES, ClocksEvent
from slowtok.detectors.case.finding import Diagnosis
from slowtok.detectors.case.machine import GpuSample

MAX_POINTS = 600  # of one lane: more than a screen shows
MAX_BINS = 120  # of the token rate
GAPS_PER_BIN = 4.0  # so many mean gaps at least: a bin of one gap holds no token or two
USUAL_GAPS_RATIO = 0.9  # of the gaps; a longer one is a pause, which is to show as one. No source
MIN_BIN_S = 0.1
MAX_MARKS = 100  # of one GPU
SAME_MARK_S = 0.5  # a reason that is back so soon was not gone; heuristic

GPU_LANES = (
    "busy_ratio",
    "dram_busy_ratio",
    "power_w",
    "power_limit_w",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "memory_temperature_c",
    "used_bytes",
    "total_bytes",
    "pcie_rx_bytes_per_s",
)
"""Of `GpuSample`; `used_bytes` is what is not free."""

HOST_LANES = (
    "cpu_cores",
    "cpu_busy_cores",
    "server_cpu_cores",
    "others_cpu_cores",
    "server_run_delay_cores",
    "server_throttled_ratio",
    "server_read_bytes_per_s",
    "psi_io_full_ratio",
    "psi_memory_full_ratio",
    "available_bytes",
)
"""Of `HostSample`."""

BRAKES = {
    int(event): NAMES[int(event)]
    for event in (
        ClocksEvent.SW_POWER_CAP,
        ClocksEvent.HW_SLOWDOWN,
        ClocksEvent.SW_THERMAL,
        ClocksEvent.HW_THERMAL,
        ClocksEvent.HW_POWER_BRAKE,
        ClocksEvent.RELIABILITY,
    )
}
"""Reasons that lower the clocks of a GPU at work; the others are an idle GPU's or a setting's."""
ANY_BRAKE = sum(BRAKES)

MAX_KEPT_BYTES = 8 * 2**20  # some 4 KiB for a minute with one GPU
FASTEST = 1
MAX_UNWRITTEN = 100  # some 5 KiB each, and their readings
MAX_UNWRITTEN_READINGS = 40_000  # samples and arrivals, some 32 bytes each
MAX_WRITTEN_PER_S = 10.0  # each takes a fifth of what its diagnosis does. Heuristic


def series(case: Case) -> dict[str, Any]:
    """Return phases, token rate, GPU and host readings over the time of one request."""
    server_gpus = case.server.gpu_indices
    gpus = by_gpu([sample for sample in case.gpu if not server_gpus or sample.index in server_gpus])
    return {
        "id": case.timeline.request_id,
        "total_s": round(case.phases.total_s, 3),
        "phases": list(_phases(case)),
        "tokens": _token_rate(case),
        "step": _step(case),
        "gpus": [_gpu(case, index, samples) for index, samples in gpus.items()],
        "host": _lanes(case, case.host, HOST_LANES),
    }


def _phases(case: Case) -> Iterator[dict[str, Any]]:
    """Yield begin and end of each phase, in order.

    Queue and load are not observed directly: they are drawn as long as the engine reports, within
    the time between sending and prefill.
    """
    from_s, room_to_s = case.timeline.sent_at_s, case.phases.prefill_from_at_s or math.inf
    waits: tuple[tuple[Phase, float | None], ...] = (
        ("queue", case.phases.queue_s),
        ("load", case.phases.load_s),
    )
    for phase, took_s in waits:
        if from_s is not None and took_s:
            to_s = min(from_s + took_s, room_to_s)
            if to_s > from_s:
                yield _span(case, phase, from_s, to_s)
            from_s = max(from_s, to_s)
    phases_seen: tuple[Phase, ...] = ("prefill", "decode", "delivery")
    for phase in phases_seen:
        if window := case.window(phase):
            yield _span(case, phase, *window)


def _span(case: Case, phase: Phase, from_at_s: float, to_at_s: float) -> dict[str, Any]:
    return {"phase": phase, "from_s": _since(case, from_at_s), "to_s": _since(case, to_at_s)}


def _token_rate(case: Case) -> dict[str, Any] | None:
    """Return the token rate in equal bins, from arrivals; None if there are too few."""
    arrivals = case.timeline.token_at_s
    if len(arrivals) < 3 or arrivals[-1] <= arrivals[0]:
        return None
    first_s, span_s = arrivals[0], arrivals[-1] - arrivals[0]
    count = max(int(span_s / _bin_s(arrivals)), 1)
    width_s = span_s / count
    bins = [0] * count
    for at_s in arrivals[1:]:  # the first one ends the prefill
        bins[min(int((at_s - first_s) / width_s), count - 1)] += 1
    tokens_each = ((case.timeline.tokens.completion or len(arrivals)) - 1) / (len(arrivals) - 1)
    return {
        "bin_s": round(width_s, 4),
        "at_s": [_since(case, first_s + (i + 0.5) * width_s) for i in range(count)],
        "tps": [round(n * tokens_each / width_s, 3) for n in bins],
    }


def _step(case: Case) -> dict[str, float] | None:
    """Return when and how the rate changed for good; None if it was level or only drifted."""
    step = step_of(case)
    if step is None:
        return None
    return {
        "at_s": _since(case, step.at_s),
        "before_tps": round(step.before_tps, 2),
        "after_tps": round(step.after_tps, 2),
    }


def _bin_s(arrivals: Sequence[float]) -> float:
    """Return a bin width that gives several tokens per bin, even if they are slow or in bursts."""
    gaps_s = sorted(later - at for at, later in itertools.pairwise(arrivals))
    span_s = arrivals[-1] - arrivals[0]
    usual_s = gaps_s[int(USUAL_GAPS_RATIO * (len(gaps_s) - 1))]
    return max(span_s / MAX_BINS, GAPS_PER_BIN * span_s / len(gaps_s), usual_s, MIN_BIN_S)


def _gpu(case: Case, index: int, samples: Sequence[GpuSample]) -> dict[str, Any]:
    return {
        "index": index,
        "name": gpu_facts(case, index).name,
        **_lanes(case, samples, GPU_LANES),
        "brakes": list(_brakes(case, samples)),
    }


def _brakes(case: Case, samples: Sequence[GpuSample]) -> Iterator[dict[str, Any]]:
    """Yield the periods of each throttling reason, at most `MAX_MARKS` in all."""
    marks: list[dict[str, Any]] = []
    open_marks: dict[int, dict[str, Any]] = {}
    for sample in samples:
        if not (sample.reasons or 0) & ANY_BRAKE:
            continue
        at_s = _since(case, sample.at_s)
        for bit, reason in BRAKES.items():
            if not (sample.reasons or 0) & bit:
                continue
            mark = open_marks.get(bit)
            if mark is None or at_s - mark["to_s"] > SAME_MARK_S:
                mark = open_marks[bit] = {"reason": reason, "from_s": at_s}
                marks.append(mark)
            mark["to_s"] = at_s
    yield from marks[:MAX_MARKS]


def _lanes(case: Case, samples: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the lanes that have a value, each as long as `at_s`; None where a sample has none."""
    taken = samples[:: -(-len(samples) // MAX_POINTS) or 1]
    lanes = {name: _lane(taken, name) for name in names}
    begin_s = case.timeline.accepted_at_s
    return {
        "at_s": [round(sample.at_s - begin_s, 3) for sample in taken],
        "lanes": {name: lane for name, lane in lanes.items() if lane.count(None) < len(lane)},
    }


def _lane(samples: Sequence[Any], name: str) -> list[float | None]:
    """Return one reading of each sample; written for speed, because other requests wait."""
    if name == "used_bytes":
        return [
            None if s.total_bytes is None or s.free_bytes is None else s.total_bytes - s.free_bytes
            for s in samples
        ]
    values = map(attrgetter(name), samples)
    return [round(value, 3) if type(value) is float else value for value in values]


def _since(case: Case, at_s: float) -> float:
    return round(at_s - case.timeline.accepted_at_s, 3)


def _readings(case: Case) -> int:
    return len(case.host) + len(case.gpu) + len(case.timeline.token_at_s)


class SeriesStore:
    """Keeps the newest `keep` series by request id, fewer if they take too much memory."""

    def __init__(self, keep: int, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._keep = keep
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()  # empty while it is not written
        self._unwritten: OrderedDict[str, Case] = OrderedDict()
        self._bytes = self._readings = 0
        self._may_write, self._counted_at_s = float(MAX_UNWRITTEN), time.monotonic()

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Store the series of a diagnosed request."""
        if diagnosis is None:
            return
        request_id = record["id"]
        if request_id in self._kept:
            self._drop(request_id)
        self._kept[request_id] = b""
        self._unwritten[request_id] = case
        self._readings += _readings(case)
        while len(self._kept) > self._keep:
            self._drop(next(iter(self._kept)))
        while self._is_overfull() and len(self._unwritten) > 1:
            self._make_room(next(iter(self._unwritten)))
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def get(self, request_id: str) -> bytes | None:
        """Return the series of one request as JSON; None if there is none."""
        if request_id in self._unwritten:
            self._write(request_id)
        kept = self._kept.get(request_id)
        return None if kept is None else zlib.decompress(kept)

    def _make_room(self, request_id: str) -> None:
        """Serialise one pending series, or drop it if there are too many."""
        if self._may_write_one():
            self._write(request_id)
        else:
            self._drop(request_id)

    def _is_overfull(self) -> bool:
        return len(self._unwritten) > MAX_UNWRITTEN or self._readings > MAX_UNWRITTEN_READINGS

    def _may_write_one(self) -> bool:
        """Take one write from the allowance: `MAX_WRITTEN_PER_S`, saved for all that may wait."""
        now_s = time.monotonic()
        earned = (now_s - self._counted_at_s) * MAX_WRITTEN_PER_S
        self._may_write = min(self._may_write + earned, MAX_UNWRITTEN)
        self._counted_at_s = now_s
        if self._may_write < 1.0:
            return False
        self._may_write -= 1.0
        return True

    def _write(self, request_id: str) -> None:
        case = self._unwritten.pop(request_id)
        self._readings -= _readings(case)
        try:
            body = zlib.compress(orjson.dumps(series(case)), FASTEST)
        except Exception:
            self._drop(request_id)  # what is there for it would be no JSON
            raise
        self._kept[request_id] = body
        self._bytes += len(body)

    def _drop(self, request_id: str) -> None:
        if (case := self._unwritten.pop(request_id, None)) is not None:
            self._readings -= _readings(case)
        self._bytes -= len(self._kept.pop(request_id, b""))
