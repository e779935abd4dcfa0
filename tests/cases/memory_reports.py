"""Reports in which a model, or what it needs beside it, did not lie where it should have."""

from cases.parts import (
    GIB,
    MIB,
    Asked,
    Report,
    between,
    build,
    card,
    serving,
    vram,
    weights,
)
from slowtok.detectors.case.case import Baseline, History, ModelLoad


def _spill_wddm() -> Report:
    case = build(
        Asked(tps=5.0, completion=60),
        kind="llama-server",
        cards=(card(None),),
        gpu=({"busy_ratio": 1.0, "memory_busy_ratio": 0.02},),
        server={"speculative": True},
        device={"os": "windows"},
    )
    return Report(
        name="s1-spill-unnamed-card",
        url="https://github.com/AtomicBot-ai/atomic-llama-cpp-turboquant/issues/77",
        says="10x down, GPU 100 % busy, its memory 2 %, Windows; neither card, model nor rate told",
        case=case,
        needs="the rate, the card and the model",
        slow=None,
        allowed=("vram-spill",),
        verdicts=("unknown",),
        inferred={"phases.decode_tps": "any: only the factor of ten is told"},
    )


def _not_spill_5070() -> Report:
    case = build(
        Asked(tps=8.6, completion=327, prompt=4295, prefill_s=512.4),
        kind="llama-server",
        model=weights("Qwen3-VL-8B", "UD-Q4_K_XL", like="Qwen3-8B"),
        cards=(card("NVIDIA GeForce RTX 5070 Ti"),),
        gpu=({**vram(2.4 * 1024, 16_303), "processes": serving()},),
        server={
            "version": "b11030",
            "gpu_layers": 99,
            "context_tokens": 65_536,
            "kv_type_k": "f16",
            "kv_type_v": "f16",
        },
        device={"os": "windows"},
    )
    return Report(
        name="s3-not-spill-5070ti",
        url="https://github.com/unslothai/unsloth/issues/11349",
        says="8.38 tokens/s of prompt and 8.60 of answer, 56.80 with another build; -ngl 99 "
        "-c 65536, 4,295 prompt tokens, Windows 11. Taken for a spill from its sizes, but the same "
        "with -c 8192 and with spilling forbidden; 2.3-2.5 GB held on the card, none beside it",
        case=case,
        slow=True,
        allowed=("slow-kernel", "slow-prefill", "cpu-fallback", "partial-offload"),
        inferred={
            "gpu.free_bytes": "all but the 2.3-2.5 GB that the reporter saw in use",
            "model": "Qwen3-VL-8B has Qwen3-8B's geometry: 36 layers, 8 KV heads (in the report)",
            "server.kv_type": "f16: the flags are told, and there is no other type among them",
        },
        needs="how busy the GPU and the CPU were: all is said to be on a card that holds half of "
        "the weights",
    )


def _kv_overruns() -> Report:
    case = build(
        Asked(tps=12.6, completion=100),
        kind="llama-server",
        model=weights("Qwen3.8-27B", "Q3_K_M", like="Qwen3.5-27B"),
        cards=(card("NVIDIA GeForce RTX 5080"),),
        gpu=({**vram(15_359, 16_303), "processes": serving()},),
        server={
            "version": "b10488",
            "context_tokens": 65_536,
            "kv_type_k": "q8_0",
            "kv_type_v": "q8_0",
            "speculative": False,
        },
        device={"os": "windows"},
    )
    return Report(
        name="s4-kv-overruns-5080",
        url="https://github.com/sudoingX/qwen38-mtp/pull/62",
        says="12.6 tokens/s where 53.4 are usual, with a q8_0 KV cache at 64K; Windows 11; "
        "15,359 MiB in use; neither utilisation nor traffic told",
        case=case,
        needs="how busy the GPU was, and its link",
        slow=True,
        allowed=("vram-spill", "context-oversized", "partial-offload", "model-too-big"),
        inferred={
            "model": "same family and size as Qwen3.5-27B: with it the sizes told add up",
            "gpu.free_bytes": "the memory in use is told for the run before the cache overran",
        },
    )


