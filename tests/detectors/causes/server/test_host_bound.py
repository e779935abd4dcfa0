from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import with_host, with_phases, with_server
from fakes.cause_tests import fires, lacks, quiet
from fakes.clock_cases import gpu_fault
from fakes.engine_cases import VLLM, eager
from fakes.engine_cases import host_bound as firing
from fakes.gpu_cases import DEVICE, HEALTHY_MS, RTX_3090, gpu_case, with_readings
from fakes.link_cases import multi_gpu_split
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.server import host_bound
from slowtok.detectors.diagnosis.diagnose import diagnose


def bouncing(seconds: float) -> float:
    return 0.35 if int(seconds * 5) % 2 else 0.95


def two_gpus(**readings: Any) -> Case:
    """Layers on two GPUs, which take turns."""
    before = gpu_case(ms_per_token=3 * HEALTHY_MS, completion=300)
    both = tuple(replace(s, index=i, **readings) for s in before.gpu for i in (0, 1))
    cards = (RTX_3090, replace(RTX_3090, index=1, uuid="GPU-1"))
    two = replace(before, gpu=both, device=replace(DEVICE, gpus=cards))
    return with_server(two, gpu_indices=(0, 1), split_mode="layer")


def vllm_processes(*, main: float, busiest: float) -> Case:
    """Several processes: an API server, an EngineCore and a worker, 2.2 cores together."""
    slow = gpu_case(
        ms_per_token=3 * HEALTHY_MS, completion=300, server=replace(VLLM, tensor_parallel=1)
    )
    return with_host(
        with_readings(slow, busy_ratio=0.65),
        server_cpu_cores=2.2,
        server_processes=3,
        server_main_process_cores=main,
        server_busiest_process_cores=busiest,
    )


SLOW = gpu_case(ms_per_token=3 * HEALTHY_MS, completion=300)
QUIET = [
    pytest.param(with_readings(gpu_case(), busy_ratio=0.6), id="as fast as expected all the same"),
    pytest.param(SLOW, id="slow, but the GPU is busy"),
    pytest.param(
        with_host(firing(), server_cpu_cores=7.8, server_busy_threads=8),
        id="many threads: weights in RAM, or an operator on the CPU",
    ),
    pytest.param(with_host(firing(), server_cpu_cores=0.3), id="the thread rests, too"),
    pytest.param(
        with_host(firing(), server_run_delay_cores=0.4, server_cpu_cores=0.9),
        id="the thread waits for a core: host-contention",
    ),
    pytest.param(with_readings(firing(), pcie_rx_bytes_per_s=9e9), id="the bus is busy: spill"),
    pytest.param(
        with_host(firing(), server_read_bytes_per_s=140e6), id="the disk is read: storage-paging"
    ),
    pytest.param(firing(gpu_layers=20, threads=1), id="layers in RAM, read by one thread"),
    pytest.param(firing(kv_on_gpu=False), id="the KV cache is in RAM"),
    pytest.param(with_readings(firing(), vgpu_licensed=False), id="the driver brakes: no licence"),
    pytest.param(firing(local=False), id="another machine's engine"),
    pytest.param(
        vllm_processes(main=0.3, busiest=0.5), id="vLLM: none of its processes is at its limit"
    ),
    pytest.param(
        with_readings(vllm_processes(main=0.3, busiest=1.0), busy_ratio=0.96),
        id="vLLM: a worker spins while its GPU works",
    ),
    pytest.param(two_gpus(busy_ratio=0.47), id="two GPUs that take turns (textgen#5435)"),
    pytest.param(
        with_host(with_readings(multi_gpu_split(), busy_ratio=0.8), server_cpu_cores=2.0),
        id="two GPUs that wait for each other, below their power: multi-gpu-split",
    ),
    pytest.param(
        with_host(with_readings(gpu_fault(), busy_ratio=0.65), server_cpu_cores=1.0),
        id="a GPU that stopped answering for a while: not at each token",
    ),
    pytest.param(with_phases(firing(), decode_to_at_s=1001.5), id="too short a look"),
    pytest.param(eager(9.0), id="without CUDA graphs, but fast enough"),
    pytest.param(
        replace(eager(busy_ratio=0.97, power_w=330.0), host=()),
        id="without CUDA graphs, threads not seen, at full power",
    ),
    pytest.param(
        replace(eager(15 * HEALTHY_MS), host=(), gpu=()),
        id="without CUDA graphs, and far slower than that makes it",
    ),
    pytest.param(eager(busy_ratio=0.97, power_w=330.0), id="without CUDA graphs, at full power"),
]
FIRING = [
    pytest.param(
        firing(),
        0.89 * 19.02,
        0.82,
        "busy only 11 % of the decode",
        id="a grammar (llama.cpp#7554)",
    ),
    pytest.param(
        firing(kind="ollama"), 0.89 * 19.02, 0.82, "leave format out", id="JSON mode in Ollama"
    ),
    pytest.param(
        with_readings(SLOW, busy_ratio=bouncing),
        0.35 * 6.997,
        0.82,
        "busy only 65 %",
        id="bouncing",
    ),
    pytest.param(
        two_gpus(busy_ratio=0.15), 0.7 * 6.997, 0.82, "busy only 30 %", id="two GPUs idle"
    ),
    pytest.param(
        replace(eager(4.1 * HEALTHY_MS), host=(), gpu=()),
        4.75,
        0.54,
        "that is probably why",
        id="only the engine's word (marin#9339)",
    ),
    pytest.param(eager(), 14.68, 0.97, "without --enforce-eager", id="launched one by one"),
    pytest.param(
        vllm_processes(main=0.98, busiest=0.98),
        0.35 * 6.997,
        0.82,
        "busy only 65 %",
        id="vLLM: its API server is at its limit beside an EngineCore that spins",
    ),
    pytest.param(
        with_readings(firing(gpu_layers=None), processes=None),
        0.89 * 19.02,
        0.82,
        "busy only 11 %",
        id="not known where the weights lie",
    ),
    pytest.param(
        with_host(firing(kind="vllm"), server_busiest_process_cores=None),
        0.89 * 19.02,
        0.82,
        "--async-scheduling",
        id="vLLM, whose processes are not told apart",
    ),
]
MISSING = [
    pytest.param(replace(firing(), host=()), "host samples during decode", id="no host samples"),
    pytest.param(
        with_host(firing(), server_cpu_cores=None), "CPU time of the server", id="not mapped"
    ),
    pytest.param(replace(firing(), gpu=()), "GPU samples during decode", id="no GPU samples"),
    pytest.param(with_readings(firing(), busy_ratio=None), "GPU utilisation", id="a MIG slice"),
]


test_quiet = quiet(host_bound, QUIET)
test_fires = fires(host_bound, "lost_s confidence said", FIRING, phase="decode", rel=0.1)
test_names_the_missing_fact = lacks(host_bound, MISSING)


def test_leads_the_diagnosis_without_cuda_graphs() -> None:
    assert next(iter(diagnose(eager()).findings)) == "host-bound"
