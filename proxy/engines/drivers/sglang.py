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
    server_info = body if isinstance(body, dict) else {}
    entries = model_entries(models)
    first = entries[0] if entries else {}
    weights = _loading(server_info)
    return Probe(
        version=server_info.get("version"),
        models=tuple(entry["id"] for entry in entries if isinstance(entry.get("id"), str)),
        model_path=server_info.get("model_path") or first.get("root"),
        quantisation=server_info.get("quantization"),
        context_tokens=first.get("max_model_len") or server_info.get("context_length"),
        slots=server_info.get("max_running_requests"),
        kv_cache_tokens=server_info.get("max_total_num_tokens"),
        flags=_flags(server_info, weights) if server_info else None,
        weights=weights if server_info else None,
    )


def _flags(server_info: dict[str, Any], weights: Loading) -> Flags:
    """Return its options by their names here.

    `batch_tokens` is the piece that a long prompt is cut into; -1 cuts none. Without CUDA graphs
    SGLang runs each kernel by itself, which is what `eager` means.
    """
    piece_tokens = server_info.get("chunked_prefill_size")
    offload_gib = server_info.get("cpu_offload_gb")
    kv_type = kv_cache_type(server_info.get("kv_cache_dtype"), weights)
    return Flags(
        model_path=server_info.get("model_path"),
        alias=server_info.get("served_model_name"),
        context_tokens=server_info.get("context_length"),
        batch_tokens=piece_tokens if piece_tokens and piece_tokens > 0 else None,
        kv_type_k=kv_type,
        kv_type_v=kv_type,
        speculative=server_info["speculative_algorithm"] is not None
        if "speculative_algorithm" in server_info
        else None,
        tensor_parallel=server_info.get("tp_size"),
        gpu_memory_ratio=server_info.get("mem_fraction_static"),
        prefix_caching=_not(server_info.get("disable_radix_cache")),
        eager=server_info.get("disable_cuda_graph"),
        cpu_offload_bytes=None if offload_gib is None else int(offload_gib * GIB),
    )


def _loading(server_info: dict[str, Any]) -> Loading:
    """Return how it loads weights, by what it resolved its options to.

    `torchao_config` is of versions until 2026. With `enable_fp32_lm_head` the output matrix is
    computed with 32 bits.
    """
    named = {
        "dtype": server_info.get("dtype"),
        "quantisation": server_info.get("quantization"),
        "load_format": server_info.get("load_format"),
        "overrides": server_info.get("json_model_override_args"),
        "torchao_config": server_info.get("torchao_config"),
        "modelopt_quant": server_info.get("modelopt_quant"),
    }
    texts = {name: str(value) if value else None for name, value in named.items()}
    wide = "--enable-fp32-lm-head: the output matrix is computed with 32 bits"
    return loading(
        texts, SGLANG_ONLINE, (wide if server_info.get("enable_fp32_lm_head") else None,)
    )


def _not(truth: bool | None) -> bool | None:
    return None if truth is None else not truth
