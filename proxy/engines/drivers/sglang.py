"""SGLang: what it says it was started with, and what came of it.

`/server_info` (until 2026 `/get_server_info`, which now writes a warning into its log) carries all
of its options, keys among them: only the ones named here are kept. Its schedulers answer it between
two batches, so it may take a while; nothing is computed for it.
"""

import asyncio
from typing import Any

import aiohttp

from slowtok.proxy.engines.drivers.openai_server import model_entries
from slowtok.proxy.engines.drivers.vllm import kv_cache_type
from slowtok.proxy.engines.models.loading import SGLANG_ONLINE, Loading, loading
from slowtok.proxy.engines.probing.facts import Flags, Probe
from slowtok.proxy.engines.probing.reply import ProbeReply, get

PATIENCE_S = 5.0  # a batch of a long prompt takes seconds; nobody waits for this
GIB = 1 << 30  # what `--cpu-offload-gb` is counted in


async def probe(session: aiohttp.ClientSession, base_url: str) -> Probe:
    """Return what `/server_info` and `/v1/models` say."""
    info, models = await asyncio.gather(
        get(session, base_url, "/server_info", timeout_s=PATIENCE_S),
        get(session, base_url, "/v1/models"),
    )
    if info is not None and info.status == 404:
        info = await get(session, base_url, "/get_server_info", timeout_s=PATIENCE_S)
    return read_probe(info, models)


def read_probe(info: ProbeReply | None, models: ProbeReply | None) -> Probe:
    """Return what the two replies say; either may be missing."""
    body = None if info is None else info.json
    said = body if isinstance(body, dict) else {}
    entries = model_entries(models)
    first = entries[0] if entries else {}
    weights = _loading(said)
    return Probe(
        version=said.get("version"),
        models=tuple(entry["id"] for entry in entries if isinstance(entry.get("id"), str)),
        model_path=said.get("model_path") or first.get("root"),
        quantisation=said.get("quantization"),
        context_tokens=first.get("max_model_len") or said.get("context_length"),
        slots=said.get("max_running_requests"),
        kv_cache_tokens=said.get("max_total_num_tokens"),
        flags=_flags(said, weights) if said else None,
        weights=weights if said else None,
    )


def _flags(said: dict[str, Any], weights: Loading) -> Flags:
    """Return its options by their names here.

    `batch_tokens` is the piece that a long prompt is cut into; -1 cuts none. Without CUDA graphs
    SGLang runs each kernel by itself, which is what `eager` means.
    """
    piece_tokens = said.get("chunked_prefill_size")
    offload_gib = said.get("cpu_offload_gb")
    kv_type = kv_cache_type(said.get("kv_cache_dtype"), weights)
    return Flags(
        model_path=said.get("model_path"),
        alias=said.get("served_model_name"),
        context_tokens=said.get("context_length"),
        batch_tokens=piece_tokens if piece_tokens and piece_tokens > 0 else None,
        kv_type_k=kv_type,
        kv_type_v=kv_type,
        speculative=said["speculative_algorithm"] is not None
        if "speculative_algorithm" in said
        else None,
        tensor_parallel=said.get("tp_size"),
        gpu_memory_ratio=said.get("mem_fraction_static"),
        prefix_caching=_not(said.get("disable_radix_cache")),
        eager=said.get("disable_cuda_graph"),
        cpu_offload_bytes=None if offload_gib is None else int(offload_gib * GIB),
    )


def _loading(said: dict[str, Any]) -> Loading:
    """Return how it loads weights, by what it resolved its options to.

    `torchao_config` is of versions until 2026. With `enable_fp32_lm_head` the output matrix is
    computed with 32 bits.
    """
    named = {
        "dtype": said.get("dtype"),
        "quantisation": said.get("quantization"),
        "load_format": said.get("load_format"),
        "overrides": said.get("json_model_override_args"),
        "torchao_config": said.get("torchao_config"),
        "modelopt_quant": said.get("modelopt_quant"),
    }
    texts = {name: str(value) if value else None for name, value in named.items()}
    wide = "--enable-fp32-lm-head: the output matrix is computed with 32 bits"
    return loading(texts, SGLANG_ONLINE, (wide if said.get("enable_fp32_lm_head") else None,))


def _not(truth: bool | None) -> bool | None:
    return None if truth is None else not truth
