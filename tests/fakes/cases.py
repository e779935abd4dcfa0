"""Cases for detectors: a healthy one, and one for each cause that it explains.

The healthy case has the numbers of a real llama-server (SmolLM2-135M, Q4_1, two threads, a virtual
machine with two cores). Readings that say "measured" come from provocations on the same machine.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slowtok.detectors.case.case import (
    Case,
    Envelope,
    Neighbours,
    Phases,
    PromptPrefix,
    Range,
    Timeline,
    Tokens,
)
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts, GpuProcess, GpuSample, HostSample

SENT_AT_S = 1000.0
SAMPLE_S = 0.5
COMPLETION_TOKENS = 450

QUIET_HOST = HostSample(
    at_s=0.0,
    span_s=SAMPLE_S,
    cpu_cores=2,
    cpu_busy_cores=2.0,
    cpu_steal_cores=0.0,
    busiest_core_ratio=1.0,
    available_bytes=20 * 2**30,
    swap_in_bytes_per_s=0.0,
    psi_cpu_some_ratio=0.01,
    psi_io_full_ratio=0.0,
    psi_memory_full_ratio=0.0,
    server_cpu_cores=1.98,
    server_busy_threads=2,
    server_threads=14,
    server_processes=1,
    server_main_process_cores=1.98,
    server_busiest_process_cores=1.98,
    server_run_delay_cores=0.02,
    server_anon_bytes=134_782_976,
    server_file_bytes=117_424_128,
    server_major_faults_per_s=0.0,
    server_read_bytes_per_s=0.0,
    server_allowed_cores=2,
    server_throttled_ratio=0.0,
    server_throttled_s_per_s=0.0,
)


def case(
    *, queue_s: float = 0.0, load_s: float = 0.0, prefill_s: float = 0.1, ms_per_token: float = 6.7
) -> Case:
    """A case whose phases have these lengths; everything else in it is healthy."""
    prefill_from = SENT_AT_S + queue_s + load_s
    decode_from = prefill_from + prefill_s
    decode_s = ms_per_token / 1000 * (COMPLETION_TOKENS - 1)
    decode_to = decode_from + decode_s
    return Case(
        timeline=Timeline(
            request_id="0199f3c2-0000-7000-8000-000000000001",
            path="/v1/chat/completions",
            model="smollm2",
            stream=True,
            status=200,
            ended="length",
            started_unix_s=1.8e9,
            accepted_at_s=SENT_AT_S - 0.0005,
            sent_at_s=SENT_AT_S,
            headers_at_s=decode_from,
            first_token_at_s=decode_from,
            last_token_at_s=decode_to,
            last_byte_at_s=decode_to,
            delivered_at_s=decode_to,
            itl_p50_s=ms_per_token / 1000,
            itl_p99_s=2 * ms_per_token / 1000,
            tokens=Tokens(prompt=240, cached=170, completion=COMPLETION_TOKENS),
        ),
        phases=Phases(
            source="engine",
            queue_s=queue_s,
            load_s=load_s,
            prefill_s=prefill_s,
            decode_s=decode_s,
            delivery_s=0.0,
            ttft_s=decode_from - SENT_AT_S,
            total_s=decode_to - SENT_AT_S,
            decode_stream_s=decode_s,
            prefill_tps=70 / prefill_s,
            decode_tps=1000 / ms_per_token,
            prefill_from_at_s=prefill_from,
            decode_from_at_s=decode_from,
            decode_to_at_s=decode_to,
        ),
        prompt=PromptPrefix(
            chars=1000,
            common_prefix_chars=720,
            shared_ratio=0.75,
            first_difference=32,
            difference_message=4,
            difference_role="user",
            granularity_chars=16,
            previous_age_s=40.0,
        ),
        host=_samples(decode_to),
        neighbours=Neighbours(counted=True),
        server=ServerFacts(
            kind="llama-server",
            url="http://127.0.0.1:8080",
            local=True,
            pid=4711,
            context_tokens=4096,
            slots=2,
            gpu_layers=0,
            threads=2,
            memory_mapped=True,
            slept=False,
            uptime_s=600.0,
        ),
        model=ModelFacts(
            name="smollm2",
            file_bytes=98_000_000,
            read_bytes=92_000_000,
            layers=30,
            kv_bytes_per_token=23_040.0,
        ),
        device=DeviceFacts(
            gpus=(),
            cpu_physical_cores=2,
            cpu_logical_cores=2,
            ram_bytes=24 * 2**30,
            ram_bandwidth_bytes_per_s=50e9,
        ),
        envelope=Envelope(
            decode=Range(low=76.0, high=210.0),
            expected_tps=151.0,
            roofline_tps=151.0,
            ceiling_tps=500.0,
            basis="roofline",
            context_tokens=465,
            read_bytes=92e6,
            kv_bytes=10.7e6,
        ),
    )


def healthy() -> Case:
    """A complete, quiet case on a machine without a GPU."""
    return case()


def _samples(until_s: float) -> tuple[HostSample, ...]:
    count = int((until_s - SENT_AT_S) / SAMPLE_S) + 2
    return tuple(replace(QUIET_HOST, at_s=SENT_AT_S + i * SAMPLE_S) for i in range(count))


def with_host(before: Case, **changes: Any) -> Case:
    """The case with these readings in every host sample."""
    return replace(before, host=tuple(replace(sample, **changes) for sample in before.host))


def with_server(before: Case, **changes: Any) -> Case:
    """The case with these server facts."""
    return replace(before, server=replace(before.server, **changes))


def with_phases(before: Case, **changes: Any) -> Case:
    """The case with these phases."""
    return replace(before, phases=replace(before.phases, **changes))


def with_timeline(before: Case, **changes: Any) -> Case:
    """The case with this in its timeline."""
    return replace(before, timeline=replace(before.timeline, **changes))


def with_tokens(before: Case, **changes: Any) -> Case:
    """The case with these token counts."""
    return with_timeline(before, tokens=replace(before.timeline.tokens, **changes))


def with_prompt(before: Case, **changes: Any) -> Case:
    """The case with this comparison of prompts."""
    assert before.prompt is not None
    return replace(before, prompt=replace(before.prompt, **changes))


def with_envelope(before: Case, **changes: Any) -> Case:
    """The case with this expectation."""
    return replace(before, envelope=replace(before.envelope, **changes))


def with_device(before: Case, **changes: Any) -> Case:
    """The case on another machine."""
    return replace(before, device=replace(before.device, **changes))


def with_gpu(before: Case, *, gpu_layers: int | None = -1, **sample: Any) -> Case:
    """The case beside an idle 24 GiB GPU that holds nothing; `sample` changes its readings."""
    facts = GpuFacts(index=0, name="NVIDIA GeForce RTX 3090", total_bytes=24 * 2**30)
    idle = GpuSample(
        at_s=0.0, index=0, busy_ratio=0.0, power_w=20.0, free_bytes=23 * 2**30, processes=()
    )
    samples = tuple(replace(idle, at_s=host.at_s, **sample) for host in before.host)
    on_gpu = with_device(before, gpus=(facts,))
    return with_server(replace(on_gpu, gpu=samples), gpu_layers=gpu_layers)


def host_contention() -> Case:
    """Measured beside two busy loops."""
    return with_host(
        case(ms_per_token=46.42),
        server_cpu_cores=0.98,
        server_run_delay_cores=1.00,
        cpu_busy_cores=1.99,
        server_busy_threads=0,
        psi_cpu_some_ratio=0.9,
    )


def cpu_quota() -> Case:
    """Measured with two threads under a quota of 1.5 cores."""
    return with_host(
        case(ms_per_token=8.25),
        server_cpu_cores=1.52,
        server_run_delay_cores=0.54,
        cpu_busy_cores=1.56,
        server_quota_cores=1.5,
        server_throttled_ratio=0.73,
        server_throttled_s_per_s=0.468,
    )


def cpu_quota_of_one_core() -> Case:
    """Measured with two threads under a quota of one core."""
    return with_host(
        case(ms_per_token=20.16),
        server_cpu_cores=1.05,
        server_run_delay_cores=0.96,
        cpu_busy_cores=1.12,
        server_quota_cores=1.0,
        server_throttled_ratio=0.91,
        server_throttled_s_per_s=0.934,
    )


def threads_misconfigured() -> Case:
    """Measured with eight threads on two cores."""
    slow = with_host(
        case(ms_per_token=26.38),
        server_cpu_cores=1.54,
        server_run_delay_cores=2.59,
        cpu_busy_cores=1.44,
        server_busy_threads=0,
    )
    return with_server(slow, threads=8)


def queued() -> Case:
    """Three requests at an engine with two slots, before this one."""
    return replace(case(queue_s=2.5), neighbours=Neighbours(in_flight_at_send=3))


def batch_shared() -> Case:
    """Measured: two streams at once."""
    return replace(
        case(ms_per_token=13.88),
        neighbours=Neighbours(in_flight_at_send=1, decode_mean=1.0, decode_max=1),
    )


def model_load() -> Case:
    """The engine reports that it loaded the model first."""
    return with_server(case(load_s=4.0), slept=True)


def prompt_cache_miss() -> Case:
    """A long conversation whose first message changes in each turn."""
    slow = with_tokens(case(prefill_s=4.0), prompt=2800, cached=0)
    return with_prompt(
        slow,
        chars=12_000,
        common_prefix_chars=64,
        shared_ratio=0.98,
        first_difference=64,
        difference_message=0,
        difference_role="system",
    )


def storage_paging() -> Case:
    """Measured under a memory limit of less than weights and buffers."""
    return with_host(
        case(ms_per_token=106.55),
        server_cpu_cores=1.38,
        server_run_delay_cores=0.16,
        cpu_busy_cores=1.39,
        server_major_faults_per_s=67.9,
        server_read_bytes_per_s=714e6,
        psi_io_full_ratio=0.152,
        psi_memory_full_ratio=0.353,
        server_busy_threads=2,
    )


def long_context() -> Case:
    """A context whose KV cache is as large as the weights."""
    return with_envelope(
        case(ms_per_token=13.0), context_tokens=4000, kv_bytes=92e6, expected_tps=80.0
    )


def cpu_fallback() -> Case:
    """The CPU decodes although an idle GPU is there and the engine was not told to leave it."""
    return with_envelope(with_gpu(case()), expected_tps=900.0, decode=Range(low=700.0, high=1100.0))


def slow_reader() -> Case:
    """The client stopped reading for two seconds."""
    return with_phases(with_timeline(case(), client_blocked_s=2.5), delivery_s=2.0)


def slow_network() -> Case:
    """A remote engine decoded in 3 s what arrived over 8 s, ten tokens at a time."""
    quick = case()
    begin_s = quick.phases.decode_from_at_s or 0.0
    slow = with_phases(quick, decode_stream_s=8.0, decode_to_at_s=begin_s + 8.0, total_s=8.1)
    slow = with_timeline(
        slow,
        token_at_s=tuple(begin_s + i * 8.0 / 44 for i in range(45)),
        last_token_at_s=begin_s + 8.0,
        last_byte_at_s=begin_s + 8.0,
        delivered_at_s=begin_s + 8.0,
        itl_p50_s=8.0 / 44,
        itl_p99_s=0.3,
    )
    return replace(with_server(slow, local=False, url="http://10.0.0.7:8080"), host=())


def proxy_lag() -> Case:
    """slowtok held the request for two seconds before it sent it."""
    return with_phases(with_timeline(case(), proxy_s=2.0), total_s=5.1)


def serving() -> GpuProcess:
    """The server's process on the GPU, with the model in its memory."""
    return GpuProcess(pid=4711, name="llama-server", memory_bytes=400 * 2**20, is_server=True)


FIRING: dict[str, Callable[[], Case]] = {
    "batch-shared": batch_shared,
    "cpu-fallback": cpu_fallback,
    "cpu-quota": cpu_quota,
    "host-contention": host_contention,
    "long-context": long_context,
    "model-load": model_load,
    "prompt-cache-miss": prompt_cache_miss,
    "proxy-lag": proxy_lag,
    "queued": queued,
    "slow-network": slow_network,
    "slow-reader": slow_reader,
    "storage-paging": storage_paging,
    "threads-misconfigured": threads_misconfigured,
}
