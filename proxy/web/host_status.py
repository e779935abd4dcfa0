"""The host as /slowtok/status shows it: the newest reading of what changes. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from slowtok.detectors.case.machine import HostSample

SHOWN = (
    "cpu_cores",
    "cpu_busy_cores",
    "cpu_mhz",
    "available_bytes",
    "server_cpu_cores",
    "server_run_delay_cores",
    "server_throttled_ratio",
    "psi_cpu_some_ratio",
    "psi_io_full_ratio",
    "psi_memory_full_ratio",
)


def host_now(samples: Sequence[HostSample]) -> dict[str, Any]:
    """Return the newest value of each reading; empty where there is no sample."""
    rows = [asdict(sample) for sample in reversed(samples[-3:])]
    newest = {name: next((r[name] for r in rows if r[name] is not None), None) for name in SHOWN}
    return {name: value for name, value in newest.items() if value is not None}
