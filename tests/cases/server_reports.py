"""Reports in which the engine, its host or its client was what took the time."""

from cases.parts import (
    Asked,
    Report,
    build,
    card,
    serving,
    weights,
)
from slowtok.detectors.case import Baseline, History, PromptPrefix
from slowtok.detectors.engine import EngineActivity, ModelFacts

MINEFIELD = "https://github.com/Blackwellboy/model-serving-minefield"
CHARS_PER_TOKEN = 4


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
        },
    )


def _neighbours_prefill() -> Report:
    case = build(
        Asked(tps=24.0, completion=240, stall=(120, 31.0)),
        kind="llama-server",
        model=weights("Qwen3.8-27B", "Q5_K_M", like="Qwen3.5-27B"),
        cards=(card("Quadro RTX 8000"),),
        server={"version": "b10724", "slots": 8, "batch_tokens": 16_384},
        activity=EngineActivity(span_s=42.0, alone=False, running_max=2),
    )
    return Report(
        name="q1-neighbours-prefill",
        url="https://github.com/ggml-org/llama.cpp/issues/29175",
        says="a stall of 31 s with -b 16384 (8 s with -b 4096) while another prompt is read; "
        "8 slots",
        case=case,
        slow=True,
        primary=("batch-shared",),
        allowed=("queued",),
        inferred={
            "phases.decode_tps": "what the card gives between the stalls",
            "activity": "one other request: the one whose prompt it is",
        },
    )


def _kv_full() -> Report:
    case = build(
        Asked(tps=30.0, completion=400, stall=(200, 20.0), told=False),
        kind="vllm",
        activity=EngineActivity(
            span_s=34.0, alone=False, running_max=8, waiting_max=0, kv_used_max_ratio=1.0
        ),
        baseline=Baseline(count=20, decode_tps=30.0),
    )
    return Report(
        name="q3-kv-full",
        url="https://github.com/vllm-project/vllm/issues/18115",
        says="8 at 240 tokens/s together until the KV cache is full, then far less; neither card, "
        "model, preemptions nor the rate after it told",
        case=case,
        slow=True,
        allowed=("kv-preemption", "batch-shared"),
        inferred={
            "timeline.token_at_s": "a stall of 20 s: its length is not told",
            "baseline": "an eighth of what the eight had together",
        },
    )


def _attribution_header() -> Report:
    case = build(
        Asked(tps=None, completion=1, prompt=28_000, cached=16_276, prefill_s=83.5),
        kind="llama-server",
        model=ModelFacts(name="GLM-5.3"),
        prompt=PromptPrefix(
            chars=(28_000 - 16_276) * CHARS_PER_TOKEN,
            common_prefix_chars=79,
            shared_ratio=0.99,
            first_difference=79,
            difference_message=0,
            difference_role="system",
            difference_kind="attribution-header",
            previous_age_s=60.0,
            others_since=0,
        ),
    )
    return Report(
        name="v11-attribution-header",
        url="https://github.com/tale-project/tale/pull/3400",
        says="74-93 s a turn at 28,000 tokens, 16,276 of them from the cache each time; prompts "
        "differ at character 79, in Claude Code's attribution line",
        case=case,
        slow=True,
        primary=("prompt-cache-miss",),
        allowed=("slow-prefill",),
        inferred={
            "prompt.chars": "four to a token; the cached ones are the tools, which stand first",
            "prompt.shared_ratio": "nothing but that line differs",
            "server.kind": "not told; one that tells what it took from its cache",
        },
    )


