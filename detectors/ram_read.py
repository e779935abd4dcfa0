"""How fast a decode has read the RAM: a lower bound of the RAM's bandwidth.

Each token of a decode on the CPU needs the active weights and the cache read once. Whatever else
went on, the RAM gave as much as that.
"""

from slowtok.detectors.case import Case
from slowtok.detectors.window import CPU_DECODES_CORES, mean, runs_on_cpu

CACHED_BYTES = 512 * 1024 * 1024
"""No last-level cache in common use holds a model of this size."""

MIN_TOKENS = 16  # fewer are few reads, and the first may come from a cache. No published source


def ram_read_bytes_per_s(case: Case) -> float | None:
    """Return the bytes per second that a decode read from RAM; None where that is not sure.

    Not sure: drafts give several tokens for one read, caches hold small models, and a GPU that is
    not visible here may have read them. Then the CPU does next to nothing.
    """
    rate, weights = case.phases.decode_tps, case.envelope.read_bytes
    if rate is None or weights is None or weights <= CACHED_BYTES or case.server.speculative:
        return None
    if (case.timeline.tokens.completion or 0) < MIN_TOKENS or not runs_on_cpu(case):
        return None
    busy_cores = mean(case.host_during("decode"), lambda s: s.server_cpu_cores)
    if case.server.local is False or (busy_cores or 0.0) <= CPU_DECODES_CORES:
        return None
    return rate * (weights + (case.envelope.kv_bytes or 0.0))
