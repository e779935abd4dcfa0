"""The best clocks and power that each GPU showed under load, by day.

A request counts with its median under load, so that one short peak sets no standard. By day,
because a GPU that was given a lower limit for good is not held against last year's for ever.
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.machine import GpuSample
from slowtok.proxy.history.keys import gpus_of
from slowtok.proxy.history.rates import DAY_S, KEEP_S

LOADED_RATIO = 0.8
"""Busy for at least this share of a sample is "under load". Heuristic."""

MIN_SAMPLES = 5
MAX_DAYS = 1000
"""Of all GPUs together: thirty days of more than thirty GPUs."""

MAX_KEPT = 64  # answers at hand, for requests of the same GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The highest medians under load of the requests of one day."""

    gpu: str
    day: int
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None


class PeakReadings:
    """Best readings by GPU and day."""

    def __init__(self) -> None:
        self._days: dict[tuple[str, int], Best] = {}
        self._best_of = lru_cache(maxsize=MAX_KEPT)(self._best_of_days)

    def add(self, best: Best) -> bool:
        """Take readings in; True where one of them is better than that day's so far."""
        key = (best.gpu, best.day)
        before = self._days.get(key, Best(gpu=best.gpu, day=best.day))
        self._days[key] = highest([before, best], gpu=best.gpu, day=best.day)
        while len(self._days) > MAX_DAYS:
            self._days.pop(next(iter(self._days)))
        self._best_of.cache_clear()
        return self._days.get(key) != before

    def of(self, case: Case) -> Best | None:
        """Return the best of the last month over the GPUs that serve.

        None where none was seen, and where they are not alike: then one number says nothing.
        """
        if not self._days or not (mine := gpus_of(case)):
            return None
        names = {gpu.name for gpu in case.device.gpus or () if gpu.index in mine}
        if len(names) != 1:
            return None
        return self._best_of(frozenset(mine.values()), int(case.timeline.started_unix_s // DAY_S))

    def _best_of_days(self, uuids: frozenset[str], today: int) -> Best | None:
        first_day = today - int(KEEP_S // DAY_S)
        found = [b for b in self._days.values() if b.gpu in uuids and b.day >= first_day]
        return highest(found, gpu="", day=today) if found else None


def seen_in(case: Case) -> list[Best]:
    """Return what each serving GPU showed under load in this case."""
    day = int(case.timeline.started_unix_s // DAY_S)
    found = []
    for index, uuid in gpus_of(case).items():
        loaded = [
            sample
            for sample in (*case.gpu_during("prefill"), *case.gpu_during("decode"))
            if sample.index == index and (sample.busy_ratio or 0.0) >= LOADED_RATIO
        ]
        if len(loaded) >= MIN_SAMPLES:
            found.append(_medians(loaded, uuid, day))
    return found


def highest(bests: Iterable[Best], *, gpu: str, day: int) -> Best:
    """Return the highest of each reading."""
    readings = [field.name for field in fields(Best)[2:]]
    known = list(bests)
    most = {
        name: max((getattr(b, name) for b in known if getattr(b, name) is not None), default=None)
        for name in readings
    }
    return Best(gpu=gpu, day=day, **most)


def _medians(samples: list[GpuSample], uuid: str, day: int) -> Best:
    clocks = [s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None]
    memory = [s.memory_clock_mhz for s in samples if s.memory_clock_mhz is not None]
    powers = [s.power_w for s in samples if s.power_w is not None]
    return Best(
        gpu=uuid,
        day=day,
        sm_clock_mhz=statistics.median_low(clocks) if clocks else None,
        memory_clock_mhz=statistics.median_low(memory) if memory else None,
        power_w=statistics.median_low(powers) if powers else None,
    )
