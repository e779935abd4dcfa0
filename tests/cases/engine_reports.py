"""Reports of what the engine did with its time: compile, sample, draft, load, wait."""

from cases.parts import (
    Asked,
    Report,
    build,
    card,
    weights,
)
from slowtok.detectors.case.case import Baseline, Case, History, Neighbours
from slowtok.detectors.case.engine import EngineActivity, ModelFacts

STEP = "https://github.com/ggml-org/llama.cpp/pull/24508"
NUMA = "https://github.com/ggml-org/llama.cpp/issues/11744"


def _slower_build() -> Report:
    case = build(
        Asked(tps=219.49 / 2.5, completion=400),
        kind="llama-server",
        model=weights(
            "Qwen3-30B-A3B", "UD-Q4_K_XL", parameters=30_530_000_000, file_bytes=17_663_052_186
        ),
        cards=(card("NVIDIA GeForce RTX 5090"),),
        server={"version": "b8323", "gpu_layers": 99},
        device={"os": "windows"},
        history=History(
            other_version="b8322", other_version_decode_tps=219.49, other_version_count=20
        ),
    )
    return Report(
        name="r053-build-8323",
        url="https://github.com/ggml-org/llama.cpp/issues/20835",
        says="2 to 3 times slower since build 8323: 219.49 tokens/s with 8322; all models, CUDA",
        case=case,
        slow=True,
        primary=("engine-regression",),
        allowed=("slow-kernel",),
        inferred={
            "phases.decode_tps": "a 2.5th of the older build's rate",
            "history": "the older build's rate on the same card",
        },
    )


def _newer_file() -> Report:
    case = build(
        Asked(tps=9.0),
        kind="llama-server",
        model=ModelFacts(name="gemma4 26b"),
        baseline=Baseline(count=20, decode_tps=19.5),
    )
    return Report(
        name="r082-after-update",
        url="https://github.com/unslothai/unsloth/issues/5751",
        says="8-10 tokens/s since an update, 17-22 before; a newer file of the model cured it; "
        "card not told",
        case=case,
        slow=True,
        allowed=("slow-kernel", "engine-regression"),
        inferred={"baseline": "the rate before the update"},
        needs="the build and the file's digest before and after",
    )


def _moe_untuned() -> Report:
    cards = tuple(card("NVIDIA GeForce RTX 5090", i) for i in range(4))
    case = build(
        Asked(tps=1 / 0.1788, completion=128, prefill_s=11.6, told=False, prompt=None),
        kind="vllm",
        model=weights("Qwen3-Omni-30B-A3B", "BF16", like="Qwen3-30B-A3B"),
        cards=cards,
        server={"version": "0.11.2", "tensor_parallel": 4},
        neighbours=Neighbours(in_flight_at_send=15, decode_mean=15.0, decode_max=15),
        activity=EngineActivity(span_s=39.0, alone=False, running_max=16),
    )
    return Report(
        name="r039-untuned-moe",
        url="https://github.com/vllm-project/vllm/issues/48732",
        says="178.8 ms a token with 16 at once, 27-52 in SGLang on the same cards; vLLM warns of "
        "a default MoE configuration; not proven to be the cause",
        case=case,
        slow=True,
        allowed=("slow-kernel", "batch-shared", "multi-gpu-split", "host-bound", "queued"),
        verdicts=("slow", "unknown"),
        inferred={
            "model": "geometry of Qwen3-30B-A3B; the image encoder left out",
            "neighbours": "16 at once are told",
        },
        needs="the prompt's length, how busy the GPUs and their memory were, the engine's warning",
    )


def _image_slice() -> Report:
    case = build(
        Asked(tps=None, completion=1, prompt=None, prefill_s=82.047),
        kind="llama-server",
        model=weights("Qwen3.5-9B", "Q4_K_M"),
        cards=(card("AMD Radeon RX 7900 XTX"),),
        server={"flash_attention": "off"},
        device={"os": "linux"},
    )
    return Report(
        name="r042-image-slice",
        url="https://github.com/ggml-org/llama.cpp/issues/22582",
        says="82,047 ms for one slice of a 4k image, flash attention off; fast in llama-cli",
        case=case,
        slow=True,
        allowed=("slow-prefill",),
        verdicts=("slow", "unknown"),
        later="media-encode",
        needs="that the prompt has an image, and the engine's time for it (only in its log)",
    )


