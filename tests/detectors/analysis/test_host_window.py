from dataclasses import replace

import pytest

from fakes.cases import (
    QUIET_HOST,
    cpu_fallback,
    healthy,
    host_contention,
    with_device,
    with_gpu,
    with_host,
    with_server,
)
from slowtok.detectors.analysis.host_window import (
    gpu_mean,
    mean,
    others_cores,
    run_queue,
    runs_on_cpu,
    seconds,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.server.cpu_fallback import detect as detect_cpu_fallback


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


def test_readings_of_two_moments_make_up_for_each_other() -> None:
    """A machine of many cores whose samples are read a little before or after the server's."""
    samples = [
        replace(QUIET_HOST, cpu_busy_cores=busy, server_cpu_cores=30.0, cpu_steal_cores=None)
        for busy in (28.0, 32.4)
    ]

    assert others_cores(samples) == pytest.approx(0.2)
    assert others_cores(samples[:1]) == 0.0
    assert others_cores([replace(QUIET_HOST, server_cpu_cores=None)]) is None


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


BESIDE_A_GPU = with_gpu(healthy())
USES_NONE = with_server(BESIDE_A_GPU, gpu_indices=())
NO_GPU_SEEN = with_server(healthy(), gpu_layers=None)
GPU_DECODES = {"server_cpu_cores": 0.3, "server_run_delay_cores": 0.0}
ONE_THREAD = {"server_cpu_cores": 1.0, "server_run_delay_cores": 0.0}
NOT_MEASURED = {"server_cpu_cores": None, "server_run_delay_cores": None}


@pytest.mark.parametrize(
    ("case", "on_cpu"),
    [
        pytest.param(healthy(), True, id="told so"),
        pytest.param(with_gpu(healthy(), gpu_layers=0), True, id="told so beside a GPU"),
        pytest.param(BESIDE_A_GPU, False, id="a GPU that it may use"),
        pytest.param(with_server(BESIDE_A_GPU, gpu_layers=None), False, id="layers not known"),
        pytest.param(with_server(BESIDE_A_GPU, gpu_indices=(0,)), False, id="a GPU that it uses"),
        pytest.param(USES_NONE, True, id="uses none, the CPU works"),
        pytest.param(with_server(USES_NONE, loaded_gpu_bytes=9), True, id="engine says otherwise"),
        pytest.param(with_host(USES_NONE, **GPU_DECODES), False, id="uses one that is not seen"),
        pytest.param(NO_GPU_SEEN, True, id="no GPU is seen, the CPU works"),
        pytest.param(with_device(NO_GPU_SEEN, gpus=None), True, id="no library, the CPU works"),
        pytest.param(with_host(NO_GPU_SEEN, **GPU_DECODES), False, id="no GPU seen, CPU rests"),
        pytest.param(with_host(NO_GPU_SEEN, **ONE_THREAD), True, id="one thread"),
        pytest.param(with_host(NO_GPU_SEEN, **NOT_MEASURED), True, id="nothing measured"),
        pytest.param(
            with_server(with_host(NO_GPU_SEEN, **ONE_THREAD), loaded_gpu_bytes=9),
            False,
            id="one thread and a model on a GPU, by the engine's word",
        ),
        pytest.param(
            with_server(replace(NO_GPU_SEEN, host=()), loaded_gpu_bytes=9),
            False,
            id="only the engine's word",
        ),
        pytest.param(host_contention(), True, id="threads that wait want the CPU too"),
        pytest.param(with_server(NO_GPU_SEEN, local=False), False, id="another machine"),
    ],
)
def test_who_decodes(case: Case, on_cpu: bool) -> None:
    assert runs_on_cpu(case) is on_cpu


def test_cpu_fallback_stays_visible_when_the_engine_uses_no_gpu() -> None:
    beside = with_server(cpu_fallback(), gpu_indices=())

    assert runs_on_cpu(beside)
    assert detect_cpu_fallback(beside) is not None
