from dataclasses import replace

import pytest

from fakes.cases import cpu_fallback as firing
from fakes.cases import (
    healthy,
    serving,
    with_device,
    with_envelope,
    with_gpu,
    with_host,
    with_phases,
    with_server,
)
from fakes.cause_tests import fires, lacks, quiet
from fakes.gpu_cases import DEVICE, GIB, MIB, RTX_3090, SERVER, gpu_case
from fakes.memory_cases import SPLIT_HOST, apple, card, ollama
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuProcess, GpuSample, HostSample
from slowtok.detectors.causes.server import cpu_fallback

QUIET = [
    pytest.param(with_device(healthy(), gpus=None), id="no GPU library answered"),
    pytest.param(with_server(firing(), gpu_layers=0), id="told to use no GPU"),
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(with_gpu(firing(), busy_ratio=0.9), id="the GPU works"),
    pytest.param(with_gpu(firing(), processes=(serving(),)), id="the model is in its memory"),
    pytest.param(with_host(firing(), server_busy_threads=1), id="one busy thread waits for a GPU"),
    pytest.param(with_phases(firing(), decode_to_at_s=1001.6), id="too short a look"),
]
NOTHING = card(0, busy_ratio=0.0)
BUSY_ELSEWHERE = card(0, GpuProcess(pid=9, name="game", memory_bytes=6 * GIB), busy_ratio=0.95)


def on_cpu(
    *,
    server: ServerFacts = SERVER,
    device: DeviceFacts = DEVICE,
    gpu: GpuSample = NOTHING,
    host: HostSample = SPLIT_HOST,
) -> Case:
    """An 8B model that eight threads decode at 150 ms per token beside a GPU."""
    return gpu_case(
        ms_per_token=150.0, completion=200, server=server, device=device, gpu=gpu, host=host
    )


def radeon() -> DeviceFacts:
    """A Radeon RX 7900 XTX."""
    gpu = replace(
        RTX_3090, name="AMD Radeon RX 7900 XTX", vendor="amd", bandwidth_bytes_per_s=960e9
    )
    return replace(DEVICE, gpus=(gpu,))


ALL_BY_ITS_WORD = ollama(8192, loaded=6.4, on_gpu=6.4)

QUIET += [
    pytest.param(
        on_cpu(
            server=replace(ollama(8192, loaded=6.4, on_gpu=3.2)), gpu=card(3_500, busy_ratio=0.0)
        ),
        id="ollama#4531: a part is on the GPU, which is 0 % busy",
    ),
    pytest.param(
        replace(on_cpu(device=apple(), gpu=replace(NOTHING, busy_ratio=0.6))),
        id="a Mac whose GPU works",
    ),
    pytest.param(gpu_case(server=replace(SERVER, gpu_indices=())), id="the CPU does nothing"),
]
AWAY = "NVIDIA driver and library versions differ (restart needed)"
DRIVER_AWAY = replace(DEVICE, gpus_reason=AWAY)


def driver_away(*, server: ServerFacts = SERVER, host: HostSample = SPLIT_HOST) -> Case:
    """The same where the driver does not answer, so that there are no readings of the GPU."""
    return replace(on_cpu(server=server, device=DRIVER_AWAY, host=host), gpu=())


