from dataclasses import replace

import pytest

from fakes.cases import with_device, with_envelope, with_host, with_server, with_tokens
from fakes.cause_tests import fires, found, lacks, quiet
from fakes.gpu_cases import (
    GIB,
    HEALTHY_MS,
    MIB,
    SERVING,
    gpu_case,
    with_card,
    with_readings,
)
from fakes.link_cases import (
    FULL,
    evicted,
    fetching,
    idle_controller,
    multi_gpu_split,
    pair,
    stepped,
    with_env,
)
from fakes.link_cases import vram_spill as firing
from fakes.memory_cases import partial_offload
from slowtok.detectors.case.case import Case, History
from slowtok.detectors.case.finding import UNNAMED
from slowtok.detectors.causes.memory import vram_spill

FIRES_AT = 6 * HEALTHY_MS
QUIET = [
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(with_server(firing(), gpu_layers=0), id="told to use no GPU"),
    pytest.param(with_env(firing(), unified=False), id="Linux without the variable: CUDA OOM"),
    pytest.param(
        with_server(with_device(firing(), os="linux"), kind="vllm"),
        id="vLLM on Linux runs out of memory instead",
    ),
    pytest.param(with_device(firing(), os="macos"), id="macOS"),
    pytest.param(
        with_server(firing(), kind="vllm", cpu_offload_bytes=4 * GIB),
        id="vLLM was told to keep weights in RAM",
    ),
    pytest.param(with_card(firing(), unified_memory=True), id="shares the machine's memory"),
    pytest.param(
        fetching(18e9, ms_per_token=FIRES_AT, free_bytes=6 * GIB), id="a quarter of it is free"
    ),
    pytest.param(
        fetching(20e6, ms_per_token=HEALTHY_MS, power_w=335.0),
        id="VRAM 98 % full, as vLLM fills it",
    ),
    pytest.param(
        fetching(20e6, ms_per_token=FIRES_AT), id="busy at low power, but nothing crosses"
    ),
    pytest.param(partial_offload(), id="layers on the CPU by design"),
    pytest.param(
        fetching(lambda s: 20e9 if s < 0.2 else 20e6, ms_per_token=HEALTHY_MS),
        id="traffic in prefill: weights sent over by design",
    ),
    pytest.param(fetching(18e9, ms_per_token=1.9), id="too short for utilisation"),
    pytest.param(multi_gpu_split(), id="tensor parallel without much traffic"),
    pytest.param(
        pair(
            replace(gpu_case().server, gpu_indices=(0, 1), split_mode="layer"),
            {"pcie_rx_bytes_per_s": 18e9, "pcie_tx_bytes_per_s": 17e9},
            {"pcie_rx_bytes_per_s": 18e9, "pcie_tx_bytes_per_s": 17e9},
            ms_per_token=40.0,
            **FULL,
        ),
        id="as much out as in: results of several GPUs",
    ),
    pytest.param(evicted(0), id="AMD: the driver moved nothing"),
    pytest.param(
        with_readings(
            with_device(gpu_case(ms_per_token=12.0), os="windows"),
            processes=(replace(SERVING, host_memory_bytes=400 * MIB),),
        ),
        id="Windows: buffers in RAM, as any process has",
    ),
    pytest.param(evicted(16 * MIB), id="AMD: next to nothing moved"),
    pytest.param(
        with_readings(idle_controller(), memory_busy_ratio=0.5), id="its own memory is at work"
    ),
    pytest.param(
        with_readings(idle_controller(), free_bytes=700 * MIB + 300 * MIB),
        id="memory controller idle, but not full",
    ),
]
FIRING = [
    # 0.8 GB per token at 26 GB/s is 32 ms; 39 ms were lost, within what faults make of it
    pytest.param(firing(), 38.8, "fetched 18.0 GB/s from RAM", id="Windows, by the link"),
    pytest.param(
        fetching(18e9, ms_per_token=12.0), 8.4, "carries about 25.8", id="no more than was fetched"
    ),
    pytest.param(
        with_env(firing(), unified=True),
        38.8,
        "unset GGML_CUDA_ENABLE_UNIFIED_MEMORY",
        id="Linux with the variable",
    ),
    pytest.param(with_device(firing(), os=None), 38.8, "Sysmem", id="system not known"),
    pytest.param(
        idle_controller(), 70.0, "used its own memory only 2 %", id="turboquant#77: no PCIe counter"
    ),
    pytest.param(
        evicted(1536 * MIB), 72.0, "1.5 GiB of what the server put", id="AMD: the driver says it"
    ),
    pytest.param(
        with_readings(
            with_device(gpu_case(ms_per_token=80.0), os="windows"),
            processes=(replace(SERVING, host_memory_bytes=1536 * MIB),),
            **FULL,
        ),
        72.0,
        "1.0 GiB of what the server put on the GPU are in RAM",
        id="Windows: the driver says it",
    ),
    pytest.param(
        stepped(
            fetching(lambda s: 18e9 if s > 12 else 20e6, ms_per_token=30.0),
            at=0.4,
            times=6.0,
        ),
        22.0,
        "From token 800 on GPU 0 (NVIDIA GeForce RTX 3090) fetched 18.0",
        id="begins in the middle, when the KV cache has grown",
    ),
    pytest.param(
        with_server(firing(), kind="ollama"), 38.8, "lower num_gpu", id="words for Ollama"
    ),
    pytest.param(
        with_readings(evicted(1536 * MIB), free_bytes=None),
        72.0,
        "Free about 2.5 GiB",
        id="free memory not told",
    ),
]
MISSING = [
    pytest.param(replace(firing(), gpu=()), "GPU samples during decode", id="no samples"),
    pytest.param(with_readings(firing(), busy_ratio=None), "GPU utilisation", id="MIG"),
    pytest.param(
        with_readings(firing(), pcie_rx_bytes_per_s=None, memory_busy_ratio=None),
        "PCIe traffic",
        id="neither traffic nor memory use",
    ),
    pytest.param(
        with_readings(firing(), pcie_width=None), "PCIe link of the working GPU", id="no link"
    ),
    pytest.param(
        with_device(idle_controller(), os=None), "operating system of the machine", id="which OS"
    ),
    pytest.param(
        with_envelope(idle_controller(), expected_tps=None),
        "decode rate expected of this GPU",
        id="no expectation",
    ),
    pytest.param(
        with_tokens(evicted(GIB), completion=None), "number of generated tokens", id="no count"
    ),
]


