from dataclasses import replace

import pytest

from fakes.cases import QUIET_HOST, healthy, host_contention, with_gpu, with_host, with_server
from slowtok.detectors.window import gpu_mean, mean, run_queue, runs_on_cpu, seconds


def test_mean_weighs_a_sample_by_its_span() -> None:
    samples = (
        replace(QUIET_HOST, span_s=3.0, server_cpu_cores=1.0),
        replace(QUIET_HOST, span_s=1.0, server_cpu_cores=2.0),
    )

    assert mean(samples, lambda s: s.server_cpu_cores) == pytest.approx(1.25)
    assert seconds(samples) == pytest.approx(4.0)


def test_mean_leaves_out_what_is_not_known_and_keeps_zero() -> None:
    samples = (
        replace(QUIET_HOST, server_cpu_cores=None),
        replace(QUIET_HOST, server_cpu_cores=0.0),
    )

    assert mean(samples, lambda s: s.server_cpu_cores) == 0.0
    assert mean(samples[:1], lambda s: s.server_cpu_cores) is None
    assert mean((), lambda s: s.server_cpu_cores) is None
    assert gpu_mean((), lambda s: s.busy_ratio) is None


def test_wait_is_charged_to_others_only_up_to_what_they_used() -> None:
    queue = run_queue(
        with_host(healthy(), server_cpu_cores=1.0, server_run_delay_cores=3.0, cpu_busy_cores=2.0),
        "decode",
    )

    assert queue.taken_ratio == pytest.approx(1 / 4)
    assert queue.own_ratio == pytest.approx(2 / 4)


def test_throttled_time_is_charged_to_nobody_else() -> None:
    queue = run_queue(
        with_host(host_contention(), server_run_delay_cores=1.0, server_throttled_s_per_s=0.9),
        "decode",
    )

    assert queue.taken_ratio == pytest.approx(0.1 / queue.wanted_cores)
    assert queue.own_ratio == 0.0


def test_an_idle_server_wants_no_core() -> None:
    queue = run_queue(
        with_host(healthy(), server_cpu_cores=0.0, server_run_delay_cores=0.0), "decode"
    )

    assert queue.taken_ratio == 0.0
    assert queue.own_ratio == 0.0


def test_cpu_decodes_without_a_gpu_or_when_told_to() -> None:
    assert runs_on_cpu(healthy())
    assert runs_on_cpu(with_gpu(healthy(), gpu_layers=0))
    assert not runs_on_cpu(with_gpu(healthy()))
    assert not runs_on_cpu(with_server(with_gpu(healthy()), gpu_layers=None))