def _llama70_on_24() -> Report:
    case = build(
        Asked(tps=0.55, completion=36, told=True),
        kind="ollama",
        model=weights("llama3.3:70b", "Q4_K_M", like="Llama-3-70B"),
        cards=(card("NVIDIA RTX A5000"),),
        gpu=({"busy_ratio": 0.02, **vram(24_264, 24_564), "processes": serving()},),
        server={"loaded_bytes": int(53e9), "loaded_gpu_bytes": 23_900 * MIB},
        device={"ram_bytes": 64 * GIB, "cpu_physical_cores": 10, "cpu_logical_cores": 20},
    )
    return Report(
        name="s6-llama70b-a5000",
        url="https://github.com/ollama/ollama/issues/9753",
        says="ten minutes for an answer, GPU 2 % busy, its memory and RAM full, 53 GB needed",
        case=case,
        slow=True,
        primary=("model-too-big",),
        allowed=("partial-offload", "storage-paging"),
        inferred={
            "phases.decode_tps": "2 % busy while the GPU's part takes 36 ms a token: 1.8 s a token",
            "server.loaded_gpu_bytes": "Ollama fills the memory that it finds, less its reserve",
            "timeline.tokens.completion": "36 of the some 330 tokens that ten minutes give",
        },
    )


def _estimate_leaves_room() -> Report:
    model = weights(
        "Smaug-72B",
        "Q4_K_M",
        like="Llama-2-70B",
        parameters=72_290_000_000,
        file_bytes=int(40e9),
        read_bytes=int(39.3e9),
        kv_bytes_per_token=2_621_440.0,
    )
    reading = {"busy_ratio": between(0.2, 0.4), **vram(18 * 1024, 24_576)}
    reading["processes"] = serving(18 * 1024)
    whole = 40e9 + 2048 * 2_621_440
    case = build(
        Asked(tps=0.9, completion=36),
        kind="ollama",
        model=model,
        cards=(card("Tesla P40"), card("Tesla P40", 1)),
        gpu=(reading, reading),
        host={"server_cpu_cores": 4.0},
        server={
            "context_tokens": 2048,
            "loaded_bytes": int(whole),
            "loaded_gpu_bytes": int(whole * 65 / 81),
        },
    )
    return Report(
        name="s8-smaug72b-p40s",
        url="https://github.com/ollama/ollama/issues/3078",
        says="under 1 token/s, 65 of 81 layers, 18 of 24 GB used of each, CPU 400 %, GPUs 20-40 %",
        case=case,
        slow=True,
        primary=("partial-offload",),
        inferred={
            "phases.decode_tps": "0.9: less than one is told",
            "server.loaded_gpu_bytes": "the share of layers that the log tells",
            "model": "Qwen-72B's: 80 layers with 64 KV heads of 128, file size as told",
            "server.context_tokens": "Ollama's default then",
        },
    )


def _context_65536() -> Report:
    case = build(
        Asked(tps=None, completion=None),
        kind="ollama",
        model=weights("gpt-oss:20b", "Q4_K_M", like="gpt-oss-20b"),
        server={"context_tokens": 65_536},
        baseline=Baseline(count=20, decode_tps=36.97),
    )
    return Report(
        name="s9-context-65536",
        url="https://github.com/ollama/ollama/issues/11815",
        says="36.97 tokens/s before num_ctx 65536; neither the rate after it nor the card is told",
        case=case,
        needs="the rate with the large context, and the card",
        slow=None,
        allowed=("context-oversized", "partial-offload"),
        verdicts=("unknown",),
    )


