"""vLLM: what it answers about itself, and what its parent process's command line asks for."""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp

from slowtok.proxy.servers.argv import arguments, number, options
from slowtok.proxy.servers.facts import Flags, Probe
from slowtok.proxy.servers.reply import Reply, get

VALUED = {
    "--model": "model_path",
    "--served-model-name": "alias",
    "--max-model-len": "context_tokens",
    "--max-num-seqs": "slots",
    "--max-num-batched-tokens": "batch_tokens",
    "--kv-cache-dtype": "kv_type",
    "--speculative-config": "speculative",
    "--speculative-model": "speculative",
    "-sc": "speculative",
    "--tensor-parallel-size": "tensor_parallel",
    "-tp": "tensor_parallel",
}


async def probe(session: aiohttp.ClientSession, base_url: str) -> Probe:
    """Return what `/version` and `/v1/models` say."""
    version, models = await asyncio.gather(
        get(session, base_url, "/version"), get(session, base_url, "/v1/models")
    )
    return read_probe(version, models)


def read_probe(version: Reply | None, models: Reply | None) -> Probe:
    """Return what the two replies say; either may be missing."""
    entries = _entries(models)
    first = next((entry for entry in entries if not entry.get("parent")), {})
    about = None if version is None else version.json
    return Probe(
        version=about.get("version") if isinstance(about, dict) else None,
        models=tuple(entry["id"] for entry in entries if isinstance(entry.get("id"), str)),
        model_path=first.get("root"),
        context_tokens=first.get("max_model_len"),
    )


def parse_flags(argv: Sequence[str]) -> Flags:
    """Return what the command line of `vllm serve` asks for.

    The children's command lines are overwritten by their titles (`VLLM::EngineCore`): give the
    parent's.
    """
    said = options([_dashed(word) for word in argv], VALUED, {})
    kv_type = said.get("kv_type")
    return Flags(
        model_path=said.get("model_path") or _positional(argv),
        alias=said.get("alias"),
        context_tokens=number(said.get("context_tokens")),
        slots=number(said.get("slots")),
        batch_tokens=number(said.get("batch_tokens")),
        kv_type_k=kv_type,
        kv_type_v=kv_type,
        speculative=True if "speculative" in said else None,
        tensor_parallel=number(said.get("tensor_parallel")),
    )


def _positional(argv: Sequence[str]) -> str | None:
    words = arguments(argv)
    if len(words) > 1 and words[0] == "serve" and not words[1].startswith("-"):
        return words[1]
    return None


def _dashed(word: str) -> str:
    """Return an option in its dashed spelling; vLLM takes underscores too."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _entries(models: Reply | None) -> list[dict[str, Any]]:
    body = None if models is None else models.json
    data = body.get("data") if isinstance(body, dict) else None
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