QUIET += [
    pytest.param(
        driver_away(host=replace(SPLIT_HOST, server_busy_threads=1)),
        id="the driver is away, but the engine had started before and still has its GPU",
    ),
    pytest.param(
        driver_away(server=replace(SERVER, gpu_layers=10)),
        id="the driver is away, and a part was left to the CPU",
    ),
    pytest.param(
        driver_away(server=ollama(8192, loaded=6.4, on_gpu=3.2)),
        id="the driver is away, and the engine says that it has a part on the GPU",
    ),
    pytest.param(
        driver_away(server=replace(SERVER, kind="vllm")),
        id="the driver is away, and processes spin that wait for a GPU",
    ),
    pytest.param(
        on_cpu(
            server=ollama(8192, loaded=6.4, on_gpu=0.0),
            gpu=card(6_500, busy_ratio=0.0),
        ),
        id="the engine says that nothing is there, and the driver that the model is",
    ),
]
FIRING = [
    pytest.param(
        driver_away(),
        29.85 * 0.947,
        f"while the driver of NVIDIA GeForce RTX 3090 did not answer ({AWAY})",
        id="ollama#15918: the driver was updated, and the engine started after that",
    ),
    pytest.param(
        on_cpu(server=ALL_BY_ITS_WORD, host=replace(SPLIT_HOST, server_busy_threads=6)),
        29.85 * 0.947,
        "on 6 CPU threads while NVIDIA GeForce RTX 3090 was 0 % busy and held none of the model, "
        "although Ollama said that 100 % of the model was there",
        id="ollama#8623: 600 % CPU, the GPU's memory empty, ps says 100 % GPU",
    ),
    pytest.param(
        on_cpu(
            server=ALL_BY_ITS_WORD,
            gpu=replace(NOTHING, processes=None, free_bytes=24 * GIB - 400 * MIB),
        ),
        29.85 * 0.947,
        "no compatible GPUs",
        id="whose memory it is is hidden, but hardly any is in use",
    ),
    pytest.param(
        on_cpu(server=replace(SERVER, gpu_indices=()), gpu=BUSY_ELSEWHERE),
        29.85 * 0.947,
        "was 95 % busy and held none of the model",
        id="the GPU works for another program",
    ),
    pytest.param(
        replace(on_cpu(server=ollama(8192, loaded=6.4, on_gpu=0.0)), gpu=()),
        29.85 * 0.947,
        "held none of the model",
        id="the engine says so, and no GPU reading is there",
    ),
    pytest.param(
        on_cpu(device=radeon()), 29.85 * 0.947, "--device /dev/kfd --device /dev/dri", id="AMD"
    ),
    pytest.param(
        on_cpu(
            device=apple(),
            gpu=replace(
                NOTHING, total_bytes=None, free_bytes=None, processes=None, busy_ratio=0.08
            ),
            host=replace(SPLIT_HOST, server_busy_threads=None),
        ),
        29.85 * 0.875,
        "on 8 CPU threads while Apple M3 Max idled",
        id="a Mac: no processes, no memory of its own, threads not counted",
    ),
    pytest.param(firing(), 3.008 * 0.834, "instead of about 900", id="the GPU holds nothing"),
    pytest.param(
        with_gpu(firing(), processes=(replace(serving(), memory_bytes=2 * 2**20),)),
        3.008 * 0.834,
        "NVIDIA GeForce RTX 3090 was 0 % busy",
        id="a context without weights",
    ),
    pytest.param(
        with_gpu(firing(), processes=(replace(serving(), is_server=False),)),
        3.008 * 0.834,
        "--n-gpu-layers 99",
        id="another process has the memory",
    ),
]
MISSING = [
    pytest.param(replace(firing(), gpu=()), "GPU samples during decode", id="no GPU samples"),
    pytest.param(with_gpu(firing(), busy_ratio=None), "GPU utilisation", id="no utilisation"),
    pytest.param(replace(firing(), host=()), "host samples during decode", id="no host samples"),
    pytest.param(
        with_host(firing(), server_busy_threads=None, server_cpu_cores=None),
        "busy threads of the server",
        id="server not mapped",
    ),
    pytest.param(with_gpu(firing(), processes=None), "processes on the GPU", id="processes hidden"),
    pytest.param(
        with_gpu(firing(), processes=(replace(serving(), memory_bytes=None),)),
        "GPU memory of the server",
        id="memory hidden by the driver",
    ),
    pytest.param(
        with_envelope(firing(), expected_tps=None),
        "decode rate expected of this GPU",
        id="no expectation",
    ),
    pytest.param(with_phases(firing(), decode_s=None), "decode time", id="no decode time"),
]


test_quiet = quiet(cpu_fallback, QUIET)
test_fires = fires(cpu_fallback, "lost_s said", FIRING, phase="decode")
test_names_the_missing_fact = lacks(cpu_fallback, MISSING)
