"""vLLM: what it answers about itself, and what its parent process's command line asks for."""

import asyncio
import math
from collections.abc import Mapping, Sequence

import aiohttp

from slowtok.proxy.engines.counters.metrics import cache_config
from slowtok.proxy.engines.drivers.openai_server import model_entries
from slowtok.proxy.engines.models.loading import (
    VLLM_ONLINE,
    Loading,
    loading_asked,
)
from slowtok.proxy.engines.probing.argv import arguments, dashed, number, options
from slowtok.proxy.engines.probing.facts import Flags, Probe
from slowtok.proxy.engines.probing.reply import ProbeReply, get

VALUED = {
    "--model": "model_path",
    "--served-model-name": "alias",
    "--max-model-len": "context_tokens",
    "--max-num-seqs": "slots",
    "--max-num-batched-tokens": "batch_tokens",
    "--kv-cache-dtype": "kv_type",
    "--kv-cache-dtype-skip-layers": "kv_plain_layers",
    "--speculative-config": "speculative",
    "--speculative-model": "speculative",
    "-sc": "speculative",
    "--tensor-parallel-size": "tensor_parallel",
    "-tp": "tensor_parallel",
    "--gpu-memory-utilization": "gpu_memory_ratio",
    "--cpu-offload-gb": "cpu_offload_gib",
    "--download-dir": "download_dir",
    "--revision": "revision",
}
BARE = {
    "--enforce-eager": ("eager", "1"),
    "--no-enforce-eager": ("eager", "0"),
    "--enable-prefix-caching": ("prefix_caching", "1"),
    "--no-enable-prefix-caching": ("prefix_caching", "0"),
}
GIB = 1 << 30
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


async def probe(session: aiohttp.ClientSession, base_url: str) -> Probe:
    """Return what `/version`, `/v1/models` and `/metrics` say; none of them wakes a model."""
    paths = ("/version", "/v1/models", "/metrics")
    return read_probe(*await asyncio.gather(*(get(session, base_url, path) for path in paths)))


def read_probe(
    version: ProbeReply | None, models: ProbeReply | None, metrics: ProbeReply | None = None
) -> Probe:
    """Return what the replies say; each may be missing."""
    entries = model_entries(models)
    first = next((entry for entry in entries if not entry.get("parent")), {})
    about = None if version is None else version.json
    page = b"" if metrics is None or metrics.status != 200 else metrics.body
    caches = cache_config(page)
    cache = caches[0] if caches else {}
    return Probe(
        version=about.get("version") if isinstance(about, dict) else None,
        models=tuple(entry["id"] for entry in entries if isinstance(entry.get("id"), str)),
        model_path=first.get("root"),
        context_tokens=first.get("max_model_len"),
        kv_cache_tokens=_kv_cache_tokens(caches),
        gpu_memory_ratio=_ratio(cache.get("gpu_memory_utilization")),
        prefix_caching=_flag(cache.get("enable_prefix_caching")),
        cache_block_tokens=number(cache.get("block_size")),
    )


def parse_flags(argv: Sequence[str]) -> Flags:
    """Return what the command line of `vllm serve` asks for.

    The children's command lines are overwritten by their titles (`VLLM::EngineCore`): give the
    parent's.
    """
    given = options([dashed(word) for word in argv], VALUED, BARE)
    loading = loading_asked(argv, VLLM_ONLINE)
    kv_type = kv_cache_type(given.get("kv_type"), loading, some_plain="kv_plain_layers" in given)
    offload_gib = _ratio(given.get("cpu_offload_gib"))
    return Flags(
        model_path=given.get("model_path") or _positional(argv),
        alias=given.get("alias"),
        context_tokens=_human_number(given.get("context_tokens")),
        slots=_human_number(given.get("slots")),
        batch_tokens=_human_number(given.get("batch_tokens")),
        kv_type_k=kv_type,
        kv_type_v=kv_type,
        speculative=True if "speculative" in given else None,
        tensor_parallel=number(given.get("tensor_parallel")),
        gpu_memory_ratio=_ratio(given.get("gpu_memory_ratio")),
        prefix_caching=_flag(given.get("prefix_caching")),
        eager=_flag(given.get("eager")),
        cpu_offload_bytes=None if offload_gib is None else round(offload_gib * GIB),
    )


def kv_cache_type(asked: str | None, loading: Loading, *, some_plain: bool = False) -> str | None:
    """Return the type of the KV cache: by default that of the weights that are not quantised.

    With `some_plain` some layers keep that, which makes a size that nothing tells.
    """
    if asked in {None, "auto"}:
        return "f32" if loading.plain_bits == 32 else asked
    return f"{asked}, not in all layers" if some_plain else asked


def weights_asked(argv: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the folder for downloads and the revision of the model that a command line asks for.

    A revision is a branch, a tag or a commit of the model's repository.
    """
    given = options([dashed(word) for word in argv], VALUED, BARE)
    return given.get("download_dir"), given.get("revision")


def _kv_cache_tokens(caches: Sequence[Mapping[str, str]]) -> int | None:
    """Return what the KV caches of all engines hold: told by newer versions, blocks in older."""
    sizes = [number(cache.get("kv_cache_size_tokens")) or _block_tokens(cache) for cache in caches]
    return sum(size for size in sizes if size) if sizes and all(sizes) else None


def _block_tokens(cache: Mapping[str, str]) -> int | None:
    blocks, tokens = number(cache.get("num_gpu_blocks")), number(cache.get("block_size"))
    return blocks * tokens if blocks and tokens else None


def _human_number(text: str | None) -> int | None:
    """Return a count as vLLM reads it: 1k is 1,000 and 1K is 1,024."""
    factor = SUFFIXES.get(text[-1:]) if text else None
    if text is None or factor is None:
        return number(text)
    value = _ratio(text[:-1])
    return None if value is None else round(value * factor)


def _ratio(text: str | None) -> float | None:
    try:
        value = math.nan if text is None else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _flag(text: str | None) -> bool | None:
    return {"1": True, "0": False, "True": True, "False": False}.get(text or "")


def _positional(argv: Sequence[str]) -> str | None:
    words = arguments(argv)
    if len(words) > 1 and words[0] == "serve" and not words[1].startswith("-"):
        return words[1]
    return None
