"""What doctor says when something does cost speed, and what to do about it."""

from dataclasses import replace
from typing import Any

import pytest

from fakes.doctor import (
    CARD,
    DEVICE,
    GIB,
    MODEL,
    RESTING,
    SERVER,
    WORKING,
    checks,
    gpu_samples,
    host_samples,
    seen,
    states,
)
from slowtok.detectors.case.machine import CpuUser, GpuFacts, GpuProcess, GpuSample
from slowtok.proxy.inspection.check import Check
from slowtok.proxy.inspection.seen import Seen

ON_CORES = replace(SERVER, gpu_layers=0, gpu_indices=(), threads=8)
NO_GPU = replace(DEVICE, gpus=())


def on_cores(**changes: Any) -> Seen:
    host = changes.pop("host", None)
    return seen(server=replace(ON_CORES, **changes), device=NO_GPU, gpu=(), host=host)


def told(**changes: Any) -> Seen:
    return seen(server=replace(SERVER, **changes))


def only(what: Seen, name: str) -> Check:
    [check] = checks(what, name)
    return check


FLAGS = {
    "gpu-layers": (told(gpu_layers=20), "warn", "-ngl is 20, of 32 layers"),
    "gpu-layers none": (told(gpu_layers=0, gpu_indices=()), "warn", "no layer is on the GPU"),
    "gpu-layers output": (told(gpu_layers=32), "note", "the output layer, which counts"),
    "kv-on-cpu": (told(kv_on_gpu=False), "warn", "-nkvo"),
    "flash-attention": (told(flash_attention="off"), "warn", "flash attention is off"),
    "flash-attention quantised": (
        told(flash_attention="off", kv_type_k="q8_0"), "warn", "the KV cache is q8_0",
    ),
    "expert-layers": (told(cpu_moe_layers=10), "note", "experts of 10 layers are kept in RAM"),
    "threads": (on_cores(threads=32), "warn", "32 threads (--threads) on 8 cores"),
    "threads logical": (on_cores(threads=16), "note", "16 threads (--threads) on 8 cores"),
    "threads over the quota": (
        on_cores(threads=8, host=host_samples(server_quota_cores=2.5)), "warn", "on 2 cores",
    ),
    "threads left to an engine that sees no quota": (
        on_cores(threads=None, host=host_samples(server_quota_cores=2.5)), "warn",
        "quota is 2.5 cores",
    ),
    "threads over the allowed cores": (
        on_cores(threads=8, host=host_samples(server_allowed_cores=4)), "warn", "on 4 cores",
    ),
    "slots": (
        told(slots=4, context_tokens=2048, kv_cache_tokens=8192), "note", "one request can use",
    ),
    "micro-batch": (told(micro_batch_tokens=64), "note", "-ub is 64, below"),
    "unified-memory": (told(unified_memory=True), "warn", "UNIFIED_MEMORY"),
    "eager": (told(kind="vllm", gpu_layers=None, eager=True), "warn", "--enforce-eager"),
    "cpu-offload": (
        told(kind="vllm", gpu_layers=None, cpu_offload_bytes=4 * GIB), "warn", "4.0 GiB",
    ),
    "prefix-caching": (
        told(kind="vllm", gpu_layers=None, prefix_caching=False), "note", "prefix caching is off",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_that_costs_speed(name: str) -> None:
    what, state, said = FLAGS[name]

    check = only(what, name.split(maxsplit=1)[0])

    assert (check.area, check.state) == ("flags", state)
    assert said in check.said
    assert check.advice


LLAMA_CPP_WORDS = ("-ngl", "-fa", "--flash-attn", "--threads", "-np", "-ub", "-nkvo", "-c ")
ADVICE = {
    "gpu-layers ollama": (
        told(kind="ollama", gpu_layers=20), "num_gpu is 20", "set num_gpu to 33 (PARAMETER",
    ),
    "gpu-layers lm-studio": (
        told(kind="lm-studio", gpu_layers=20), "GPU offload is 20", "set GPU offload to all layers",
    ),
    "flash-attention ollama": (
        told(kind="ollama", flash_attention="off"), "off", "set OLLAMA_FLASH_ATTENTION=1",
    ),
    "flash-attention lm-studio": (
        told(kind="lm-studio", flash_attention="off", kv_type_k="q8_0"), "q8_0",
        "switch on Flash Attention in the model's load settings in LM Studio",
    ),
    "threads ollama": (
        on_cores(kind="ollama", threads=32), "32 threads (num_thread)", "set num_thread to 8",
    ),
    "threads ollama by default": (
        on_cores(kind="ollama", threads=None, host=host_samples(server_quota_cores=2.5)),
        "num_thread is not set", "set num_thread to 2",
    ),
    "slots ollama": (
        told(kind="ollama", slots=4, context_tokens=2048, kv_cache_tokens=8192), "4 slots",
        "OLLAMA_NUM_PARALLEL=1",
    ),
    "micro-batch ollama": (
        told(kind="ollama", micro_batch_tokens=64), "num_batch is 64", "leave num_batch out",
    ),
    "kv-on-cpu lm-studio": (
        told(kind="lm-studio", kv_on_gpu=False), "in RAM", "let the GPU hold the KV cache",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVICE)
def test_the_advice_is_in_the_words_of_the_engine(name: str) -> None:
    what, said, advice = ADVICE[name]

    check = only(what, name.split(maxsplit=1)[0])

    assert said in check.said
    assert advice in (check.advice or "")
    assert not [w for w in LLAMA_CPP_WORDS if w in f"{check.said} {check.advice}"]


def test_a_model_that_would_fit_is_put_on_the_gpu_by_the_option_of_its_engine() -> None:
    server = replace(
        SERVER, kind="ollama", loaded_bytes=5 * GIB, loaded_gpu_bytes=2 * GIB, gpu_layers=None
    )

    advice = only(seen(server=server), "fit").advice or ""
    assert "set num_gpu to 33" in advice
    assert "-ngl" not in advice


def test_flags_are_not_judged_where_the_process_was_not_seen() -> None:
    what = told(pid=None, unmapped="docker-proxy", gpu_layers=None, eager=True)

    assert checks(what, "eager") + checks(what, "flags") == []
    process = only(what, "process")
    assert process.state == "unknown"
    assert "docker-proxy" in process.said


def holding(
    server_bytes: int, other_bytes: int = GIB // 2, free_bytes: int = GIB
) -> dict[str, Any]:
    processes = (
        GpuProcess(pid=4711, name="llama-server", memory_bytes=server_bytes, is_server=True),
        GpuProcess(pid=900, name="game", memory_bytes=other_bytes, is_server=False),
    )
    return RESTING | {"processes": processes, "free_bytes": free_bytes}


def test_weights_that_are_not_in_vram_are_told_by_what_the_server_holds() -> None:
    fit = only(seen(gpu=gpu_samples(holding(2 * GIB, free_bytes=20 * GIB))), "fit")

    assert fit.state == "warn"
    assert fit.numbers["cpu_ratio"] == pytest.approx(0.6)
    assert "-ngl 999" in (fit.advice or "")


def test_who_holds_the_memory_is_named_in_the_cure() -> None:
    big = replace(MODEL, file_bytes=14 * GIB)
    what = seen(model=big, gpu=gpu_samples(holding(3 * GIB, 18 * GIB)))

    assert "game (pid 900)" in (only(what, "fit").advice or "")
    assert "game (pid 900) 18.0 GiB" in only(what, "vram").said


def test_a_model_that_fits_with_a_smaller_context() -> None:
    what = seen(
        model=replace(MODEL, file_bytes=18 * GIB),
        server=replace(SERVER, context_tokens=65536, kv_cache_tokens=65536),
        gpu=gpu_samples(holding(12 * GIB)),
    )

    assert "context of 27," in (only(what, "fit").advice or "")


def test_a_model_that_never_fits() -> None:
    what = seen(model=replace(MODEL, file_bytes=40 * GIB), gpu=gpu_samples(holding(22 * GIB)))

    fit = only(what, "fit")
    assert fit.state == "warn"
    assert "cannot fit" in (fit.advice or "")


def test_the_word_of_the_engine_counts_first() -> None:
    server = replace(
        SERVER, kind="ollama", loaded_bytes=10 * GIB, loaded_gpu_bytes=6 * GIB, gpu_layers=None
    )

    fit = only(seen(server=server), "fit")
    assert fit.state == "warn"
    assert "40%" in fit.said
    assert "Ollama says so" in fit.said


def test_a_split_that_was_asked_for_is_warned_of_once() -> None:
    what = told(gpu_layers=16)

    assert states(what) == {"fit": "note", "gpu-layers": "warn", "link": "unknown"}


def test_an_engine_that_leaves_the_gpu_out() -> None:
    fit = only(told(gpu_indices=()), "fit")

    assert fit.state == "warn"
    assert "none of it is on a GPU" in fit.said


def test_vram_that_the_driver_attributes_to_nobody() -> None:
    hidden = RESTING | {"processes": (), "free_bytes": 10 * GIB}
    what = seen(server=replace(SERVER, gpu_indices=None), gpu=gpu_samples(hidden))

    assert "not attributed 13.5 GiB" in only(what, "vram").said
    assert only(what, "fit").state == "unknown"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ram_bytes": 4 * GIB}, "more than the machine has"),
        ({}, "only 2.0 GiB are left"),
    ],
)
def test_ram_that_is_too_small(changes: dict[str, Any], said: str) -> None:
    short = host_samples(available_bytes=2 * GIB - 134_782_976)
    what = seen(server=ON_CORES, device=replace(NO_GPU, **changes), gpu=(), host=short)

    fit = only(what, "fit")
    assert fit.state == "warn"
    assert said in fit.said


def test_a_model_file_that_nobody_may_read() -> None:
    what = seen(model=replace(MODEL, file_bytes=None, read_bytes=None))
    [engine] = what.engines
    serving = replace(engine.serving[0], unreadable="/models/x.gguf: Permission denied")
    what = replace(what, engines=(replace(engine, serving=(serving,)),))

    assert "Permission denied" in only(what, "fit").said
    assert "Permission denied" in only(what, "expected-rate").said
    assert only(what, "fit").state == "unknown"


def counting(**per_sample_ns: Any) -> tuple[GpuSample, ...]:
    return tuple(
        replace(sample, **{name: ns * i for name, ns in per_sample_ns.items()})
        for i, sample in enumerate(gpu_samples(WORKING))
    )


def facts(**changes: Any) -> Seen:
    return seen(device=replace(DEVICE, gpus=(replace(CARD, **changes),)))


def working(**changes: Any) -> Seen:
    return seen(gpu=gpu_samples(WORKING | changes))


GPU = {
    "power-limit": (working(power_limit_w=300.0), "note", "somebody lowered it"),
    "power-source battery": (working(power_source="battery"), "warn", "on battery"),
    "power-source adapter": (working(power_source="undersized"), "warn", "less than"),
    "clocks SM": (working(sm_clock_mhz=1200, reasons=0), "warn", "locked or stuck"),
    "clocks memory": (working(memory_clock_mhz=5001, reasons=0), "warn", "locked or stuck"),
    "temperature": (
        seen(gpu=counting(throttled_sw_thermal_ns=20_000_000)), "warn",
        "heat slows it down 20% of the time",
    ),
    "temperature without counters": (
        working(reasons=0x20, throttled_sw_thermal_ns=None, throttled_hw_thermal_ns=None),
        "warn", "heat slows it down now",
    ),
    "temperature close": (
        working(temperature_margin_c=2), "note",
        "2 C below the limit at which it slows down: it will slow down if",
    ),
    "limited-by": (
        seen(gpu=counting(throttled_power_brake_ns=10_000_000)), "warn", "halves its clocks",
    ),
    "link width": (working(pcie_width=8), "warn", "8 of 16 lanes"),
    "link generation": (working(pcie_generation=1), "warn", "generation 1 of 4"),
    "health": (working(xid=79, xids=1), "warn", "Xid 79"),
    "health errors": (working(ecc_errors=3, remapped_rows=0), "note", "3 memory errors"),
    "vgpu-licence": (working(vgpu_licensed=False), "warn", "has no licence"),
    "vgpu-licence hidden": (facts(virtual=True), "unknown", "cannot be seen"),
}  # fmt: skip


@pytest.mark.parametrize("name", GPU)
def test_a_gpu_that_is_held_back(name: str) -> None:
    what, state, said = GPU[name]

    check = only(what, name.split(maxsplit=1)[0])

    assert (check.area, check.about, check.state) == ("gpu", "GPU 0", state)
    assert said in check.said
    assert check.advice


RADEON = replace(CARD, vendor="amd", name="AMD Radeon RX 7900 XTX", max_power_limit_w=355.0)
OF_OTHER_MAKERS: dict[str, tuple[GpuFacts, dict[str, Any], str]] = {
    "power-limit": (RADEON, {"power_limit_w": 200.0}, "rocm-smi -d 0 --setpoweroverdrive 355"),
    "clocks": (RADEON, {"sm_clock_mhz": 1200, "reasons": 0}, "rocm-smi -d 0 --setperflevel auto"),
    "clocks apple": (
        replace(CARD, vendor="apple", unified_memory=True), {"sm_clock_mhz": 500, "reasons": 0},
        "restart the machine",
    ),
    "fit": (RADEON, {}, "HIP_VISIBLE_DEVICES does not hide"),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_OTHER_MAKERS)
def test_the_advice_for_a_gpu_of_another_maker_names_its_own_tools(name: str) -> None:
    card, changes, advice = OF_OTHER_MAKERS[name]
    unused = replace(SERVER, gpu_indices=()) if name == "fit" else SERVER
    device = replace(DEVICE, gpus=(card,))
    what = seen(server=unused, device=device, gpu=gpu_samples(WORKING | changes))

    said = only(what, name.split(maxsplit=1)[0]).advice or ""

    assert advice in said
    assert "nvidia" not in said
    assert "CUDA" not in said


HOST = {
    "cpu-limit": (
        on_cores(host=host_samples(server_quota_cores=4.0, server_throttled_ratio=0.3)),
        "warn", "quota of 4 cores",
    ),
    "cpu-limit quiet": (
        on_cores(threads=4, host=host_samples(server_quota_cores=4.0)), "note", "quota of 4 cores",
    ),
    "cpu-use": (on_cores(host=host_samples(cpu_busy_cores=8.0)), "note", "8.0 of 16 cores busy"),
    "cpu-use steal": (
        on_cores(host=host_samples(cpu_busy_cores=4.0, cpu_steal_cores=2.0)),
        "warn", "withholds 2.0 cores, 50% of what programs want",
    ),
    "cpu-use steal beside a GPU": (
        seen(host=host_samples(cpu_busy_cores=4.0, cpu_steal_cores=2.0)), "note", "withholds 2.0",
    ),
    "memory-pressure": (seen(host=host_samples(psi_memory_full_ratio=0.3)), "warn", "memory 30%"),
    "memory-pressure swap": (
        seen(host=host_samples(swap_in_bytes_per_s=20e6)), "warn", "20.0 MB/s",
    ),
    "memory-pressure disk": (seen(host=host_samples(psi_io_full_ratio=0.4)), "note", "disk 40%"),
    "power": (seen(device=replace(DEVICE, on_battery=True)), "warn", "battery"),
    "power-profile": (
        seen(device=replace(DEVICE, power_profile="power-saver")), "warn", "power-saver",
    ),
    "governor": (
        seen(device=replace(DEVICE, cpu_governor="powersave"), cpu_driver="acpi-cpufreq"),
        "warn", "lowest clock",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOST)
def test_a_host_that_holds_back(name: str) -> None:
    what, state, said = HOST[name]

    check = only(what, name.split(maxsplit=1)[0])

    assert (check.area, check.state) == ("host", state)
    assert said in check.said
    assert check.advice


def test_who_uses_a_full_machine_is_named_even_where_no_engine_answers() -> None:
    build = CpuUser(name="cc1plus", pid=77, cpu_cores=15.2, processes=16)
    nobody = Seen(device=DEVICE, host=host_samples(cpu_busy_cores=15.9), others=(build,))
    check = only(nobody, "cpu-use")

    assert check.state == "note"
    assert check.said.endswith("cc1plus (15.2 cores in 16 processes, the busiest is 77)")


def test_half_a_machine_is_no_note_beside_a_gpu() -> None:
    assert only(seen(host=host_samples(cpu_busy_cores=8.0)), "cpu-use").state == "ok"


@pytest.mark.parametrize(
    ("failure", "said", "advice"),
    [
        (None, "no reading of the host arrived", "too slow to start"),
        ("the sampling process does not run (NameError)", "does not run (NameError)", "report"),
    ],
)
def test_a_sampling_process_that_broke_is_not_called_slow(
    failure: str | None, said: str, advice: str
) -> None:
    check = only(seen(device=replace(DEVICE, sampling_failure=failure), host=()), "host")

    assert (check.area, check.state) == ("hidden", "unknown")
    assert said in check.said
    assert advice in (check.advice or "")


def test_how_the_bandwidth_of_ram_gets_known_is_said_where_the_rate_rests_on_it() -> None:
    device = replace(NO_GPU, ram_bandwidth_bytes_per_s=None)
    rate = only(seen(server=ON_CORES, device=device, gpu=()), "expected-rate")

    assert "60 GB/s assumed" in (rate.basis or "")
    assert "slowtok serve measures the RAM's bandwidth" in (rate.advice or "")
    assert only(on_cores(), "expected-rate").advice is None


def test_the_expected_rate_is_said_with_its_basis() -> None:
    rate = only(seen(), "expected-rate")

    assert rate.state == "ok"
    assert "tokens/s at an empty context" in rate.said
    assert "at 8,192 tokens" in rate.said
    assert "weights 4.60 GiB" in (rate.basis or "")
    assert rate.numbers["low_tps"] < rate.numbers["empty_low_tps"]