test_quiet = quiet(vram_spill, QUIET)
test_fires = fires(vram_spill, "lost_s said", FIRING, phase="decode", rel=0.03)
test_names_the_missing_fact = lacks(vram_spill, MISSING)


def test_much_that_is_fetched_while_the_gpu_waits_is_not_named_and_not_ruled_out() -> None:
    case = fetching(18e9, ms_per_token=FIRES_AT, busy_ratio=0.4)

    assert vram_spill.detect(case) is UNNAMED


def test_bytes_that_were_counted_prove_their_time_unless_something_speaks_against() -> None:
    counted, doubted = firing(), with_host(firing(), server_cpu_cores=6.0)
    share = 18e9 / (0.82 * 16 * 1.969e9)

    finding = found(vram_spill, counted)
    assert finding.proof_s == pytest.approx(share * (counted.phases.decode_s or 0.0), rel=0.01)
    unsure = found(vram_spill, doubted)
    assert unsure.proof_s == 0.0


def two_in_turns(
    *, rx: float, ms_per_token: float = 80.0, busy: float = 0.5, free_bytes: int = 250 * MIB
) -> Case:
    """Two cards of a split by layers on Windows: each works and fetches for half of the time."""
    readings = {"busy_ratio": busy, "pcie_rx_bytes_per_s": rx, "pcie_tx_bytes_per_s": rx / 12}
    full = {"power_w": 110.0, "pcie_generation": 4, "pcie_width": 16, "free_bytes": free_bytes}
    server = replace(gpu_case().server, gpu_indices=(0, 1), split_mode="layer")
    case = pair(server, readings, readings, ms_per_token=ms_per_token, **full)
    return with_device(case, os="wsl")


def test_two_cards_that_fetch_in_turns_spill_together() -> None:
    finding = found(vram_spill, two_in_turns(rx=6e9))

    assert "2 GPUs in turns fetched 12.0 GB/s" in finding.summary
    assert finding.proof_s > 0


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(two_in_turns(rx=30e6, ms_per_token=12.0), id="healthy and full"),
        pytest.param(two_in_turns(rx=6e9, free_bytes=6 * GIB), id="both have room"),
        pytest.param(two_in_turns(rx=3e9), id="too little for the link"),
    ],
)
def test_two_cards_in_turns_that_do_not_spill(case: Case) -> None:
    assert vram_spill.detect(case) is None


def test_what_other_programs_cannot_hold_is_not_theirs_to_free() -> None:
    little, much = two_in_turns(rx=6e9), two_in_turns(rx=11e9, ms_per_token=600.0)

    few = found(vram_spill, with_readings(little, processes=None))
    assert "close browsers" in few.remedy
    many = found(vram_spill, with_readings(much, processes=None))
    assert "smaller quantisation or model, so that about 14.1 GiB less" in many.remedy
    assert "Sysmem" not in many.remedy  # a policy of Windows' own programs, not of those in WSL


def test_prediction_is_bounded_by_what_the_link_moved() -> None:
    """10 GB/s are 39 % of the link; at the slowest rate of faults that is all of the time."""
    slow = found(vram_spill, fetching(10e9, ms_per_token=400.0))

    assert slow.lost_s == pytest.approx(0.97 * 399.6, rel=0.01)


test_confidence_follows_the_evidence = fires(
    vram_spill,
    "confidence",
    [
        pytest.param(firing(), 0.95, id="traffic, full memory, low power"),
        pytest.param(
            replace(firing(), history=History(best_power_w=160.0)), 0.54, id="at its own power"
        ),
        pytest.param(with_env(firing(), unified=None), 0.57, id="Linux, variable not seen"),
        pytest.param(with_host(firing(), server_cpu_cores=6.0), 0.57, id="the CPU computes, too"),
        pytest.param(
            with_readings(firing(), free_bytes=int(1.5 * GIB)), 0.54, id="memory not full"
        ),
    ],
)
