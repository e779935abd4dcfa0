"""Recognises the engine at an address by its replies, never by its port.

Nothing asked here loads a model or wakes one: all are GETs that the engines answer from memory.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from slowtok.proxy.engines.probing.facts import Identity, Kind
from slowtok.proxy.engines.probing.reply import ProbeReply, get

PATHS = ("/v1/models", "/props", "/api/version", "/version", "/lmstudio-greeting", "/")
OF_SLOWTOK = "slowtok-id"  # on every reply that a slowtok relays
# `owned_by` in /v1/models. Ollama puts "library" or a user's name there.
OWNERS: Mapping[str, Kind] = {
    "llamacpp": "llama-server",
    "vllm": "vllm",
    "sglang": "sglang",
    "library": "ollama",
    "organization_owner": "lm-studio",
    "llama-swap": "llama-swap",
    "lemonade": "lemonade",
    "docker": "docker-model-runner",
}
VERSION_AT: Mapping[Kind, tuple[str, str]] = {
    "llama-server": ("/props", "build_info"),
    "vllm": ("/version", "version"),
    "ollama": ("/api/version", "version"),
    "llama-swap": ("/api/version", "version"),
}
OF_LITELLM = b"<title>LiteLLM API"  # of its page; its list of models names its providers as owners


async def identify(session: aiohttp.ClientSession, base_url: str) -> Identity | None:
    """Return which engine answers at `base_url`; None when nothing does within a second."""
    replies = await asyncio.gather(*(get(session, base_url, path) for path in PATHS))
    return decide({p: r for p, r in zip(PATHS, replies, strict=True) if r is not None})


def decide(replies: Mapping[str, ProbeReply]) -> Identity | None:
    """Return which engine gave these replies; None when there are none.

    "openai" is a server of OpenAI's interface that is none of the known ones; "unknown" speaks
    HTTP, and nothing more is known.
    """
    if not replies:
        return None
    kind = _kind(replies)
    path, name = VERSION_AT.get(kind, ("", ""))
    version = _field(replies.get(path), name)
    return Identity(
        kind=kind,
        version=version if isinstance(version, str) else None,
        relayed=any(OF_SLOWTOK in reply.headers for reply in replies.values()),
    )


def _kind(replies: Mapping[str, ProbeReply]) -> Kind:
    """Return the kind: first by marks that one engine alone carries, last by what others imitate.

    Several servers answer `/api/version` as Ollama does, but own their models by another name.
    """
    owners = _owners(replies.get("/v1/models"))
    known = next((OWNERS[owner] for owner in owners if owner in OWNERS), None)
    marks: tuple[tuple[bool, Kind | None], ...] = (
        (any(r.headers.get("server") == "llama.cpp" for r in replies.values()), "llama-server"),
        (_field(replies.get("/lmstudio-greeting"), "lmstudio") is True, "lm-studio"),
        (known is not None, known),
        (_body(replies.get("/")) == b"Ollama is running", "ollama"),
        (OF_LITELLM in _body(replies.get("/")), "litellm"),
        # Behind a server that hides `Server`, and where an API key guards /v1/models:
        (not owners and _field(replies.get("/props"), "build_info") is not None, "llama-server"),
        (not owners and _is_uvicorn_with_a_version(replies), "vllm"),
        (isinstance(_field(replies.get("/v1/models"), "data"), list), "openai"),
    )
    return next((kind for seen, kind in marks if seen and kind is not None), "unknown")


def _owners(models: ProbeReply | None) -> list[str]:
    data = _field(models, "data")
    entries = data if isinstance(data, list) else []
    owners = [entry.get("owned_by") for entry in entries if isinstance(entry, dict)]
    return [owner for owner in owners if isinstance(owner, str)]


def _is_uvicorn_with_a_version(replies: Mapping[str, ProbeReply]) -> bool:
    reply = replies.get("/version")
    if reply is None or reply.headers.get("server") != "uvicorn":
        return False
    return isinstance(_field(reply, "version"), str)


def _field(reply: ProbeReply | None, name: str) -> Any:
    body = None if reply is None else reply.json
    return body.get(name) if isinstance(body, dict) else None


def _body(reply: ProbeReply | None) -> bytes:
    return b"" if reply is None or reply.status != 200 else reply.body.strip()
