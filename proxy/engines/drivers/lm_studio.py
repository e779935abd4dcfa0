"""LM Studio: which models it holds, and how it loaded them.

`/api/v1/models` (since 0.4.0) tells how each instance was loaded; `/api/v0/models` (since 0.3.6)
only its context (https://lmstudio.ai/docs/developer/rest/list). Both are lists: models are loaded
by requests alone. It tells neither its version nor how many layers are on a GPU.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.drivers.openai_server import model_entries
from slowtok.proxy.engines.probing.facts import Flags, Loaded, Probe
from slowtok.proxy.engines.probing.reply import ProbeReply, get


async def probe(session: aiohttp.ClientSession, base_url: str) -> Probe:
    """Return the names and the loaded models."""
    native, models = await asyncio.gather(
        get(session, base_url, "/api/v1/models"), get(session, base_url, "/v1/models")
    )
    if not _v1_entries(native):  # older ones answer 200 with an error
        return read_probe_v0(await get(session, base_url, "/api/v0/models"), models)
    return read_probe(native, models)


def read_probe(native: ProbeReply | None, models: ProbeReply | None) -> Probe:
    """Return what `/api/v1/models` and `/v1/models` say."""
    entries = _v1_entries(native)
    loaded = [_instance(entry, each) for entry in entries for each in _instances(entry)]
    return Probe(models=_names(models), loaded=tuple(loaded) if entries else None)


def read_probe_v0(native: ProbeReply | None, models: ProbeReply | None) -> Probe:
    """Return what `/api/v0/models` and `/v1/models` say."""
    entries = model_entries(native)
    loaded = [
        Loaded(
            name=entry["id"],
            context_tokens=entry.get("loaded_context_length"),
            model=ModelFacts(quantisation=entry.get("quantization")),
        )
        for entry in entries
        if entry.get("state") == "loaded" and isinstance(entry.get("id"), str)
    ]
    return Probe(models=_names(models), loaded=tuple(loaded) if entries else None)


def _instance(entry: Mapping[str, Any], instance: Mapping[str, Any]) -> Loaded:
    """Return one loaded instance: requests name it by its own id, or by the model's key."""
    asked, quantisation = _dict(instance.get("config")), _dict(entry.get("quantization"))
    name, key = instance.get("id"), entry.get("key")
    aliases = (key, entry.get("selected_variant"))
    return Loaded(
        name=str(name or key),
        aliases=tuple(alias for alias in aliases if isinstance(alias, str)),
        context_tokens=asked.get("context_length"),
        slots=asked.get("parallel"),
        model=ModelFacts(
            quantisation=quantisation.get("name"),
            bits_per_weight=quantisation.get("bits_per_weight"),
            file_bytes=entry.get("size_bytes"),
        ),
        flags=Flags(
            batch_tokens=asked.get("eval_batch_size"),
            flash_attention=_switch(asked.get("flash_attention")),
            kv_on_gpu=asked.get("offload_kv_cache_to_gpu"),
        ),
    )


def _switch(truth: object) -> str | None:
    if not isinstance(truth, bool):
        return None
    return "on" if truth else "off"


def _names(models: ProbeReply | None) -> tuple[str, ...]:
    return tuple(e["id"] for e in model_entries(models) if isinstance(e.get("id"), str))


def _v1_entries(native: ProbeReply | None) -> Sequence[Mapping[str, Any]]:
    body = None if native is None else native.json
    models = body.get("models") if isinstance(body, dict) else None
    return [m for m in models if isinstance(m, dict)] if isinstance(models, list) else []


def _instances(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    instances = entry.get("loaded_instances")
    return [_dict(each) for each in instances] if isinstance(instances, list) else []


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
