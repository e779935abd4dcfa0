from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import with_envelope, with_host, with_server, with_timeline, with_tokens
from fakes.cause_tests import fires, lacks, quiet
from fakes.engine_cases import eager, old_build, poor_code, prefilled
from fakes.engine_cases import slow_kernel as firing
from fakes.gpu_cases import HEALTHY_MS, SERVING, gpu_case, with_card, with_readings
from slowtok.detectors.case.case import Case, History, Neighbours
from slowtok.detectors.case.machine import GpuProcess
from slowtok.detectors.causes.server import slow_kernel
from slowtok.detectors.diagnosis.diagnose import diagnose

KNOWN = History(best_power_w=335.0, best_sm_clock_mhz=1905)
GAME = GpuProcess(pid=77, name="game", memory_bytes=2**30, is_server=False, busy_ratio=0.4)


def on_amd(before: Case) -> Case:
    return with_card(before, vendor="amd")


def computed_on_cpu(tps: float) -> Case:
    """Prefill with attention on the CPU: 1,511 tokens/s fell to 197 (llama.cpp#28456)."""
    slow = prefilled(tps, kv_type_k="q5_1", kv_type_v="q5_1", flash_attention="on")
    return with_host(slow, server_cpu_cores=7.6, cpu_busy_cores=8.0)


def small_model(**readings: Any) -> Case:
    """A slow decode of a model whose healthy one uses a third of the bandwidth."""
    slow = poor_code(**readings)
    return replace(slow, envelope=replace(slow.envelope, read_bytes=1.8e9, kv_bytes=0.1e9))


def stalling() -> Case:
    """A stand-still in the middle takes what slow code would."""
    slow = poor_code()
    times = slow.timeline.token_at_s
    pace_s = HEALTHY_MS / 1000
    stall_s = times[-1] - times[0] - (len(times) - 1) * pace_s
    late = [times[0] + i * pace_s + (stall_s if i > 100 else 0.0) for i in range(len(times))]
    return with_timeline(slow, token_at_s=tuple(late))


