"""What a diagnosis costs: one request of a minute on a GPU, slow and as usual.

PYTHONPATH=tests python -m bench.diagnosis
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fakes.gpu_cases import HEALTHY_MS, gpu_case
from slowtok.detectors.case.case import Case
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.detectors.expectation.envelope import with_expectation
from slowtok.proxy.outputs import headers
from slowtok.proxy.outputs.record import make_record

DECODE_S = 60.0
PER_SLOW = 10
SLOW: dict[str, Any] = dict.fromkeys(
    (
        "processes",
        "pcie_rx_bytes_per_s",
        "pcie_tx_bytes_per_s",
        "pcie_generation",
        "pcie_width",
        "energy_j",
        "throttled_power_ns",
        "throttled_sw_thermal_ns",
        "throttled_hw_thermal_ns",
        "throttled_power_brake_ns",
        "xids",
    )
)
"""Readings that come once a second, not ten times."""


def minute(*, slow: float) -> Case:
    """Return a request that decoded for a minute, `slow` times slower than it should."""
    ms_per_token = HEALTHY_MS * slow
    case = gpu_case(ms_per_token=ms_per_token, completion=round(DECODE_S * 1000 / ms_per_token))
    samples = (s if i % PER_SLOW == 0 else replace(s, **SLOW) for i, s in enumerate(case.gpu))
    return replace(case, gpu=tuple(samples))


def conclude(case: Case) -> None:
    """Do what follows a finished request: expectation, verdict, headers, record."""
    case = with_expectation(case)
    diagnosis = diagnose(case)
    headers.diagnosis_headers(case, diagnosis)
    make_record(case, diagnosis)


def cpu_ms(work: Callable[[], None], *, times: int) -> list[float]:
    """Return the CPU milliseconds of each of `times` runs."""
    work()
    taken = []
    for _ in range(times):
        begin_s = time.process_time()
        work()
        taken.append((time.process_time() - begin_s) * 1000)
    return taken


def measure(times: int = 20) -> dict[str, list[float]]:
    """Return the CPU milliseconds of each run, by the kind of request."""
    cases = {"as usual": minute(slow=1.0), "slow": minute(slow=2.0)}
    return {name: cpu_ms(partial(conclude, case), times=times) for name, case in cases.items()}


if __name__ == "__main__":
    for name, taken in measure().items():
        print(
            f"{name:10}{statistics.median(taken):7.2f} ms  ({min(taken):.2f} to {max(taken):.2f})"
        )
