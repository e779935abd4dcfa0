"""Cases on a GPU: a healthy one, and the means to change it.

The healthy case is a llama-server with Llama-3-8B (Q4_K_M) wholly on an RTX 3090: sizes from the
model's tensor table, clocks and limits of the card (P2 and a power cap are usual there), readings
as a decode at the memory's limit gives them. It was computed, not recorded.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fakes.cases import QUIET_HOST, SENT_AT_S
from slowtok.detectors.case.case import Case, Phases, Timeline, Tokens
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts, GpuProcess, GpuSample, HostSample
from slowtok.detectors.expectation.envelope import expect

MIB, GIB = 2**20, 2**30
FAST_S, HOST_S = 0.1, 0.2
PROMPT, COMPLETION = 600, 1000
HEALTHY_MS = 7.8
SERVER_PID = 4711

RTX_3090 = GpuFacts(
    index=0,
    uuid="GPU-3090",
    name="NVIDIA GeForce RTX 3090",
    vendor="nvidia",
    total_bytes=24 * GIB,
    bus_width_bits=384,
    max_sm_clock_mhz=2100,
    max_memory_clock_mhz=9751,
    bandwidth_bytes_per_s=936.1e9,
    driver="580.95",
    default_power_limit_w=350.0,
    min_power_limit_w=100.0,
    max_power_limit_w=366.0,
    max_pcie_generation=4,
    max_pcie_width=16,
    gpu_max_pcie_generation=4,
    unified_memory=False,
    mig=False,
    virtual=False,
    slowdown_temperature_c=95,
)

LLAMA_8B = ModelFacts(
    name="llama-3-8b",
    quantisation="Q4_K_M",
    file_bytes=4_920_000_000,
    read_bytes=4_620_000_000,
    parameters=8_030_000_000,
    layers=32,
    kv_bytes_per_token=131_072.0,
    bits_per_weight=4.9,
)

SERVER = ServerFacts(
    kind="llama-server",
    url="http://127.0.0.1:8080",
    local=True,
    pid=SERVER_PID,
    context_tokens=8192,
    slots=1,
    gpu_layers=99,
    threads=8,
    kv_type_k="f16",
    kv_type_v="f16",
    flash_attention="auto",
    memory_mapped=True,
    speculative=False,
    slept=False,
    uptime_s=3600.0,
    gpu_indices=(0,),
)

DEVICE = DeviceFacts(
    gpus=(RTX_3090,),
    cpu_physical_cores=8,
    cpu_logical_cores=16,
    ram_bytes=64 * GIB,
    ram_bandwidth_bytes_per_s=45e9,
)

SERVING = GpuProcess(
    pid=SERVER_PID, name="llama-server", memory_bytes=6_700 * MIB, is_server=True, busy_ratio=0.96
)

BUSY_GPU = GpuSample(
    at_s=0.0,
    index=0,
    busy_ratio=0.97,
    memory_busy_ratio=0.86,
    power_w=335.0,
    power_limit_w=350.0,
    sm_clock_mhz=1905,
    memory_clock_mhz=9501,
    pstate=2,
    reasons=0x4,
    temperature_c=69,
    temperature_margin_c=14,
    total_bytes=24 * GIB,
    reserved_bytes=300 * MIB,
    free_bytes=24 * GIB - 7_200 * MIB,
    processes=(SERVING, GpuProcess(pid=900, name="Xorg", memory_bytes=150 * MIB)),
    pcie_rx_bytes_per_s=20e6,
    pcie_tx_bytes_per_s=15e6,
    pcie_generation=4,
    pcie_width=16,
    energy_j=5_000.0,
    throttled_power_ns=10**9,
    throttled_sw_thermal_ns=10**8,
    throttled_hw_thermal_ns=0,
    throttled_power_brake_ns=0,
    xids=0,
)

GPU_HOST = replace(
    QUIET_HOST,
    span_s=HOST_S,
    cpu_cores=16,
    cpu_busy_cores=1.3,
    busiest_core_ratio=1.0,
    available_bytes=50 * GIB,
    server_cpu_cores=1.0,  # waiting for the GPU keeps one thread busy
    server_busy_threads=1,
    server_threads=20,
    server_main_process_cores=1.0,
    server_busiest_process_cores=1.0,
    server_run_delay_cores=0.005,
    server_anon_bytes=900 * MIB,
    server_file_bytes=400 * MIB,
    server_allowed_cores=16,
)


def gpu_case(
    *,
    ms_per_token: float = HEALTHY_MS,
    prefill_s: float = 0.2,
    prompt: int = PROMPT,
    cached: int = 0,
    completion: int = COMPLETION,
    model: ModelFacts = LLAMA_8B,
    server: ServerFacts = SERVER,
    device: DeviceFacts = DEVICE,
    gpu: GpuSample = BUSY_GPU,
    host: HostSample = GPU_HOST,
) -> Case:
    """A case with these rates; the expectation is the product's own, all else is healthy."""
    decode_from = SENT_AT_S + prefill_s
    decode_s = ms_per_token / 1000 * (completion - 1)
    decode_to = decode_from + decode_s
    return Case(
        timeline=Timeline(
            request_id="0199f3c2-0000-7000-8000-000000000002",
            path="/v1/chat/completions",
            model=model.name,
            stream=True,
            status=200,
            ended="stop",
            started_unix_s=1.8e9,
            accepted_at_s=SENT_AT_S - 0.0005,
            sent_at_s=SENT_AT_S,
            headers_at_s=decode_from,
            first_token_at_s=decode_from,
            last_token_at_s=decode_to,
            last_byte_at_s=decode_to,
            delivered_at_s=decode_to,
            token_at_s=tuple(decode_from + i * ms_per_token / 1000 for i in range(completion)),
            itl_p50_s=ms_per_token / 1000,
            itl_p99_s=1.5 * ms_per_token / 1000,
            tokens=Tokens(prompt=prompt, cached=cached, completion=completion),
        ),
        phases=Phases(
            source="engine",
            queue_s=0.0,
            load_s=0.0,
            prefill_s=prefill_s,
            decode_s=decode_s,
            delivery_s=0.0,
            ttft_s=decode_from - SENT_AT_S,
            total_s=decode_to - SENT_AT_S,
            decode_stream_s=decode_s,
            prefill_tps=(prompt - cached) / prefill_s,
            decode_tps=1000 / ms_per_token,
            prefill_from_at_s=SENT_AT_S,
            decode_from_at_s=decode_from,
            decode_to_at_s=decode_to,
        ),
        gpu=sampled(gpu, SENT_AT_S, decode_to),
        host=_host(host, decode_to),
        server=server,
        model=model,
        device=device,
        envelope=expect(model, device, server, prompt + completion // 2),
    )


def sampled(
    gpu: GpuSample, from_s: float, to_s: float, **series: Callable[[float], Any]
) -> tuple[GpuSample, ...]:
    """Samples at 10 Hz; `series` gives readings by the seconds since the first sample."""
    count = int((to_s - from_s) / FAST_S) + 1
    return tuple(
        replace(
            gpu,
            at_s=from_s + i * FAST_S,
            **{name: read(i * FAST_S) for name, read in series.items()},
        )
        for i in range(count)
    )


def with_readings(before: Case, **readings: Any) -> Case:
    """The case with these readings in every GPU sample; a function gets the seconds since begin."""
    first_s = before.gpu[0].at_s
    samples = tuple(
        replace(
            s,
            **{
                name: value(s.at_s - first_s) if callable(value) else value
                for name, value in readings.items()
            },
        )
        for s in before.gpu
    )
    return replace(before, gpu=samples)


def with_model(before: Case, **changes: Any) -> Case:
    """The case with these model facts; the expectation stays."""
    return replace(before, model=replace(before.model, **changes))


def with_card(before: Case, **changes: Any) -> Case:
    """The case with these facts about its first GPU."""
    first, *others = before.device.gpus or ()
    return replace(before, device=replace(before.device, gpus=(replace(first, **changes), *others)))


def _host(sample: HostSample, until_s: float) -> tuple[HostSample, ...]:
    count = int((until_s - SENT_AT_S) / HOST_S) + 2
    return tuple(replace(sample, at_s=SENT_AT_S + i * HOST_S) for i in range(count))
