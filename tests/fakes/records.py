"""A record with every field that a record can have, and the names of a record's fields."""

from dataclasses import replace
from typing import Any

from fakes.cases import FIRING, with_gpu, with_host, with_timeline
from slowtok.detectors.case import Case, Range, Tokens
from slowtok.detectors.diagnose import diagnose
from slowtok.proxy.outputs.record import make_record


def full_case() -> Case:
    """A slow request of which everything is known, on a machine with a GPU."""
    seen = with_gpu(
        FIRING["queued"](),
        reasons=0x4,
        memory_busy_ratio=0.5,
        power_limit_w=350.0,
        sm_clock_mhz=1900,
        memory_clock_mhz=9501,
        temperature_c=60,
    )
    hosted = with_host(
        seen,
        cpu_mhz=3400.0,
        server_quota_cores=2.0,
        server_major_faults_per_s=0.0,
    )
    expected = replace(
        hosted.envelope, as_configured=Range(low=40.0, high=60.0), because=("a reason",)
    )
    server = replace(hosted.server, name="main", version="b1-0")
    tokens = Tokens(prompt=240, cached=170, completion=450, drafted=20, accepted=9)
    timed = with_timeline(hosted, tokens=tokens, parse_errors=1)
    return replace(timed, envelope=expected, server=server)


def full_record() -> dict[str, Any]:
    """The record of it; failed and missing causes included."""
    diagnosis = diagnose(full_case())
    told = diagnose(FIRING["long-context"]()).findings
    judged = replace(
        diagnosis,
        findings={**diagnosis.findings, **told},
        reason="why there is no verdict",
        failed={"storage-paging": "KeyError"},
        missing={"cpu-quota": "CPU throttling of the server"},
    )
    return make_record(full_case(), judged)


def names(value: Any, prefix: str = "") -> set[str]:
    """Name every field at every depth: `timing.queue_ms`, `findings[].cause`."""
    if isinstance(value, dict):
        return {
            name
            for key, inner in value.items()
            for name in names(inner, f"{prefix}.{key}" if prefix else key)
        }
    if isinstance(value, list) and value:
        return set().union(*(names(entry, f"{prefix}[]") for entry in value))
    return {prefix}
