"""Routing: chooses the engine for a request by its path and its model. Pure."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

import orjson

if TYPE_CHECKING:  # a relaying process never loads what asks the engines: 10 MiB less
    from slowtok.proxy.engines.engine import Engine

MODELS = "/v1/models"  # where every engine lists its models
MODEL_LISTS = (MODELS, "/api/tags")
ONE_MODEL = f"{MODELS}/"
# Paths that one kind of engine alone knows; the longest prefix counts.
OWN_PATHS: Mapping[str, str] = {
    "/api/": "ollama",
    "/api/v0/": "lm-studio",
    "/api/v1/": "lm-studio",
    "/completion": "llama-server",
    "/infill": "llama-server",
    "/props": "llama-server",
    "/slots": "llama-server",
    "/apply-template": "llama-server",
    "/lora-adapters": "llama-server",
}


def fitting(engines: Sequence["Engine"], path: str) -> "list[Engine]":
    """Return the engines that know a path; all of them if none is known to."""
    prefixes = [prefix for prefix in OWN_PATHS if path.startswith(prefix)]
    kind = OWN_PATHS[max(prefixes, key=len)] if prefixes else None
    return [engine for engine in engines if engine.last_kind == kind] or list(engines)


def pick(engines: Sequence["Engine"], model: str | None) -> "Engine | None":
    """Return the engine that lists `model`, preferably one that answers; None if none lists it."""
    listing = [engine for engine in engines if engine.serves(model)]
    return first(listing) if listing else None


def first(engines: Sequence["Engine"]) -> "Engine":
    """Return the first engine that answers, else the first one."""
    return next((engine for engine in engines if engine.identity is not None), engines[0])


def model_named(
    path: str, query: Mapping[str, str], body: bytes | AsyncIterator[bytes] | None
) -> str | None:
    """Return the model named in a request that is not a generation, or None."""
    if path.startswith(ONE_MODEL):
        return unquote(path.removeprefix(ONE_MODEL)) or None
    if named := query.get("model"):  # so a router of llama-servers is asked about one of them
        return named
    try:
        payload = orjson.loads(body) if isinstance(body, bytes) else None
    except orjson.JSONDecodeError:
        return None
    named = payload.get("model", payload.get("name")) if isinstance(payload, dict) else None
    return named if isinstance(named, str) else None
