from dataclasses import replace

import pytest

from fakes.cases import (
    case,
    cpu_quota_of_one_core,
    healthy,
    host_contention,
    threads_misconfigured,
    with_gpu,
    with_host,
    with_phases,
)
from fakes.cases import cpu_quota as firing
from fakes.cause_tests import fires, found, lacks, quiet
from slowtok.detectors.causes.host import cpu_quota

QUIET = [
    pytest.param(with_host(healthy(), server_quota_cores=1.5), id="a quota that is not reached"),
    pytest.param(with_host(firing(), server_throttled_ratio=0.04), id="one period in twenty-five"),
    pytest.param(
        with_host(firing(), server_throttled_s_per_s=0.01),
        id="many periods, but only their last moments",
    ),
    pytest.param(host_contention(), id="the cores are taken, nothing is throttled"),
    pytest.param(threads_misconfigured(), id="too many threads without a quota"),
]
FIRING = [
    pytest.param(
        firing(),
        3.704 * 0.235,
        "The CPU quota of 1.5 cores stopped",
        id="measured: two threads, 1.5 cores; 0.26 of decode was lost",
    ),
    pytest.param(
        cpu_quota_of_one_core(),
        9.052 * 0.671,
        "--threads 1",
        id="measured: two threads, one core; 0.69 of decode was lost",
    ),
    pytest.param(
        with_host(
            case(ms_per_token=14.06),
            server_cpu_cores=0.53,
            server_run_delay_cores=0.47,
            server_quota_cores=0.5,
            server_throttled_ratio=0.875,
            server_throttled_s_per_s=0.465,
        ),
        6.313 * 0.530,
        "quota of 0.5 cores",
        id="measured: one thread, half a core; 0.50 of decode was lost",
    ),
    pytest.param(
        with_host(firing(), server_quota_cores=None),
        3.704 * 0.235,
        "Raise or remove the limit",
        id="the limit itself is not readable",
    ),
]
MISSING = [
    pytest.param(replace(healthy(), host=()), "host samples during decode", id="no samples"),
    pytest.param(
        with_host(firing(), server_throttled_ratio=None),
        "CPU throttling of the server",
        id="no cgroup",
    ),
    pytest.param(
        with_host(firing(), server_throttled_s_per_s=None),
        "time the server was throttled",
        id="no throttled time",
    ),
    pytest.param(
        with_host(firing(), server_cpu_cores=None), "CPU time of the server", id="server not mapped"
    ),
    pytest.param(with_phases(firing(), decode_s=None), "decode time", id="no decode time"),
]


test_quiet = quiet(cpu_quota, QUIET)
test_fires = fires(cpu_quota, "lost_s said", FIRING, phase="decode")
test_names_the_missing_fact = lacks(cpu_quota, MISSING)


def test_what_the_kernel_counts_as_stopped_is_proof() -> None:
    finding = found(cpu_quota, cpu_quota_of_one_core())

    assert 0.3 * 9.052 < finding.proof_s <= finding.lost_s


def test_a_few_stops_are_no_proof() -> None:
    finding = found(cpu_quota, with_host(firing(), server_throttled_s_per_s=0.1))

    assert finding.proof_s == 0.0


def test_beside_a_gpu_fewer_threads_are_no_remedy() -> None:
    beside = with_gpu(with_host(firing(), server_cpu_cores=0.5))
    finding = found(cpu_quota, beside)

    assert "thread" not in finding.remedy
