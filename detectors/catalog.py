"""All detectors, in the order of the documentation."""

from slowtok.detectors.client import slow_reader
from slowtok.detectors.finding import Detector
from slowtok.detectors.host import cpu_quota, host_contention
from slowtok.detectors.memory import storage_paging
from slowtok.detectors.server import (
    batch_shared,
    cpu_fallback,
    long_context,
    model_load,
    prompt_cache_miss,
    queued,
    threads_misconfigured,
)

CATALOG: tuple[Detector, ...] = (
    storage_paging,
    cpu_fallback,
    threads_misconfigured,
    queued,
    batch_shared,
    model_load,
    prompt_cache_miss,
    long_context,
    cpu_quota,
    host_contention,
    slow_reader,
)


def cause_of(detector: Detector) -> str:
    """Return the public name of a detector's cause: its module's own name, with dashes."""
    return detector.__name__.rpartition(".")[2].replace("_", "-")
