"""Reports in which the engine's code or its host was what took the time."""

from cases.parts import (
    Asked,
    Report,
    build,
    card,
    serving,
    weights,
)
from slowtok.detectors.case.case import Baseline, History
from slowtok.detectors.case.engine import ModelFacts

MINEFIELD = "https://github.com/Blackwellboy/model-serving-minefield"


def _kv_type_on_cpu() -> Report:
    case = build(
        Asked(tps=None, completion=1, prompt=512, prefill_s=512 / 197),
        kind="llama-server",
        model=ModelFacts(name="27b", parameters=27_000_000_000, active_parameters=27_000_000_000),
        cards=(card("NVIDIA GeForce RTX 4080", total_bytes=32 * 2**30),),
        server={"version": "b10791", "kv_type_k": "q5_1", "kv_type_v": "q5_1"},
        history=History(best_prefill_tps=1511.0),
    )
    return Report(
        name="f4-kv-type-on-cpu",
        url="https://github.com/ggml-org/llama.cpp/pull/28456",
        says="512 tokens are read at 197 a second with a q5_1 KV cache, at 1,511 with q8_0",
        case=case,
        slow=True,
        primary=("slow-kernel",),
        allowed=("slow-prefill",),
        inferred={
            "history.best_prefill_tps": "the same card and model with q8_0",
            "timeline.tokens.completion": "1: a measurement of the prompt alone",
        },
    )


def _old_build() -> Report:
    case = build(
        Asked(tps=16.0),
        kind="llama-server",
        model=weights("27b", "NVFP4", like="Qwen3.5-27B"),
        cards=(card("NVIDIA GeForce RTX 5090"),),
        gpu=({"busy_ratio": 0.98, "power_w": 270.0, "power_limit_w": 575.0},),
    )
    return Report(
        name="f6-old-build",
        url=f"{MINEFIELD} (trap 46)",
        says="16 tokens/s, 98 % busy at 270 of 575 W; a newer build gives 40 at 460 W; clocks, "
        "links and version not told",
        case=case,
        needs="clocks and link, to rule them out, and the build",
        slow=True,
        allowed=("slow-kernel",),
        inferred={"device.gpus": "575 W is that card's limit"},
    )


def _slow_core() -> Report:
    case = build(
        Asked(tps=99 / 0.3, completion=100, prefill_s=0.001, told=False),
        kind="vllm",
        cards=(card("NVIDIA GeForce RTX 3090"),),
        gpu=({"busy_ratio": 0.70},),
        server={"version": "0.5.5"},
    )
    return Report(
        name="c1-slow-core",
        url="https://github.com/vllm-project/vllm/issues/8147",
        says="300 ms a request with one CPU, 100 with another; GPU 70 % busy; neither model nor "
        "tokens told",
        case=case,
        needs="the model and the tokens; the server's busy thread",
        slow=None,
        allowed=("host-bound",),
        verdicts=("unknown",),
        inferred={"timeline.tokens.completion": "any: none is told"},
    )


def _eager() -> Report:
    cards = tuple(card("NVIDIA H100 80GB HBM3", i) for i in range(8))
    case = build(
        Asked(tps=1 / 0.044025, prefill_s=0.245, told=False),
        kind="vllm",
        model=ModelFacts(name="Grug-67B", parameters=67_000_000_000),
        cards=cards,
        server={"eager": True},
        baseline=Baseline(count=20, decode_tps=153.45),
    )
    return Report(
        name="c3-eager",
        url="https://github.com/marin-community/marin/issues/9339",
        says="44.025 ms a token and 245 ms to the first with --enforce-eager, 6.523 and 83.7 "
        "without: the only change",
        case=case,
        slow=True,
        primary=("host-bound",),
        allowed=("slow-kernel",),
        inferred={"baseline": "the same setup without the flag"},
    )


def _grammar() -> Report:
    case = build(
        Asked(tps=1000 / (85.07 + 10.62), completion=150),
        kind="llama-server",
        model=weights("llama-3-8b", "Q8_0", like="Llama-3-8B"),
        cards=(card("NVIDIA GeForce RTX 3090"),),
        gpu=({"busy_ratio": 0.10, "processes": serving()},),
        host={"server_cpu_cores": 1.0, "server_busy_threads": 1},
        host_span_s=0.2,
        server={"gpu_layers": 33},
    )
    return Report(
        name="c4-grammar",
        url="https://github.com/ggml-org/llama.cpp/issues/7554",
        says="85.07 ms of sampling and 10.62 ms of evaluation a token; GPU from 70 to 10 % busy; "
        "all layers on it",
        case=case,
        slow=True,
        primary=("host-bound",),
        inferred={
            "model": "8 bits: 10.62 ms a token on that card",
            "host": "sampling runs on one thread, which otherwise spins for the GPU",
        },
    )