def _drafting(tps: float, *, drafted: int, accepted: int) -> Case:
    return build(
        Asked(tps=tps, completion=400, drafted=drafted, accepted=accepted),
        kind="llama-server",
        model=ModelFacts(
            name="Step-3.x-Flash",
            quantisation="Q3_K_M",
            parameters=196_000_000_000,
            active_parameters=11_000_000_000,
            file_bytes=int(196e9 * 3.91 / 8),
            read_bytes=int(11e9 * 3.91 / 8),
            bits_per_weight=3.91,
        ),
        cards=(card("NVIDIA GB10", unified_memory=True),),
        server={"version": "88a3927", "speculative": drafted > 0},
        device={"os": "linux"},
    )


INFERRED_STEP = {
    "model": "196B with 11B active, as Step-3.5-Flash: the release is not told",
    "tokens.drafted": "as many rounds as 400 tokens take at the acceptance told",
}


def _drafts_by_default() -> Report:
    return Report(
        name="r045-drafts-gb10",
        url=STEP,
        says="23.5 tokens/s with 3 drafts a step, 34 % of them accepted; 26.7 without drafts",
        case=_drafting(23.5, drafted=594, accepted=202),
        slow=None,
        allowed=("draft-rejected",),
        verdicts=("slow", "normal"),
        inferred=INFERRED_STEP,
        needs="the rate without drafts: it is 12 % higher, which is less than what counts as slow",
    )


def _without_drafts() -> Report:
    return Report(
        name="r045-no-drafts-gb10",
        url=STEP,
        says="26.7 tokens/s without drafts: the control of the report",
        case=_drafting(26.7, drafted=0, accepted=0),
        slow=False,
        verdicts=("normal",),
        inferred={"model": INFERRED_STEP["model"]},
    )


def _few_sure_drafts() -> Report:
    return Report(
        name="r045-sure-drafts-gb10",
        url=STEP,
        says="30.5 tokens/s with up to 2 drafts a step that are likely, 94 % of them accepted",
        case=_drafting(30.5, drafted=229, accepted=215),
        slow=False,
        verdicts=("normal",),
        inferred=INFERRED_STEP,
    )


def _samples_on_the_host() -> Report:
    case = build(
        Asked(tps=1 / 0.0412, completion=400),
        kind="llama-server",
        cards=(card("NVIDIA GeForce RTX 5090"),),
        server={"slots": 32},
        neighbours=Neighbours(in_flight_at_send=31, decode_mean=31.0, decode_max=31),
        activity=EngineActivity(span_s=17.0, alone=False, running_max=32),
    )
    return Report(
        name="r006-host-samples",
        url="https://github.com/ggml-org/llama.cpp/issues/27050",
        says="706 tokens/s in 32 slots, 41.2 ms a token; 1,046 and 25.4 ms once the GPU samples; "
        "45 % of CPU samples in the sampler; model not told",
        case=case,
        slow=True,
        allowed=("host-bound", "batch-shared"),
        verdicts=("slow", "unknown"),
        inferred={"neighbours": "32 slots, all at work"},
        needs="the model; how long the GPU idles between steps, and the busy thread beside it",
    )


def _two_sockets(name: str, tps: float, says: str, slow: bool) -> Report:
    case = build(
        Asked(tps=tps, completion=100),
        kind="llama-server",
        model=weights("Llama-3.1-70B", "F16", like="Llama-3-70B"),
        cards=(),
        server={"gpu_layers": 0, "gpu_indices": ()},
        device={
            "os": "linux",
            "cpu_physical_cores": 32,
            "cpu_logical_cores": 64,
            "ram_bandwidth_bytes_per_s": 16 * 6400e6 * 8,
        },
    )
    return Report(
        name=name,
        url=NUMA,
        says=says,
        case=case,
        slow=slow,
        allowed=("storage-paging",) if slow else (),
        verdicts=("slow",) if slow else ("normal",),
        inferred={
            "device": "two Epyc 9175F have 32 cores; 16 channels of DDR5-6400 give 819 GB/s",
        },
        later="numa-placement" if slow else None,
        needs="on which node the pages lie (numa_maps, numastat)" if slow else None,
    )


def _pages_on_one_node() -> Report:
    says = "2.4 tokens/s on two Epyc 9175F with 16 channels of DDR5-6400, 70B at 16 bits"
    return _two_sockets("r003-numa-pages", 2.4, says, slow=True)


def _pages_on_both_nodes() -> Report:
    says = "4.31 tokens/s on the same machine, with the pages on both nodes: the control"
    return _two_sockets("r003-numa-cured", 4.31, says, slow=False)


