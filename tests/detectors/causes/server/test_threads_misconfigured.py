from dataclasses import replace

import pytest

from fakes.cases import (
    batch_shared,
    case,
    cpu_quota_of_one_core,
    healthy,
    host_contention,
    with_device,
    with_envelope,
    with_gpu,
    with_host,
    with_phases,
    with_server,
)
from fakes.cases import threads_misconfigured as firing
from fakes.cause_tests import fires, found, lacks, quiet
from fakes.gpu_cases import GPU_HOST, SERVER, gpu_case
from fakes.memory_cases import card
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.server import threads_misconfigured


def oversubscribed(threads: int, ms_per_token: float, running: float, waiting: float) -> Case:
    slow = with_host(
        case(ms_per_token=ms_per_token),
        server_cpu_cores=running,
        server_run_delay_cores=waiting,
        cpu_busy_cores=running,
    )
    return with_server(slow, threads=threads)


def few_threads(**device: float | None) -> Case:
    """One thread on eight cores."""
    slow = with_host(
        case(ms_per_token=100.0),
        server_allowed_cores=8,
        server_cpu_cores=1.0,
        server_run_delay_cores=0.0,
        cpu_busy_cores=1.0,
        server_busy_threads=1,
    )
    facts = {"cpu_physical_cores": 8, "cpu_logical_cores": 16, **device}
    machine = with_device(slow, **facts)
    return with_server(machine, threads=1)


def few_beside_a_gpu(ms_per_token: float = 400.0, threads: int = 1) -> Case:
    """One thread on eight cores computes the 13 of 33 layers that are not on the card."""
    return gpu_case(
        ms_per_token=ms_per_token,
        completion=40,
        server=replace(SERVER, gpu_layers=20, threads=threads),
        gpu=card(4_000, busy_ratio=0.02),
        host=replace(GPU_HOST, cpu_busy_cores=1.2, server_cpu_cores=1.0, server_busy_threads=1),
    )


def untold(**host: float) -> Case:
    """Two cores, whose number of threads nobody told."""
    slow = with_host(case(ms_per_token=100.0), server_busy_threads=0, **host)
    return with_server(slow, threads=None)


QUIET = [
    pytest.param(host_contention(), id="the wait is for other processes"),
    pytest.param(
        with_host(firing(), cpu_busy_cores=4.2), id="too many threads, but others explain the wait"
    ),
    pytest.param(with_server(healthy(), threads=4), id="many threads that do not wait"),
    pytest.param(with_server(firing(), threads=2), id="threads wait, but they are not too many"),
    pytest.param(batch_shared(), id="another stream"),
    pytest.param(
        few_threads(ram_bandwidth_bytes_per_s=1.5e9),
        id="few threads reach the RAM bandwidth: normal",
    ),
    pytest.param(with_server(few_threads(), threads=4), id="half of the cores"),
    pytest.param(
        with_host(few_threads(), cpu_busy_cores=7.5),
        id="few threads, and others have the cores that they leave",
    ),
    pytest.param(
        with_server(few_threads(cpu_performance_cores=4), threads=2),
        id="half of the performance cores",
    ),
    pytest.param(
        untold(server_cpu_cores=0.66, server_run_delay_cores=1.36, cpu_busy_cores=2.0),
        id="Ollama, whose two threads others kept from two cores: neither ran for half of the time",
    ),
    pytest.param(with_gpu(few_threads()), id="few threads beside a GPU that has the model"),
    pytest.param(
        few_beside_a_gpu(ms_per_token=110.0),
        id="few threads beside a GPU, as fast as layers in RAM allow",
    ),
    pytest.param(
        with_server(few_beside_a_gpu(), gpu_layers=99),
        id="one thread is enough where all is on the GPU, however slow it is",
    ),
]
FIRING = [
    pytest.param(
        firing(),
        11.845 * 0.75,
        "runs 8 CPU threads on 2 cores",
        id="measured: eight threads on two cores; 0.76 of decode was lost",
    ),
    pytest.param(
        oversubscribed(3, 20.77, 1.19, 0.44),
        9.326 * 0.667,
        "--threads 2",
        id="measured: three threads on two cores; 0.68 was lost",
    ),
    pytest.param(
        oversubscribed(4, 24.61, 1.28, 0.81),
        11.05 * 0.667,
        "waited for a core 39 %",
        id="measured: four threads on two cores; 0.73 was lost",
    ),
    pytest.param(
        cpu_quota_of_one_core(),
        9.052 * 0.667,
        "2 CPU threads on 1 core,",
        id="measured: two threads under a quota of one core; 0.67 was lost",
    ),
    pytest.param(
        few_threads(),
        44.9 * 0.875,
        "used 1 of 8 cores and 2 % of the RAM bandwidth",
        id="one of eight cores",
    ),
    pytest.param(
        with_envelope(few_threads(ram_bandwidth_bytes_per_s=8e9), expected_tps=50.0),
        44.9 * 0.8,
        "13 % of the RAM bandwidth",
        id="between half of the bandwidth and all of it: what decode lost",
    ),
    pytest.param(
        with_envelope(few_threads(ram_bandwidth_bytes_per_s=8e9), expected_tps=12.0),
        44.9 * (1 - 0.128 / 0.5),
        "13 % of the RAM bandwidth",
        id="half of the bandwidth at least",
    ),
    pytest.param(
        few_beside_a_gpu(),
        39 * 0.4 * (1 - 2.5 / 16.32),
        "used 1 of 8 cores and 10 % of the RAM bandwidth",
        id="one of eight cores for the layers that are not on the GPU",
    ),
]
MISSING = [
    pytest.param(replace(healthy(), host=()), "host samples during decode", id="no samples"),
    pytest.param(
        with_host(healthy(), server_run_delay_cores=None),
        "time the server's threads waited for a core",
        id="no run delay",
    ),
    pytest.param(
        with_server(firing(), threads=None),
        "number of CPU threads of the engine",
        id="threads not asked for",
    ),
    pytest.param(
        with_device(with_host(healthy(), server_allowed_cores=None), cpu_logical_cores=None),
        "number of cores the server may use",
        id="cores not known",
    ),
    pytest.param(
        few_threads(ram_bandwidth_bytes_per_s=None), "RAM bandwidth", id="bandwidth not measured"
    ),
    pytest.param(
        with_envelope(few_threads(), read_bytes=None), "bytes read per token", id="model not known"
    ),
    pytest.param(with_phases(firing(), decode_s=None), "decode time", id="no decode time"),
]


test_quiet = quiet(threads_misconfigured, QUIET)
test_fires = fires(threads_misconfigured, "lost_s said", FIRING, phase="decode")
test_names_the_missing_fact = lacks(threads_misconfigured, MISSING)


test_few_threads_are_believed_where_they_have_no_rest = fires(
    threads_misconfigured,
    "confidence",
    [
        pytest.param(few_threads(), 0.82, id="the one thread has no rest"),
        pytest.param(with_host(few_threads(), server_cpu_cores=0.6), 0.65, id="it rests"),
    ],
)


def test_efficiency_cores_are_not_counted() -> None:
    hybrid = few_threads(cpu_physical_cores=24, cpu_performance_cores=8, cpu_logical_cores=32)
    finding = found(threads_misconfigured, with_host(hybrid, server_allowed_cores=32))

    assert "used 1 of 8 performance cores" in finding.summary
    assert finding.remedy == "Start llama-server with --threads 8."


def test_waits_for_each_other_are_proof() -> None:
    finding = found(threads_misconfigured, firing())

    assert 0.5 * 11.845 < finding.proof_s <= finding.lost_s