def _held_by_another() -> Report:
    gemma = weights("gemma3:27b", "Q4_0", like="Gemma-3-27B", file_bytes=int(16.8 * GIB))
    other = int(3.9 * GIB)
    case = build(
        Asked(tps=9.5, completion=60),
        kind="ollama",
        model=gemma,
        cards=(card(None),),
        server={
            "version": "0.7.0",
            "context_tokens": 4096,
            "gpu_layers": 49,
            "loaded_bytes": int(23.4 * GIB),
            "loaded_gpu_bytes": int(17.8 * GIB),
        },
        device={"os": "windows"},
        history=History(
            loads=(
                ModelLoad(
                    age_s=60.0,
                    model="gemma3:27b",
                    context_tokens=4096,
                    server_gpu_bytes=int(17.8 * GIB),
                    free_before_bytes=int(17.8 * GIB),
                    others_bytes=other,
                ),
            )
        ),
    )
    return Report(
        name="s12-held-by-another",
        url="https://github.com/ollama/ollama/issues/10823",
        says="17.8 GiB free at load and 49 of 63 layers; later 21.7 GiB free and 62; 23.4 GiB "
        "needed; neither card nor rate told",
        case=case,
        needs="the rate and the card",
        slow=True,
        allowed=("vram-held-by-others", "partial-offload", "model-too-big"),
        verdicts=("unknown", "slow"),
        inferred={
            "phases.decode_tps": "14 of 63 layers in RAM, 3.6 GiB at some 45 GB/s",
            "history.loads": "what others held is the difference between the two loads",
            "model": "63 layers and 16.0 GiB of weights are Gemma 3 27B at 4 bits",
        },
    )


def _mixtral_3090() -> Report:
    case = build(
        Asked(tps=15.0),
        kind="ollama",
        model=weights("mixtral:8x7b", "Q4_0", like="Mixtral-8x7B"),
        cards=(card("NVIDIA GeForce RTX 3090", default_power_limit_w=370.0),),
        gpu=(
            {
                "busy_ratio": 0.15,
                "power_w": 150.0,
                "power_limit_w": 370.0,
                "pstate": 2,
                **vram(22_070, 24_576),
                "processes": serving(),
            },
        ),
        server={
            "context_tokens": 2048,
            "gpu_layers": 23,
            "loaded_bytes": int(27.3e9),
            "loaded_gpu_bytes": int(27.3e9 * 23 / 33),
        },
    )
    return Report(
        name="v1-mixtral-3090",
        url="https://github.com/ollama/ollama/issues/3301",
        says="15 tokens/s, 23 of 33 layers, never over 15 % busy, 150 of 370 W, P2, "
        "22,070 of 24,576 MiB",
        case=case,
        slow=True,
        primary=("model-too-big",),
        allowed=("partial-offload",),
        inferred={
            "server.loaded_gpu_bytes": "the share of layers that the log tells",
            "server.context_tokens": "Ollama's default then",
        },
    )


def _llama70_4090() -> Report:
    case = build(
        Asked(tps=2.6, completion=60),
        kind="ollama",
        model=weights("llama3:70b", "Q4_0", like="Llama-3-70B"),
        cards=(card("NVIDIA GeForce RTX 4090"),),
        gpu=({"busy_ratio": 0.0},),
        server={"loaded_bytes": int(41e9), "loaded_gpu_bytes": int(0.58 * 41e9)},
    )
    return Report(
        name="v2-llama70b-split",
        url="https://github.com/ollama/ollama/issues/4531",
        says="41 GB, 42 % on the CPU and 58 % on the GPU by Ollama; GPU 0 % while it answers",
        case=case,
        slow=True,
        primary=("model-too-big",),
        allowed=("partial-offload",),
        inferred={
            "device.gpus": "an RTX 4090, as in the maintainer's reply",
            "phases.decode_tps": "17 GB in RAM at some 45 GB/s",
        },
    )


REPORTS = (
    _spill_wddm,
    _not_spill_5070,
    _kv_overruns,
    _llama70_on_24,
    _estimate_leaves_room,
    _context_65536,
    _held_by_another,
    _mixtral_3090,
    _llama70_4090,
)
