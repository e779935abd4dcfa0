from dataclasses import replace

import pytest

from fakes.cases import case, healthy, with_envelope, with_host, with_phases
from fakes.cases import storage_paging as firing
from fakes.cause_tests import fires, found, lacks, quiet
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.memory import storage_paging


def large_model() -> Case:
    """Measured: 4.5 GiB of weights under a limit of 3; the kernel read 8 MiB ahead of a fault."""
    slow = with_host(
        firing(), server_major_faults_per_s=0.0, server_read_bytes_per_s=780e6, available_bytes=18e9
    )
    faults = (replace(sample, server_major_faults_per_s=9.0) for sample in slow.host[::2])
    host = list(slow.host)
    host[::2] = faults
    return replace(slow, host=tuple(host), model=replace(slow.model, file_bytes=4_867_931_008))


def paging_in(first: int, last: int) -> Case:
    """Paging in some of the samples only."""
    quiet = with_host(firing(), server_major_faults_per_s=0.0, server_read_bytes_per_s=0.0)
    paging = firing().host[first:last]
    return replace(quiet, host=(*quiet.host[:first], *paging, *quiet.host[last:]))


QUIET = [
    pytest.param(paging_in(0, 16), id="a cold start: reading ends with the first seconds"),
    pytest.param(paging_in(85, 98), id="a burst at the end"),
    pytest.param(
        with_host(firing(), server_major_faults_per_s=0.0),
        id="reads without faults: a log, another file",
    ),
    pytest.param(
        with_host(firing(), server_read_bytes_per_s=2e6), id="faults from memory or a trickle"
    ),
    pytest.param(with_phases(firing(), decode_to_at_s=1002.6), id="less than three seconds"),
]
FIRING = [
    pytest.param(
        firing(),
        47.84 * 0.938,
        "read 714 MB/s from the disk",
        id="measured: a memory limit; 0.94 of decode was lost",
    ),
    pytest.param(
        with_host(
            case(ms_per_token=165.58), server_major_faults_per_s=79.3, server_read_bytes_per_s=792e6
        ),
        74.35 * 0.960,
        "--no-mmap",
        id="measured: a tighter limit; 0.96 of decode was lost",
    ),
    pytest.param(
        with_host(with_envelope(firing(), expected_tps=None), available_bytes=50e6),
        47.84 * 0.353,
        "free RAM",
        id="no expectation: the time that the kernel counted as stalled",
    ),
    pytest.param(
        with_host(firing(), server_read_bytes_per_s=60e6),
        47.84 * 0.353,
        "60 MB/s",
        id="a small part of each token",
    ),
    pytest.param(
        with_host(firing(), server_read_bytes_per_s=60e6, psi_io_full_ratio=0.7),
        47.84 * 0.938,
        "60 MB/s",
        id="a small part, for which all stood still most of the time",
    ),
    pytest.param(
        with_host(firing(), available_bytes=None),
        47.84 * 0.938,
        "714 MB/s",
        id="free memory not told",
    ),
    pytest.param(
        large_model(),
        47.84 * 0.938,
        "16.8 GiB of RAM are free and the model file has 4.5: raise the memory limit",
        id="half of the samples have no fault",
    ),
]
MISSING = [
    pytest.param(replace(healthy(), host=()), "host samples during decode", id="no samples"),
    pytest.param(
        with_host(firing(), server_major_faults_per_s=None),
        "major page faults of the server",
        id="server not mapped",
    ),
    pytest.param(
        with_host(firing(), server_read_bytes_per_s=None),
        "bytes the server reads from disk",
        id="another user's process",
    ),
    pytest.param(
        with_envelope(
            with_host(firing(), psi_io_full_ratio=None, psi_memory_full_ratio=None),
            expected_tps=None,
        ),
        "time stalled on the disk (/proc/pressure)",
        id="neither expectation nor stall counters",
    ),
    pytest.param(with_phases(firing(), decode_s=None), "decode time", id="no decode time"),
]


test_quiet = quiet(storage_paging, QUIET)
test_fires = fires(storage_paging, "lost_s said", FIRING, phase="decode")
test_names_the_missing_fact = lacks(storage_paging, MISSING)


def test_what_stood_still_for_pages_is_proof_without_an_expectation() -> None:
    finding = found(storage_paging, with_envelope(firing(), expected_tps=None))

    assert finding.proof_s == pytest.approx(0.353 * 47.8, rel=0.05)
    assert finding.lost_s >= finding.proof_s


def test_a_stall_of_the_machine_is_no_proof_while_the_server_reads_nothing() -> None:
    spiky = with_host(healthy(), psi_memory_full_ratio=0.6, psi_io_full_ratio=0.6)

    assert storage_paging.detect(spiky) is None
