"""Reports on what requests share: the engine, its caches, and drafts."""

from cases.parts import (
    Asked,
    Report,
    build,
    card,
    weights,
)
from slowtok.detectors.case.case import Baseline, Neighbours, PromptPrefix
from slowtok.detectors.case.engine import EngineActivity, ModelFacts

CHARS_PER_TOKEN = 4


def _neighbours_prefill() -> Report:
    case = build(
        Asked(tps=24.0, completion=240, stall=(120, 31.0)),
        kind="llama-server",
        model=weights("Qwen3.8-27B", "Q5_K_M", like="Qwen3.5-27B"),
        cards=(card("Quadro RTX 8000"),),
        server={"version": "b10724", "slots": 8, "batch_tokens": 16_384},
        neighbours=Neighbours(decode_mean=0.88, decode_max=1),
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
            "neighbours": "the slots show it from its prompt on: 36 of 41 s",
        },
    )


def _kv_full() -> Report:
    case = build(
        Asked(tps=30.0, completion=400, stall=(200, 20.0), told=False),
        kind="vllm",
        activity=EngineActivity(span_s=34.0, alone=False, running_max=8, kv_used_max_ratio=1.0),
        baseline=Baseline(count=20, decode_tps=30.0),
    )
    return Report(
        name="q3-kv-full",
        url="https://github.com/vllm-project/vllm/issues/18115",
        says="8 at 240 tokens/s together until the KV cache is full, then far less; neither card, "
        "model, preemptions nor the rate after it told",
        case=case,
        needs="the engine's count of preemptions",
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
        Asked(tps=25.0, told=False),
        kind="vllm",
        model=weights("Qwen3.6-27B", "INT4", like="Qwen3.5-27B"),
        cards=cards,
        server={"tensor_parallel": 2, "speculative": True},
    )
    return Report(
        name="x1-no-drafter",
        url="https://github.com/noonghunna/club-3090/blob/master/docs/FAQ.md",
        says="25 tokens/s where 125 are usual: the drafter was never downloaded",
        case=case,
        needs="the engine's count of drafts: none",
        slow=True,
        allowed=("draft-rejected",),
        verdicts=("slow", "unknown"),
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


REPORTS = (
    _neighbours_prefill,
    _kv_full,
    _attribution_header,
    _cache_cleared,
    _sliding_window,
    _no_drafter,
    _drafts_useless,
)
