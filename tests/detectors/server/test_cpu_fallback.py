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
from slowtok.detectors.case import Case
from slowtok.detectors.finding import Missing
from slowtok.detectors.server import cpu_fallback

QUIET = [
    pytest.param(healthy(), id="the machine has no GPU"),
    pytest.param(with_device(healthy(), gpus=None), id="no GPU library answered"),
    pytest.param(with_server(firing(), gpu_layers=0), id="told to use no GPU"),
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(with_gpu(firing(), busy_ratio=0.9), id="the GPU works"),
    pytest.param(with_gpu(firing(), processes=(serving(),)), id="the model is in its memory"),
    pytest.param(with_host(firing(), server_busy_threads=1), id="one busy thread waits for a GPU"),
    pytest.param(with_phases(firing(), decode_to_at_s=1001.6), id="too short a look"),
]
FIRING = [
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


@pytest.mark.parametrize("case", QUIET)
def test_quiet(case: Case) -> None:
    assert cpu_fallback.detect(case) is None


@pytest.mark.parametrize(("case", "lost_s", "said"), FIRING)
def test_fires(case: Case, lost_s: float, said: str) -> None:
    finding = cpu_fallback.detect(case)

    assert finding is not None
    assert finding.phase == "decode"
    assert finding.lost_s == pytest.approx(lost_s, rel=0.02)
    assert said in f"{finding.summary} {finding.remedy}"


@pytest.mark.parametrize(("case", "fact"), MISSING)
def test_names_the_missing_fact(case: Case, fact: str) -> None:
    with pytest.raises(Missing) as missing:
        cpu_fallback.detect(case)

    assert missing.value.fact == fact
