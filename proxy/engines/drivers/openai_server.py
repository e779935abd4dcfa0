"""A server of OpenAI's interface that is none of the known ones: what its list of models says."""

from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from slowtok.proxy.engines.probing.facts import Probe
from slowtok.proxy.engines.probing.reply import ProbeReply, get

# None of these is in OpenAI's interface; servers add one of them for the context of a request.
CONTEXT_FIELDS = ("max_model_len", "loaded_context_length", "context_length", "context_window")


async def probe(session: aiohttp.ClientSession, base_url: str) -> Probe:
    """Return what `/v1/models` says."""
    return read_probe(await get(session, base_url, "/v1/models"))


def read_probe(models: ProbeReply | None) -> Probe:
    """Return the names, and the context where a reply with one model carries it."""
    entries = model_entries(models)
    only = entries[0] if len(entries) == 1 else {}
    contexts = (only.get(name) for name in CONTEXT_FIELDS)
    return Probe(
        models=tuple(entry["id"] for entry in entries if isinstance(entry.get("id"), str)),
        context_tokens=next((c for c in contexts if isinstance(c, int) and c > 0), None),
    )


def model_entries(models: ProbeReply | None) -> Sequence[Mapping[str, Any]]:
    """Return the entries of a reply of `/v1/models`."""
    body = None if models is None else models.json
    data = body.get("data") if isinstance(body, dict) else None
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


def aliases_of(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a model's other names, where llama-server or else where llama-swap puts them."""
    meta = entry.get("meta")
    of_swap = meta.get("llamaswap") if isinstance(meta, dict) else None
    aliases = entry.get("aliases") or (
        of_swap.get("aliases") if isinstance(of_swap, dict) else None
    )
    return (
        tuple(name for name in aliases if isinstance(name, str))
        if isinstance(aliases, list)
        else ()
    )