def _cache_cleared() -> Report:
    chars = 5_900 * CHARS_PER_TOKEN
    case = build(
        Asked(tps=None, completion=1, prompt=5_900, cached=0, prefill_s=9.1, told=False),
        kind="openai",
        model=ModelFacts(name="Mistral-Small-4-119B"),
        cards=(card("Apple M2 Ultra", unified_memory=True),),
        prompt=PromptPrefix(
            chars=chars,
            common_prefix_chars=5_872 * CHARS_PER_TOKEN,
            shared_ratio=0.995,
            previous_age_s=60.0,
            others_since=0,
        ),
        device={"os": "macos"},
    )
    return Report(
        name="q9-cache-cleared",
        url="https://github.com/Blaizzy/mlx-vlm/issues/999",
        says="9.7-10.0 s a call with no token from the cache, 0.65-0.83 s with 5,872",
        case=case,
        slow=True,
        primary=("prompt-cache-miss",),
        allowed=("slow-prefill",),
        inferred={
            "phases.prefill_s": "what a call without the cache takes longer",
            "timeline.tokens.prompt": "little more than was cached",
            "prompt": "four characters a token; what was cached once is the same still",
        },
    )


def _sliding_window() -> Report:
    chars = 9_683 * CHARS_PER_TOKEN
    case = build(
        Asked(tps=None, completion=1, prompt=9_683, cached=0, prefill_s=12.45),
        kind="llama-server",
        model=ModelFacts(name="Command-A", quantisation="Q4_K_S"),
        cards=tuple(card("NVIDIA GeForce RTX 3090", i) for i in range(3)),
        prompt=PromptPrefix(
            chars=chars,
            common_prefix_chars=chars,
            shared_ratio=1.0,
            previous_age_s=60.0,
            others_since=0,
        ),
    )
    return Report(
        name="q7-sliding-window",
        url="https://github.com/ggml-org/llama.cpp/issues/14157",
        says="the same prompt is read again each time; 9,683 tokens take 12.45 s "
        "(ggml-org/llama.cpp#13194)",
        case=case,
        slow=True,
        primary=("prompt-cache-miss",),
        allowed=("slow-prefill",),
        inferred={"prompt": "the same as before; four characters a token"},
    )


def _no_drafter() -> Report:
    cards = tuple(card("NVIDIA GeForce RTX 3090", i) for i in range(2))
    case = build(
        Asked(tps=25.0, drafted=0, accepted=0, told=False),
        kind="vllm",
        model=weights("Qwen3.6-27B", "INT4", like="Qwen3.5-27B"),
        cards=cards,
        server={"tensor_parallel": 2, "speculative": True},
    )
    return Report(
        name="x1-no-drafter",
        url="https://github.com/noonghunna/club-3090/blob/master/docs/FAQ.md",
        says="25 tokens/s where 125 are usual: the drafter was never downloaded, nothing is drafted",
        case=case,
        slow=True,
        allowed=("draft-rejected",),
        inferred={"model": "27B at 4 bits: what two such cards are used with there"},
    )


def _drafts_useless() -> Report:
    case = build(
        Asked(tps=33.0, completion=118, drafted=1378, accepted=96),
        kind="llama-server",
        model=weights("Qwen3-4B", "Q4_K_M"),
        cards=(card("AMD Radeon RX 9070 XT"),),
        server={"version": "b10068", "gpu_layers": 99, "context_tokens": 8192, "slots": 1}
        | {"flash_attention": "on", "batch_tokens": 2048, "micro_batch_tokens": 2048}
        | {"speculative": True},
        device={"os": "windows"},
    )
    return Report(
        name="v12-drafts-useless",
        url="https://github.com/ggml-org/llama.cpp/issues/25908",
        says="96 of 1,378 drafts accepted with up to 64 at once: slower than without; the drafter "
        "alone gives 474.6 tokens/s",
        case=case,
        slow=True,
        primary=("draft-rejected",),
        inferred={
            "phases.decode_tps": "22 rounds of 64 drafts at 474.6 a second, of the report's "
            "20 ms on top and of one pass",
            "device.gpus": "RDNA 4 is told; the card that gives such rates",
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
        says="79 tokens/s for a short prompt where 128 were, after a long one; the card is not told",
        case=case,
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
    _neighbours_prefill,
    _kv_full,
    _attribution_header,
    _cache_cleared,
    _sliding_window,
    _no_drafter,
    _drafts_useless,
    _sticky_regression,
    _cpu_while_ps_says_gpu,
)
