from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import (
    with_device,
    with_envelope,
    with_host,
    with_phases,
    with_server,
)
from fakes.cause_tests import fires, lacks, quiet
from fakes.gpu_cases import (
    HEALTHY_MS,
    RTX_3090,
    gpu_case,
    sampled,
    with_card,
    with_readings,
)
from fakes.link_cases import healthy_layers, multi_gpu_split, streamed, vram_spill
from fakes.link_cases import pcie_link as firing
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.gpu import pcie_link


def rx580(**readings: Any) -> Case:
    """robertrosenbusch/gfx803_rocm#51: x1 riser, 3.5 instead of 11.5 tokens/s; AMD: no traffic."""
    card = replace(RTX_3090, name="AMD Radeon RX 580", vendor="amd", max_pcie_generation=3)
    slow = with_device(gpu_case(ms_per_token=1000 / 3.5, completion=100), gpus=(card,), os="linux")
    silent = {"pcie_rx_bytes_per_s": None, "pcie_tx_bytes_per_s": None, "pstate": None}
    thin = {"pcie_generation": 2, "pcie_width": 1, "busy_ratio": 0.4, **silent, **readings}
    return with_envelope(with_readings(slow, **thin), expected_tps=11.5)


def replaying(count: float) -> Case:
    """Weights come over a full link on which so many transfers are repeated per second."""
    return with_readings(
        vram_spill(), pcie_replays=lambda s: int(count * s), pcie_rx_bytes_per_s=12e9
    )


def tensor(*, rx: float, tx: float, width: int = 1, generation: int = 2) -> Case:
    """Two GPUs that compute each layer together over a link below what their slots can do."""
    return with_readings(
        multi_gpu_split(),
        pcie_rx_bytes_per_s=rx,
        pcie_tx_bytes_per_s=tx,
        pcie_generation=generation,
        pcie_width=width,
    )


QUIET = [
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(with_readings(gpu_case(), pcie_generation=1, busy_ratio=0.0), id="idle link"),
    pytest.param(
        with_readings(gpu_case(), pcie_generation=lambda s: 1 if s < 1.5 else 4),
        id="the link comes up when the GPU works",
    ),
    pytest.param(
        with_readings(gpu_case(ms_per_token=20.0), pcie_generation=1, pstate=8),
        id="generation 1 in a low performance state",
    ),
    pytest.param(
        with_readings(
            with_card(gpu_case(ms_per_token=20.0), unified_memory=True),
            pcie_generation=1,
            pcie_width=1,
            pcie_rx_bytes_per_s=None,
        ),
        id="a SoC's placeholder",
    ),
    pytest.param(
        with_readings(gpu_case(ms_per_token=20.0), pcie_width=4),
        id="wholly on one GPU: little crosses (llama.cpp#4766)",
    ),
    pytest.param(vram_spill(), id="a spill over a sound link"),
    pytest.param(multi_gpu_split(), id="tensor parallel over a sound link"),
    pytest.param(healthy_layers(), id="layers on two GPUs"),
    pytest.param(streamed(width=16, rx=20e9), id="weights sent over a sound link"),
    pytest.param(tensor(rx=20e6, tx=15e6), id="TP on a riser, less than a tenth of the time"),
    pytest.param(
        with_readings(multi_gpu_split(), pcie_rx_bytes_per_s=2e9, pcie_tx_bytes_per_s=2e9),
        id="much crosses both ways, over sound links",
    ),
    pytest.param(streamed(rx=0.5e9), id="narrow, but a seventh of it in use"),
    pytest.param(replaying(0.3), id="replays as a sound link has"),
    pytest.param(rx580(pcie_width=16), id="AMD: sound link, generation 2 of 3, CPU rests"),
    pytest.param(rx580(busy_ratio=0.97), id="a riser, but the GPU never waits"),
    pytest.param(
        with_envelope(rx580(), expected_tps=3.6 - 0.2), id="a riser, and as fast as expected"
    ),
]
FIRING = [
    # 200 of 410 MB/s in each direction; at x16 of generation 4 next to nothing
    pytest.param(
        firing(), "decode", 13.4, "generation 2 with 1 lane instead of", id="TP on a riser"
    ),
    # 130 MB/s into the GPU take 0.16 of the time, with those out of it 0.33; decode lost 3.6 s
    pytest.param(
        tensor(rx=130e6, tx=140e6, width=4, generation=1),
        "decode",
        3.56,
        "was 33 % in use",
        id="TP: what goes out is waited for before what comes in",
    ),
    pytest.param(streamed(), "prefill", 16.2, "prefill lost about", id="x2 in place of x16"),
    pytest.param(
        streamed(generation=3, width=8, rx=5e9),
        "prefill",
        # 5 of 6.5 GB/s that a link with 25.8 would carry in a quarter of the time
        20 * (5 / 6.46) * 0.75 * 0.99,
        "instead of generation 4 with 16",
        id="half the generation, half the lanes",
    ),
    pytest.param(
        with_card(
            streamed(generation=3, width=4, rx=2.5e9), max_pcie_width=4, max_pcie_generation=3
        ),
        "prefill",
        20 * (2.5 / 3.23) * 0.75 * 0.99,
        "with 4 lanes: it carries about 3.2 GB/s",
        id="the slot's best, as narrow as a riser",
    ),
    pytest.param(
        with_phases(streamed(), load_s=30.0, prefill_from_at_s=1015.0),
        "load",
        30 * 0.92 * 0.875,
        "load lost about",
        id="a load through it",
    ),
    pytest.param(
        replaying(100), "decode", 46.75 * 12 / 25.8, "had to be repeated", id="transfers repeated"
    ),
    pytest.param(rx580(), "decode", 19.7, "with 1 lane", id="gfx803#51: 3.5 instead of 11.5"),
    pytest.param(
        with_readings(firing(), pcie_rx_bytes_per_s=None, pcie_tx_bytes_per_s=None),
        "decode",
        11.55,
        "--pipeline-parallel-size",
        id="TP on a riser, traffic not told",
    ),
]
MISSING = [
    pytest.param(
        with_readings(vram_spill(), pcie_width=None), "PCIe link of the working GPU", id="no link"
    ),
    pytest.param(
        with_host(rx580(), server_cpu_cores=6.0), "PCIe traffic", id="AMD, layers on the CPU"
    ),
]


test_quiet = quiet(pcie_link, QUIET)
test_fires = fires(pcie_link, "phase lost_s said", FIRING)
test_names_the_missing_fact = lacks(pcie_link, MISSING)


def test_link_that_nobody_saw_at_work_is_no_matter_where_little_crosses() -> None:
    short = gpu_case(ms_per_token=HEALTHY_MS, completion=100)
    unseen = replace(short, gpu=sampled(replace(short.gpu[0], pcie_width=None), 1000.0, 1001.0))

    assert pcie_link.detect(unseen) is None
