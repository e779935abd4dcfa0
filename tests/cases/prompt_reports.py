"""Reports of prompts: computed again, said to be, or simply long."""

from cases.parts import Asked, Report, build, card, weights
from slowtok.detectors.case.case import History, PromptPrefix
from slowtok.detectors.case.engine import EngineActivity, ModelFacts

CHARS_PER_TOKEN = 4


def _prefix(prompt: int, common: int, *, only_grew: bool = False) -> PromptPrefix:
    chars = prompt * CHARS_PER_TOKEN
    return PromptPrefix(
        chars=chars,
        common_prefix_chars=common * CHARS_PER_TOKEN,
        shared_ratio=common / prompt,
        previous_age_s=60.0,
        others_since=0,
        previous_chars=common * CHARS_PER_TOKEN if only_grew else None,
    )


def _cannot_rewind() -> Report:
    case = build(
        Asked(tps=None, completion=1, prompt=3664, cached=0, prefill_s=4.0),
        kind="llama-server",
        model=weights("Qwen3.6-35B-A3B", "Q4_K_M", like="Qwen3.5-35B-A3B"),
        prompt=_prefix(3664, 3433),
    )
    return Report(
        name="r012-cannot-rewind",
        url="https://github.com/spiritbuun/buun-llama-cpp/issues/42",
        says="3,433 of 3,664 prompt tokens are known, none is reused: the recurrent state is kept "
        "at the end of the earlier prompt only; neither card nor times told",
        case=case,
        slow=None,
        allowed=("cache-not-rewindable", "slow-prefill"),
        verdicts=("slow", "unknown", "normal"),
        inferred={
            "phases.prefill_s": "any: none is told",
            "prompt": "four characters a token; what differs is at the end",
            "model": "4 bits: not told",
        },
        needs="how long it took",
    )


def _template_rewrites() -> Report:
    case = build(
        Asked(tps=None, completion=1, prompt=16_000, cached=0, prefill_s=30.0),
        kind="openai",
        model=weights("Qwen3.5-35B-A3B", "Q4_K_M"),
        prompt=_prefix(16_000, 15_900, only_grew=True),
        device={"os": "macos"},
    )
    return Report(
        name="r023-template-rewrites",
        url="https://github.com/QwenLM/Qwen3/issues/1826",
        says="some 16,000 tokens are read again each turn although messages are only appended: "
        "the template leaves an empty thought out of earlier turns; 90 times faster without that",
        case=case,
        slow=True,
        primary=("template-rewrite",),
        allowed=("slow-prefill",),
        inferred={
            "phases.prefill_s": "30 s: none is told; a 90th of it is what a cached turn takes",
            "tokens.cached": "0: the engine tells it, and all is read again",
            "prompt": "99.4 % are the same; four characters a token",
            "model": "4 bits: not told",
        },
    )


def _usage_is_silent() -> Report:
    case = build(
        Asked(tps=None, completion=1, prompt=10_000, prefill_s=0.3, told=False),
        kind="vllm",
        model=ModelFacts(name="27b", parameters=27_000_000_000, active_parameters=27_000_000_000),
        cards=(card("NVIDIA GB10", unified_memory=True),),
        prompt=_prefix(10_000, 10_000),
        activity=EngineActivity(span_s=1.0, alone=True, prompt_tokens=10_000, cached_tokens=9_400),
    )
    return Report(
        name="r086-usage-silent",
        url="https://github.com/AEON-7/vllm-ultimate-dgx-spark/issues/10",
        says="clients show no cached token, as usage leaves them out; the engine counts 94 % hits, "
        "and the same prompt again has its first token 40 times sooner",
        case=case,
        slow=False,
        verdicts=("normal", "unknown"),
        inferred={
            "timeline.tokens.prompt": "any: none is told",
            "phases.prefill_s": "a 40th of what a GB10 takes for as many",
        },
    )


def _counter_is_wrong() -> Report:
    case = build(
        Asked(tps=None, completion=1, prompt=3072, prefill_s=0.8, told=False),
        kind="vllm",
        cards=(),
        server={"version": "0.26.0"},
        prompt=_prefix(3072, 3072),
        activity=EngineActivity(span_s=1.0, alone=True, prompt_tokens=3072, cached_tokens=0),
        history=History(best_prefill_tps=3072 / 5.5),
    )
    return Report(
        name="r087-counter-zero",
        url="https://github.com/vllm-project/vllm-ascend/issues/16639",
        says="the same prompt again has its first token after 0.8 s, not 5.5; vLLM's counter of "
        "cached tokens stays at 0 although 1,536 are found: the counter is wrong",
        case=case,
        slow=False,
        verdicts=("normal", "unknown"),
        inferred={
            "timeline.tokens.prompt": "two blocks of 1,536: no length is told",
            "history.best_prefill_tps": "the first time",
        },
    )


def _hello() -> Report:
    case = build(
        Asked(tps=None, completion=1, prompt=22_500, prefill_s=117.0),
        kind="ollama",
        model=weights("qwen2.5-coder:1.5b", "Q4_K_M", like="Qwen2.5-1.5B"),
        cards=(),
        server={"gpu_indices": ()},
        device={"os": "linux", "cpu_physical_cores": 4, "cpu_logical_cores": 4},
    )
    return Report(
        name="r073-hello-22500",
        url="https://github.com/magnusoverli/opencode/issues/77",
        says="two minutes for a hello on a Raspberry Pi 5, 3 s with curl: 20,000-25,000 tokens of "
        "tools and instructions stand before it",
        case=case,
        slow=False,
        verdicts=("normal", "unknown"),
        inferred={
            "phases.prefill_s": "two minutes less the 3 s of the same without them",
            "model": "4 bits: what Ollama takes by that name",
        },
        allowed=("oversized-prompt",),
    )


REPORTS = (
    _cannot_rewind,
    _template_rewrites,
    _usage_is_silent,
    _counter_is_wrong,
    _hello,
)
