"""Cases of an engine that makes poor use of a healthy GPU.

Counts and ratios that a report gave are from that report; the rates are those of the healthy case,
made slower as in the report.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from fakes.cases import with_phases, with_timeline, with_tokens
from fakes.gpu_cases import (
    BUSY_GPU,
    DEVICE,
    GIB,
    GPU_HOST,
    HEALTHY_MS,
    MIB,
    SERVER,
    gpu_case,
    with_readings,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import EngineActivity, ServerFacts
from slowtok.detectors.case.machine import GpuFacts

RTX_5090 = GpuFacts(
    index=0,
    name="NVIDIA GeForce RTX 5090",
    vendor="nvidia",
    architecture="Blackwell",
    total_bytes=32 * GIB,
    max_sm_clock_mhz=3090,
    max_memory_clock_mhz=14001,
    bandwidth_bytes_per_s=1792e9,
)
VLLM = replace(
    SERVER,
    kind="vllm",
    version="0.19.0",
    gpu_layers=None,
    threads=None,
    slots=None,
    flash_attention=None,
    kv_type_k="auto",
    kv_type_v="auto",
    memory_mapped=None,
    kv_cache_tokens=20_000,
    gpu_memory_ratio=0.9,
)
KNOWN_PREFILL_TPS = 3800.0


def host_bound(**server: Any) -> Case:
    """ggml-org/llama.cpp#7554: 85 ms of sampling after 10.6 ms of work, GPU 10 % busy."""
    slow = gpu_case(ms_per_token=85.0 + 10.6, completion=200, server=replace(SERVER, **server))
    return with_readings(slow, busy_ratio=0.11, power_w=120.0, reasons=0x1, sm_clock_mhz=1400)


def eager(ms_per_token: float = 4.1 * 20, **readings: Any) -> Case:
    """vLLM with --enforce-eager: an A6000 took 4.1 times as long (VLM-Surgical#5)."""
    slow = gpu_case(ms_per_token=ms_per_token, completion=200, server=replace(VLLM, eager=True))
    return with_readings(slow, **({"busy_ratio": 0.92, "power_w": 140.0} | readings))


def slow_kernel(*, key: str = "q5_1", value: str = "q5_1", **server: Any) -> Case:
    """am17an/llama.cpp#28: with a KV cache of q5_1 decode took 2.9 times as long."""
    types = replace(SERVER, kv_type_k=key, kv_type_v=value, flash_attention="on", **server)
    host = replace(GPU_HOST, server_cpu_cores=7.6, cpu_busy_cores=8.0, server_busy_threads=8)
    slow = gpu_case(ms_per_token=2.9 * HEALTHY_MS, completion=300, server=types, host=host)
    return with_readings(slow, busy_ratio=0.45, power_w=150.0)


def old_build(version: str = "b6100-1a2b3c4d", **readings: Any) -> Case:
    """Trap 46 of model-serving-minefield: 16 instead of 40 tokens/s, 98 % busy, 270 of 575 W."""
    slow = gpu_case(
        ms_per_token=2.5 * 5.0,
        completion=400,
        server=replace(SERVER, version=version),
        device=replace(DEVICE, gpus=(RTX_5090,)),
        gpu=replace(
            BUSY_GPU,
            total_bytes=32 * GIB,
            free_bytes=32 * GIB - 7_200 * MIB,
            power_limit_w=575.0,
            sm_clock_mhz=2800,
            memory_clock_mhz=13801,
        ),
    )
    busy = {"busy_ratio": 0.98, "power_w": 270.0, "memory_busy_ratio": None}
    return with_readings(slow, **(busy | readings))


def poor_code(**readings: Any) -> Case:
    """A busy GPU whose memory is used for a fifth of what the rate should need."""
    slow = gpu_case(ms_per_token=4 * HEALTHY_MS, completion=300)
    return with_readings(slow, **({"dram_busy_ratio": 0.18, "power_w": 190.0} | readings))


def flash_attention_off(ms_per_token: float = 22.0, *, prompt: int = 7840, **server: Any) -> Case:
    """ggml-org/llama.cpp#5021: at 7,840 tokens decode took 1.95 times as long."""
    return gpu_case(
        ms_per_token=ms_per_token,
        prompt=prompt,
        prefill_s=prompt / KNOWN_PREFILL_TPS,
        completion=400,
        server=replace(SERVER, **({"flash_attention": "off"} | server)),
    )


def prefilled(tps: float, *, prompt: int = 6000, **server: Any) -> Case:
    """A healthy decode after a prefill at this rate."""
    return gpu_case(
        prompt=prompt,
        prefill_s=prompt / tps,
        completion=300,
        server=replace(SERVER, **({"micro_batch_tokens": 512, "batch_tokens": 2048} | server)),
    )


def slow_prefill() -> Case:
    """Micro-batches of 16 tokens: about a tenth of the rate by what a P40 lost (gpt4all#2605)."""
    return prefilled(380.0, micro_batch_tokens=16)


def with_gaps(before: Case, gaps_s: Sequence[float]) -> Case:
    """The case with these gaps between its tokens; its decode is as long as they are together."""
    begin_s = before.phases.decode_from_at_s or 0.0
    times = (begin_s, *(begin_s + t for t in accumulate(gaps_s)))
    decode_s = times[-1] - begin_s
    timed = with_timeline(
        with_tokens(before, completion=len(times)),
        token_at_s=times,
        last_token_at_s=times[-1],
        last_byte_at_s=times[-1],
    )
    return with_phases(
        timed,
        decode_s=decode_s,
        decode_stream_s=decode_s,
        decode_tps=len(gaps_s) / decode_s,
        decode_to_at_s=times[-1],
    )


def kv_preemption(server: ServerFacts = VLLM, **activity: Any) -> Case:
    """As in vllm-project/vllm#18115: eight requests, a full cache, and generation breaks down."""
    usual_s = 0.010
    gaps_s = [usual_s] * 300 + [6.0] + [usual_s] * 200 + [4.0] + [usual_s] * 100
    counted = {
        "span_s": 20.0,
        "alone": False,
        "running_max": 8,
        "kv_used_max_ratio": 0.98,
        "preemptions": 3,
    }
    stalled = with_gaps(gpu_case(server=server), gaps_s)
    return replace(stalled, activity=EngineActivity(**(counted | activity)))


def draft_rejected(
    *, drafted: int | None = 1378, accepted: int | None = 96, ms_per_token: float = 20.0
) -> Case:
    """ggml-org/llama.cpp#25908: 96 of 1,378 drafts taken, slower than without."""
    drafting = replace(SERVER, speculative=True)
    slow = gpu_case(ms_per_token=ms_per_token, completion=118, server=drafting)
    return with_tokens(slow, drafted=drafted, accepted=accepted)
