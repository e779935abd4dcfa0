"""Reports of what is normal, or was only measured wrongly: nothing may be named."""

from cases.parts import GIB, Asked, Report, build, card, weights

UNSLOTH = "https://github.com/unslothai/unsloth/issues/11349"


def _control(prompt: int, tps: float) -> Report:
    case = build(
        Asked(tps=tps, completion=500, prompt=max(prompt, 100)),
        kind="llama-server",
        model=weights("Qwen3-VL-8B", "UD-Q4_K_XL", like="Qwen3-8B"),
        cards=(card("NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),),
        device={"os": "linux"},
    )
    return Report(
        name=f"v5-depth-{prompt}",
        url=UNSLOTH,
        says=f"{tps} tokens/s at a depth of {prompt:,} tokens: the control of the report",
        case=case,
        slow=False,
        allowed=("long-context",),
        verdicts=("normal",),
        inferred={
            "device.gpus": "the edition is not told; all have this bandwidth",
            "phases.prefill_s": "0.2 s: not told, and not judged when it is that short",
        },
    )


def _depth_0() -> Report:
    return _control(0, 220.4)


def _depth_4k() -> Report:
    return _control(4096, 200.7)


def _depth_16k() -> Report:
    return _control(16_384, 160.7)


def _depth_32k() -> Report:
    return _control(32_768, 126.0)


def _radeon(name: str, tps: float) -> Report:
    case = build(
        Asked(tps=tps, completion=400),
        kind="llama-server",
        model=weights(name, "Q4_K_M"),
        cards=(card("AMD Radeon RX 9070 XT"),),
        server={"version": "b10298", "gpu_layers": 99},
        device={"os": "windows", "ram_bytes": 32 * GIB},
    )
    return Report(
        name=f"x27-radeon-{name.lower()}",
        url="https://github.com/ggml-org/llama.cpp/issues/26663",
        says=f"{tps} tokens/s with {name} (Vulkan): by one who could not see what is told of",
        case=case,
        slow=False,
        verdicts=("normal",),
    )


def _radeon_4b() -> Report:
    return _radeon("Qwen3-4B", 174.5)


def _radeon_8b() -> Report:
    return _radeon("Qwen3-8B", 104.3)


def _dense_70b_on_gb10() -> Report:
    model = weights(
        "Llama-3.3-70B", "NVFP4", like="Llama-3-70B", read_bytes=int(40.61e9), file_bytes=int(42e9)
    )
    case = build(
        Asked(tps=4.1, completion=100, told=False),
        kind="vllm",
        model=model,
        cards=(card("NVIDIA GB10", unified_memory=True),),
    )
    return Report(
        name="n1-dense-70b-gb10",
        url="https://github.com/NVIDIA/dgx-spark-playbooks/pull/91",
        says="4.0-4.2 tokens/s at 40.61 GB a token and 273 GB/s",
        case=case,
        slow=False,
        verdicts=("normal",),
        inferred={"model.file_bytes": "little more than is read"},
    )


def _dense_7b_on_gb10() -> Report:
    case = build(
        Asked(tps=43.0),
        kind="ollama",
        model=weights("qwen2.5:7b", "Q4_K_M", like="Qwen2.5-7B"),
        cards=(card("NVIDIA GB10", unified_memory=True),),
    )
    return Report(
        name="n3-qwen7b-gb10",
        url="https://github.com/triton-inference-server/server/issues/8691",
        says="43 tokens/s, somebody else has 46",
        case=case,
        slow=False,
        verdicts=("normal",),
        inferred={"model": "4 bits: what Ollama takes by that name"},
    )


def _prose_after_counting() -> Report:
    rounds = 120
    case = build(
        Asked(
            tps=19.3,
            completion=int(rounds * 2.55),
            drafted=rounds * 8,
            accepted=int(rounds * 1.55),
        ),
        kind="openai",
        server={"speculative": True},
    )
    return Report(
        name="x3-prose-after-counting",
        url="https://github.com/rkz91/coco/pull/116",
        says="19.3 tokens/s of prose, 103 of counting: 2.55 and 8.00 tokens a round of 8 drafts; "
        "neither card nor model told",
        case=case,
        slow=False,
        verdicts=("normal", "unknown"),
    )


def _flushed_by_a_parser() -> Report:
    case = build(
        Asked(tps=1812.0, completion=384, reads=107, prefill_s=5.5, told=False),
        kind="vllm",
        cards=(card("NVIDIA GB10", unified_memory=True),),
        server={"version": "0.25.1"},
    )
    return Report(
        name="x7-flushed-by-a-parser",
        url="https://github.com/Blackwellboy/model-serving-minefield (trap 80)",
        says="384 tokens of a 60 tokens/s lane in up to 214 pieces: 5.5 s to the first, "
        "1,812 tokens/s after it",
        case=case,
        slow=False,
        verdicts=("normal", "unknown"),
        inferred={"timeline.token_at_s": "107 reads: the middle of 0 to 214"},
    )


REPORTS = (
    _depth_0,
    _depth_4k,
    _depth_16k,
    _depth_32k,
    _radeon_4b,
    _radeon_8b,
    _dense_70b_on_gb10,
    _dense_7b_on_gb10,
    _prose_after_counting,
    _flushed_by_a_parser,
)