QUIET = [
    pytest.param(
        with_readings(gpu_case(), dram_busy_ratio=0.3, power_w=160.0), id="as fast as expected"
    ),
    pytest.param(poor_code(dram_busy_ratio=0.75), id="slow, but the memory is used"),
    pytest.param(stalling(), id="it stood still for seconds, and was quick else"),
    pytest.param(poor_code(busy_ratio=0.5), id="the GPU waits: host-bound"),
    pytest.param(poor_code(sm_clock_mhz=900), id="low clocks: clocks-stuck"),
    pytest.param(poor_code(pcie_rx_bytes_per_s=11e9), id="the bus is busy: vram-spill"),
    pytest.param(
        poor_code(reasons=lambda s: 0x20 if int(s) % 4 == 0 else 0x4),
        id="too hot for a quarter of the time: thermal-throttle",
    ),
    pytest.param(poor_code(memory_clock_mhz=5001), id="low memory clock: clocks-stuck"),
    pytest.param(
        with_tokens(poor_code(), drafted=500, accepted=20), id="drafting uses memory otherwise"
    ),
    pytest.param(
        poor_code(
            pcie_rx_bytes_per_s=None,
            processes=(replace(SERVING, host_memory_bytes=3 * 2**30),),
            free_bytes=17 * 2**30,
        ),
        id="AMD: a part lies in RAM",
    ),
    pytest.param(poor_code(processes=(SERVING, GAME)), id="a game works there: gpu-shared"),
    pytest.param(
        replace(poor_code(), neighbours=Neighbours(decode_mean=2.0, decode_max=2)),
        id="others decode beside it",
    ),
    pytest.param(with_server(poor_code(), gpu_layers=20), id="layers in RAM"),
    pytest.param(with_server(poor_code(), flash_attention="off"), id="without flash attention"),
    pytest.param(
        poor_code(xids=lambda s: 1 if s > 2 else 0), id="the driver reported an error: gpu-fault"
    ),
    pytest.param(eager(), id="CUDA graphs are off: host-bound"),
    pytest.param(with_server(poor_code(), local=False), id="another machine's engine"),
    pytest.param(small_model(dram_busy_ratio=0.2), id="a small model needs no more of the memory"),
    pytest.param(
        with_host(firing(key="q8_0", value="q8_0"), server_cpu_cores=7.6),
        id="the CPU is busy, but builds have code for that cache",
    ),
    pytest.param(on_amd(firing()), id="other makers' builds are not known"),
    pytest.param(firing(kv_on_gpu=False), id="KV in RAM"),
    pytest.param(old_build(power_w=520.0, dram_busy_ratio=0.8), id="old, but it works"),
    pytest.param(
        poor_code(dram_busy_ratio=0.6, power_w=100.0), id="low power alone is no evidence"
    ),
    pytest.param(firing(gpu_layers=20), id="its KV cache lies with layers in RAM"),
]
FIRING = [
    pytest.param(firing(), "decode", 4.44, 0.95, "-DGGML_CUDA_FA_ALL_QUANTS=ON", id="q5_1"),
    pytest.param(
        firing(key="q8_0", value="q4_0"),
        "decode",
        4.44,
        0.95,
        "q8_0 for keys and q4_0 for values",
        id="two types (llama.cpp#24485)",
    ),
    pytest.param(
        firing(kind="ollama"), "decode", 4.44, 0.95, "OLLAMA_KV_CACHE_TYPE=q8_0", id="Ollama"
    ),
    pytest.param(
        computed_on_cpu(300.0), "prefill", 18.5, 0.95, "7.6 CPU cores computed", id="in prefill"
    ),
    pytest.param(
        replace(computed_on_cpu(300.0), host=()),
        "prefill",
        18.5,
        0.54,
        "the CPU probably computed",
        id="its threads are not seen",
    ),
    pytest.param(
        old_build(), "decode", 3.23, 0.82, "Take llama.cpp b7500 or later", id="old build (trap 46)"
    ),
    pytest.param(
        poor_code(), "decode", 6.97, 0.86, "nothing else that is visible", id="memory counted idle"
    ),
    pytest.param(
        poor_code(pcie_rx_bytes_per_s=None, processes=(replace(SERVING, host_memory_bytes=0),)),
        "decode",
        6.97,
        0.86,
        "97 % busy",
        id="AMD: the bus is not told, but that nothing lies in RAM",
    ),
    pytest.param(
        replace(poor_code(), history=KNOWN), "decode", 6.97, 0.93, "97 % busy", id="and power, too"
    ),
    pytest.param(
        replace(poor_code(dram_busy_ratio=None, memory_busy_ratio=0.2), history=KNOWN),
        "decode",
        6.97,
        0.65,
        "newer version",
        id="power far below its best; the memory's time in use is no evidence of its own",
    ),
    pytest.param(
        with_envelope(poor_code(), bandwidth_bytes_per_s=None),
        "decode",
        6.97,
        0.86,
        "nothing else that is visible",
        id="bandwidth not known",
    ),
]
MISSING = [
    pytest.param(
        gpu_case(ms_per_token=4 * HEALTHY_MS),
        "bandwidth used of the GPU's memory",
        id="busy by time, which says nothing of how much is read",
    ),
    pytest.param(replace(poor_code(), host=()), "host samples during decode", id="no host samples"),
    pytest.param(with_host(poor_code(), server_cpu_cores=None), "CPU time of the server", id="CPU"),
    pytest.param(poor_code(pcie_rx_bytes_per_s=None), "PCIe traffic", id="bus not seen"),
    pytest.param(poor_code(sm_clock_mhz=None), "clocks of the GPU", id="clocks not seen"),
    pytest.param(poor_code(processes=None), "processes on the GPU", id="processes not seen"),
    pytest.param(
        poor_code(free_bytes=10 * 2**30), "processes on the GPU", id="memory held by someone hidden"
    ),
    pytest.param(
        poor_code(processes=(SERVING, replace(GAME, busy_ratio=None))),
        "GPU time of each process",
        id="another process, nothing known of its work",
    ),
    pytest.param(poor_code(busy_ratio=None), "GPU utilisation", id="no utilisation"),
    pytest.param(replace(poor_code(), gpu=()), "GPU samples during decode", id="no GPU samples"),
    pytest.param(
        with_readings(firing(gpu_layers=None), processes=None),
        "GPU memory of the server",
        id="not known whether a part lies in RAM",
    ),
]


test_quiet = quiet(slow_kernel, QUIET)
test_fires = fires(slow_kernel, "phase lost_s confidence said", FIRING, rel=0.1)
test_names_the_missing_fact = lacks(slow_kernel, MISSING)


@pytest.mark.parametrize("case", [old_build(), poor_code()], ids=["old build", "memory idle"])
def test_leads_the_diagnosis(case: Case) -> None:
    assert next(iter(diagnose(case).findings)) == "slow-kernel"


def test_a_hidden_slow_state_stays_unexplained() -> None:
    """A GB10 whose steps flip from 63 to 94 ms, with nothing to see."""
    hidden = with_readings(
        gpu_case(ms_per_token=2 * HEALTHY_MS), memory_busy_ratio=None, power_w=None
    )

    assert diagnose(hidden).verdict == "slow"
    assert not diagnose(hidden).findings