def _json_mode() -> Report:
    case = build(
        Asked(tps=6.0),
        kind="ollama",
        model=weights("llama3:70b-instruct", "Q4_0", like="Llama-3-70B"),
        cards=(card("NVIDIA A100 80GB PCIe"),),
        server={"version": "0.1.38"},
        baseline=Baseline(count=20, decode_tps=23.5),
    )
    return Report(
        name="c6-json-mode",
        url="https://github.com/ollama/ollama/issues/4680",
        says="6 tokens/s with format=json, 22-25 without; how busy the GPU was is not told",
        case=case,
        needs="how busy the GPU and the server's threads were",
        slow=True,
        allowed=("host-bound",),
        inferred={
            "device.gpus": "80 GB: the model does not fit into 40",
            "baseline": "the same setup without the format",
        },
    )


def _threads_over_quota() -> Report:
    case = build(
        Asked(tps=0.27, completion=33),
        kind="ollama",
        model=weights("llama3.2:3b", "Q4_K_M", like="Llama-3.2-3B"),
        cards=(),
        host={
            "cpu_cores": 8,
            "server_quota_cores": 4.0,
            "server_throttled_ratio": 3115 / 4567,
            "server_throttled_s_per_s": 8 * 0.5 * 3115 / 4567,
            "server_run_delay_cores": 4.0,
            "server_cpu_cores": 4.0,
        },
        server={"version": "0.32.15", "threads": 8, "gpu_layers": 0, "gpu_indices": ()},
        device={
            "os": "linux",
            "cpu_logical_cores": 8,
            "ram_bandwidth_bytes_per_s": 34e9,
        },
    )
    return Report(
        name="x14-threads-over-quota",
        url="https://github.com/ollama/ollama/issues/17916",
        says="0.27 tokens/s with 8 threads on a quota of 4 cores, 12.07 with 4; throttled in "
        "3,115 of 4,567 periods (a replay vector names tobocop2/lilbee#660, which gives no rate)",
        case=case,
        slow=True,
        primary=("cpu-quota", "threads-misconfigured"),
        allowed=("host-contention",),
        inferred={
            "device.ram_bandwidth_bytes_per_s": "what 12.07 tokens/s take at a usual share of it",
            "host.server_cpu_cores": "a quota that throttles is used up",
            "host.server_throttled_s_per_s": "8 threads that spin use up 4 cores in half a period, "
            "and the kernel counts each core that it stops",
            "host.server_run_delay_cores": "8 threads that spin want 8 cores and get 4",
        },
    )


def _sticky_regression() -> Report:
    case = build(
        Asked(tps=79.0, completion=300),
        kind="ollama",
        model=weights("llama3.2:3b", "Q4_K_M", like="Llama-3.2-3B"),
        server={"version": "0.4.0"},
        baseline=Baseline(count=20, decode_tps=128.0),
    )
    return Report(
        name="x5-sticky-regression",
        url="https://github.com/ollama/ollama/issues/7717",
        says="79 tokens/s for a short prompt where 128 were, after a long one; card not told",
        case=case,
        needs="the card, and that a build before had no such ceiling",
        slow=True,
        allowed=("slow-kernel",),
        inferred={"baseline": "the first pass of the same run"},
    )


def _cpu_while_ps_says_gpu() -> Report:
    case = build(
        Asked(tps=5.0, completion=60),
        kind="ollama",
        cards=(card(None),),
        gpu=({"busy_ratio": 0.0, "processes": ()},),
        host={"server_cpu_cores": 6.0},
        server={"gpu_indices": (), "loaded_bytes": int(5e9), "loaded_gpu_bytes": int(5e9)},
    )
    return Report(
        name="v3-ps-says-gpu",
        url="https://github.com/ollama/ollama/issues/8623",
        says="Ollama says 100 % GPU, its memory is empty and the CPU is at 600 %; neither model, "
        "card nor rate told",
        case=case,
        needs="the model, the card and the rate",
        slow=None,
        allowed=("cpu-fallback",),
        verdicts=("unknown", "slow"),
        inferred={
            "phases.decode_tps": "any: none is told",
            "server.loaded_bytes": "any, all of it on the GPU",
        },
    )


REPORTS = (
    _kv_type_on_cpu,
    _old_build,
    _slow_core,
    _eager,
    _grammar,
    _json_mode,
    _threads_over_quota,
    _sticky_regression,
    _cpu_while_ps_says_gpu,
)
