"""One number of threads for every remedy."""

import pytest

from fakes.cases import healthy, with_device, with_host
from slowtok.detectors.analysis.cpu import in_words, recommended_threads, worth_threads
from slowtok.detectors.case.machine import DeviceFacts

HYBRID = DeviceFacts(cpu_physical_cores=24, cpu_performance_cores=8, cpu_logical_cores=32)
ALIKE = DeviceFacts(cpu_physical_cores=16, cpu_logical_cores=32)


@pytest.mark.parametrize(
    ("device", "allowed", "quota", "threads"),
    [
        pytest.param(HYBRID, 32, None, 8, id="performance cores alone"),
        pytest.param(HYBRID, 4, None, 4, id="fewer are allowed"),
        pytest.param(ALIKE, 32, None, 16, id="one for two hardware threads"),
        pytest.param(ALIKE, 32, 7.65, 7, id="a quota, rounded down"),
        pytest.param(ALIKE, None, 0.5, 1, id="never none"),
        pytest.param(DeviceFacts(cpu_logical_cores=6), None, None, 6, id="logical cores alone"),
        pytest.param(DeviceFacts(), None, None, None, id="nothing is known"),
    ],
)
def test_threads_that_are_worth_asking_for(
    device: DeviceFacts, allowed: float | None, quota: float | None, threads: int | None
) -> None:
    assert worth_threads(device, allowed_cores=allowed, quota_cores=quota) == threads


def test_a_case_has_what_its_samples_say() -> None:
    machine = with_device(healthy(), cpu_physical_cores=8, cpu_logical_cores=16)
    limited = with_host(machine, server_allowed_cores=16, server_quota_cores=2.5)

    assert recommended_threads(limited) == 2


def test_each_engine_has_its_own_word() -> None:
    said = {kind: in_words(kind, 1) for kind in ("llama-server", "ollama", "vllm", "other")}

    assert said["llama-server"] == "start llama-server with --threads 1"
    assert said["vllm"] == "set VLLM_CPU_OMP_THREADS_BIND to 1 core"
    assert "num_thread to 1" in said["ollama"]
    assert said["other"] == "give the engine 1 CPU thread"