def _compiles_at_first() -> Report:
    case = build(
        Asked(tps=80.0, completion=840, prompt=557, prefill_s=14.5, told=False),
        kind="vllm",
        model=ModelFacts(
            name="Qwen3.8-27B", parameters=27_000_000_000, active_parameters=27_000_000_000
        ),
        cards=(card("NVIDIA GeForce RTX 3090"),),
        server={"version": "0.28.0", "uptime_s": 60.0, "speculative": True},
        device={"os": "linux"},
    )
    return Report(
        name="r035-compiles-3090",
        url="https://github.com/syv-ai/qwen38-27b-rtx3090/issues/155",
        says="25 s for the first request after a start, 11 s for the same again: twelve kernels "
        "are compiled in 14 s; 557 prompt tokens take half a second by themselves",
        case=case,
        slow=True,
        allowed=("slow-prefill", "kernel-compile"),
        verdicts=("slow", "unknown"),
        inferred={
            "timeline.tokens.completion": "what 76-86 tokens/s give in the 10.5 s that are left",
            "phases.prefill_s": "the compilation comes before the first token: when is not told",
            "server.uptime_s": "any: the first request after the start",
        },
        needs="the model's bytes; that no request of this shape came since the start",
    )


def _compiles_drafter() -> Report:
    case = build(
        Asked(tps=None, completion=1, prompt=None, prefill_s=1.537, told=False),
        kind="vllm",
        model=weights("Qwen3-8B", "BF16"),
        cards=(card("NVIDIA H100 80GB HBM3"),),
        server={"eager": True, "speculative": True, "uptime_s": 60.0},
        device={"os": "linux"},
    )
    return Report(
        name="r036-compiles-drafter",
        url="https://github.com/vllm-project/vllm/issues/39790",
        says="1,537 ms to the first token of the first prompt, about 58 ms in the other 49; "
        "EAGLE3 with 15 drafts, one at a time",
        case=case,
        slow=True,
        allowed=("slow-prefill", "kernel-compile"),
        verdicts=("slow", "unknown"),
        inferred={"server.uptime_s": "any: the first request after the start"},
        needs="the prompt's length, and that it is the first of its shape since the start",
    )


def _compiles_bucket() -> Report:
    case = build(
        Asked(tps=None, completion=1, prompt=4096, prefill_s=9.9, told=False),
        kind="vllm",
        model=ModelFacts(name="Gemma-4-12B"),
        cards=(),
        device={"os": "linux"},
        history=History(best_prefill_tps=4096 / 0.94, served_before=3, served_alike=0),
    )
    return Report(
        name="r091-compiles-bucket",
        url="https://github.com/tenstorrent/tt-inference-server/issues/4179",
        says="9.9 s to the first token of 4,096, 0.94 s the second time: a bucket of 8,192 that "
        "was never warmed up",
        case=case,
        slow=True,
        primary=("kernel-compile",),
        allowed=("slow-prefill",),
        inferred={
            "history.best_prefill_tps": "the same length once it was compiled",
            "history.served_before": "shorter prompts came before",
        },
    )


def _waits_for_memory() -> Report:
    case = build(
        Asked(tps=None, completion=1, load_s=5.0),
        kind="ollama",
        model=weights("gpt-oss:20b", "Q4_K_M", like="gpt-oss-20b"),
        device={"os": "linux"},
    )
    return Report(
        name="r080-load-waits",
        url="https://github.com/ollama/ollama/issues/11997",
        says="5 s more at a load: Ollama waits for memory that is free already",
        case=case,
        slow=True,
        primary=("model-load",),
        inferred={"phases.load_s": "the 5 s alone: how long the rest took is not told"},
    )


def _swap() -> Report:
    case = build(
        Asked(tps=None, completion=1, load_s=30.0),
        kind="ollama",
        model=ModelFacts(name="9b"),
    )
    return Report(
        name="r085-model-swap",
        url="https://github.com/earendil-works/pi/pull/1886",
        says="30 to 120 s and more for a load, the client gives up after 3.5 s and two retries",
        case=case,
        slow=True,
        primary=("model-load",),
        inferred={"phases.load_s": "30 s, the least told, for a client that waits"},
    )


REPORTS = (
    _slower_build,
    _newer_file,
    _moe_untuned,
    _image_slice,
    _drafts_by_default,
    _without_drafts,
    _few_sure_drafts,
    _samples_on_the_host,
    _pages_on_one_node,
    _pages_on_both_nodes,
    _compiles_at_first,
    _compiles_drafter,
    _compiles_bucket,
    _waits_for_memory,
    _swap,
)
