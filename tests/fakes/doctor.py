"""What one look may see: a quiet machine with one engine, on a GPU or on cores."""

from dataclasses import replace
from typing import Any

from fakes.cases import QUIET_HOST
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts, GpuProcess, GpuSample, HostSample
from slowtok.proxy.inspection.check import Check
from slowtok.proxy.inspection.examine import examine
from slowtok.proxy.inspection.seen import EngineSeen, Seen, ServingSeen

GIB = 2**30
NAME, URL = "llama-server:8080", "http://127.0.0.1:8080"

CARD = GpuFacts(
    index=0,
    uuid="GPU-1",
    name="NVIDIA GeForce RTX 4090",
    vendor="nvidia",
    total_bytes=24 * GIB,
    max_sm_clock_mhz=3105,
    max_memory_clock_mhz=10501,
    bandwidth_bytes_per_s=1008e9,
    driver="580.95.05",
    default_power_limit_w=450.0,
    max_pcie_generation=4,
    max_pcie_width=16,
    unified_memory=False,
)
MODEL = ModelFacts(
    name="llama-8b",
    path="/models/llama-8b.gguf",
    quantisation="Q4_K_M",
    file_bytes=5 * GIB,
    read_bytes=int(4.6 * GIB),
    layers=32,
    kv_bytes_per_token=131_072.0,
    bits_per_weight=4.8,
)
SERVER = ServerFacts(
    kind="llama-server",
    name=NAME,
    url=URL,
    version="b9000",
    local=True,
    pid=4711,
    context_tokens=8192,
    slots=1,
    gpu_layers=-1,
    kv_type_k="f16",
    kv_type_v="f16",
    gpu_indices=(0,),
    slept=False,
    kv_cache_tokens=8192,
)
DEVICE = DeviceFacts(
    gpus=(CARD,),
    cpu_physical_cores=8,
    cpu_logical_cores=16,
    ram_bytes=64 * GIB,
    ram_bandwidth_bytes_per_s=60e9,
    cpu_governor="schedutil",
)
HOST = replace(
    QUIET_HOST,
    cpu_cores=16,
    cpu_busy_cores=0.4,
    available_bytes=50 * GIB,
    server_cpu_cores=0.1,
    server_busy_threads=0,
    server_allowed_cores=16,
)
RESTING: dict[str, Any] = {
    "busy_ratio": 0.0,
    "power_w": 22.0,
    "power_limit_w": 450.0,
    "sm_clock_mhz": 210,
    "memory_clock_mhz": 405,
    "pstate": 8,
    "reasons": 0x1,
    "temperature_c": 38,
    "temperature_margin_c": 45,
    "free_bytes": 16 * GIB,
    "total_bytes": 24 * GIB,
    "reserved_bytes": GIB // 2,
    "pcie_generation": 1,
    "pcie_width": 16,
    "throttled_sw_thermal_ns": 903_158_000,
    "throttled_hw_thermal_ns": 0,
    "throttled_power_brake_ns": 0,
    "processes": (
        GpuProcess(pid=4711, name="llama-server", memory_bytes=7 * GIB, is_server=True),
        GpuProcess(pid=900, name="Xorg", memory_bytes=GIB // 2, is_server=False),
    ),
}
WORKING: dict[str, Any] = RESTING | {
    "busy_ratio": 0.97,
    "power_w": 448.0,
    "sm_clock_mhz": 2520,
    "memory_clock_mhz": 10251,
    "pstate": 2,
    "reasons": 0x4,
    "temperature_c": 83,
    "temperature_margin_c": 8,
    "pcie_generation": 4,
}


def gpu_samples(readings: dict[str, Any], **last: Any) -> tuple[GpuSample, ...]:
    """1.5 s at 10 Hz; `last` changes the newest one."""
    all_of_it = [GpuSample(at_s=100 + i / 10, index=0, **readings) for i in range(16)]
    return (*all_of_it[:-1], replace(all_of_it[-1], **last))


def host_samples(**changes: Any) -> tuple[HostSample, ...]:
    """1.5 s at 5 Hz."""
    return tuple(replace(HOST, at_s=100 + i / 5, span_s=0.2, **changes) for i in range(8))


def seen(
    *,
    server: ServerFacts = SERVER,
    model: ModelFacts = MODEL,
    device: DeviceFacts = DEVICE,
    gpu: tuple[GpuSample, ...] | None = None,
    host: tuple[HostSample, ...] | None = None,
    **more: Any,
) -> Seen:
    """One engine with one model; without changes all is well and at rest."""
    samples = gpu_samples(RESTING) if gpu is None else gpu
    readings = host_samples() if host is None else host
    engine = EngineSeen(
        name=NAME,
        url=URL,
        answers=True,
        server=server,
        models=(model.name or "?",),
        serving=(ServingSeen(server=server, model=model),),
        host=readings,
        gpu=samples,
    )
    whole: dict[str, Any] = {
        "engines": (engine,),
        "device": device,
        "gpu": samples,
        "host": readings,
        "swap_used_bytes": 0,
        **more,
    }
    return Seen(**whole)


def checks(what: Seen, name: str) -> list[Check]:
    """The checks of that name."""
    return [check for check in examine(what) if check.name == name]


def states(what: Seen) -> dict[str, str]:
    """All checks that are not plainly well, by name."""
    return {check.name: check.state for check in examine(what) if check.state != "ok"}
