"""What doctor must not raise: each of these was taken for a fault by somebody."""

from dataclasses import replace
from typing import Any

import pytest

from fakes.doctor import (
    CARD,
    DEVICE,
    GIB,
    RESTING,
    SERVER,
    WORKING,
    checks,
    gpu_samples,
    host_samples,
    seen,
    states,
)
from slowtok.detectors.case.machine import GpuProcess
from slowtok.proxy.inspection.seen import Seen

ON_CORES = replace(SERVER, gpu_layers=0, gpu_indices=(), threads=8)
NO_GPU = replace(DEVICE, gpus=())

FULL = RESTING | {
    "free_bytes": GIB // 4,
    "processes": (GpuProcess(pid=4711, name="VLLM", memory_bytes=23 * GIB, is_server=True),),
}
VLLM = replace(SERVER, kind="vllm", gpu_layers=None, kv_cache_tokens=140_000, gpu_memory_ratio=0.95)

QUIET: dict[str, Seen] = {
    "at work, at its power limit and its target temperature": seen(gpu=gpu_samples(WORKING)),
    "two slots that share one cache": seen(
        server=replace(SERVER, slots=4, context_tokens=8192, kv_cache_tokens=8192)
    ),
    "flash attention left to the engine": seen(server=replace(SERVER, flash_attention="auto")),
    "quantised KV with flash attention": seen(
        server=replace(SERVER, kv_type_k="q8_0", kv_type_v="q8_0", flash_attention="on")
    ),
    "every layer asked for": seen(server=replace(SERVER, gpu_layers=999)),
    "layers and output asked for": seen(server=replace(SERVER, gpu_layers=33)),
    "many threads that do nothing, all is on the GPU": seen(server=replace(SERVER, threads=16)),
    "cores, one thread each": seen(server=ON_CORES, device=NO_GPU, gpu=()),
    "cores, threads left to the engine": seen(
        server=replace(ON_CORES, threads=None), device=NO_GPU, gpu=()
    ),
    "unified memory asked for without a GPU": seen(
        server=replace(ON_CORES, unified_memory=True), device=NO_GPU, gpu=()
    ),
    "flash attention off on cores": seen(
        server=replace(ON_CORES, flash_attention="off"), device=NO_GPU, gpu=()
    ),
    "vLLM on cores, which have no CUDA graphs": seen(
        server=replace(ON_CORES, kind="vllm", threads=None, eager=True), device=NO_GPU, gpu=()
    ),
    "powersave of a driver that clocks up": seen(
        device=replace(DEVICE, cpu_governor="powersave"), cpu_driver="intel_pstate"
    ),
    "powersave of a driver that is not known": seen(
        device=replace(DEVICE, cpu_governor="powersave")
    ),
    "swap in use, nothing comes back": seen(swap_used_bytes=3 * GIB),
    "others busy while the GPU decodes": seen(host=host_samples(cpu_busy_cores=8.0)),
    "a quota that the GPU does not feel": seen(host=host_samples(server_quota_cores=2.0)),
    "a lower limit on a laptop, where it moves": seen(
        device=replace(DEVICE, gpus=(replace(CARD, name="NVIDIA GeForce RTX 4090 Laptop GPU"),)),
        gpu=gpu_samples(RESTING | {"power_limit_w": 80.0}),
    ),
    "a model put away to sleep": seen(
        server=replace(SERVER, slept=True),
        gpu=gpu_samples(RESTING | {"processes": (), "free_bytes": 23 * GIB}),
    ),
    "one sample with the hardware bit": seen(gpu=gpu_samples(WORKING, reasons=0x8)),
    "one sample with the heat bit": seen(gpu=gpu_samples(WORKING, reasons=0x60)),
    "clocks that heat or power explain": seen(
        gpu=gpu_samples(WORKING | {"sm_clock_mhz": 1500, "reasons": 0x4})
    ),
    "unified memory's link is a placeholder": seen(
        device=replace(DEVICE, gpus=(replace(CARD, unified_memory=True, total_bytes=None),)),
        gpu=gpu_samples({**WORKING, "pcie_width": 1, "pcie_generation": 1, "total_bytes": None}),
    ),
}


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_raised(name: str) -> None:
    raised = {check: state for check, state in states(QUIET[name]).items() if state != "unknown"}

    assert raised == {}
    assert set(states(QUIET[name])) <= {"link", "gpu"}  # at rest, or not there at all


def test_a_full_card_of_vllm_is_as_it_should_be() -> None:
    assert states(seen(server=VLLM, gpu=gpu_samples(FULL))) == {"link": "unknown"}


def test_an_idle_link_cannot_be_told() -> None:
    [link] = checks(seen(gpu=gpu_samples(RESTING | {"pcie_width": 1})), "link")

    assert link.state == "unknown"
    assert "an idle link slows down by design" in link.said


@pytest.mark.parametrize(
    "changes",
    [{"pstate": 8}, {"pstate": None}, {"busy_ratio": 0.0}, {"busy_ratio": None}],
)
def test_a_link_is_judged_only_at_work(changes: dict[str, Any]) -> None:
    low = gpu_samples(WORKING | {"pcie_generation": 1} | changes)

    assert checks(seen(gpu=low), "link")[0].state == "unknown"


def test_work_that_has_just_begun_is_too_short_for_the_link() -> None:
    early = gpu_samples(RESTING)[:8] + gpu_samples(WORKING | {"pcie_generation": 1})[8:]

    assert checks(seen(gpu=early), "link")[0].state == "unknown"


def test_a_remote_engine_is_not_judged_by_this_machine() -> None:
    remote = replace(SERVER, local=False, pid=None, gpu_layers=10, eager=True, kv_on_gpu=False)
    what = seen(server=remote, gpu=gpu_samples(RESTING))

    assert states(what) == {"link": "unknown", "remote": "unknown"}
    assert not checks(what, "fit")
    assert not checks(what, "expected-rate")
