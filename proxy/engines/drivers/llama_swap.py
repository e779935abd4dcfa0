"""llama-swap: starts an engine for each model that is asked for, and passes requests on to it.

It is no engine itself: what it says is which models it has and which of them run where. The engine
of each that runs is asked at its own address, only where both are this machine's. llama-swap's own
`/props?model=` and `/upstream/MODEL/` are never asked: they load a model that is not loaded
(internal/server/server.go).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from yarl import URL

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.drivers import llama_server, openai_server, vllm
from slowtok.proxy.engines.drivers.openai_server import aliases_of, model_entries
from slowtok.proxy.engines.probing.facts import Identity, Loaded, Probe
from slowtok.proxy.engines.probing.identify import identify
from slowtok.proxy.engines.probing.locality import is_local
from slowtok.proxy.engines.probing.reply import ProbeReply, get

READY = "ready"  # others are starting and stopping: requests for them wait
PROBES = {"llama-server": llama_server.probe, "vllm": vllm.probe}


async def probe(session: aiohttp.ClientSession, base_url: str) -> Probe:
    """Return what `/v1/models` and `/running` say, and the engines that run by their own word."""
    models, running = await asyncio.gather(
        get(session, base_url, "/v1/models"), get(session, base_url, "/running")
    )
    found = read_probe(models, running)
    if not found.loaded or not await is_local(base_url):
        return found
    at = zip(found.loaded, _urls(running), strict=True)
    loaded = await asyncio.gather(*(_asked(session, named, url) for named, url in at))
    return Probe(models=found.models, loaded=tuple(loaded))


def read_probe(models: ProbeReply | None, running: ProbeReply | None) -> Probe:
    """Return the models, and those that run: their names alone."""
    entries = model_entries(models)
    aliases = {str(entry.get("id")): aliases_of(entry) for entry in entries}
    ready = _ready(running)
    return Probe(
        models=tuple(entry["id"] for entry in entries if isinstance(entry.get("id"), str)),
        loaded=None
        if ready is None
        else tuple(
            Loaded(name=name, aliases=aliases.get(name, ()))
            for name in (str(each.get("model")) for each in ready)
        ),
    )


def read_loaded(named: Loaded, url: str, identity: Identity, engine_probe: Probe) -> Loaded:
    """Return a model with what its engine, at `url`, says of itself."""
    return Loaded(
        name=named.name,
        aliases=named.aliases,
        kind=identity.kind,
        version=engine_probe.version or identity.version,
        url=url,
        path=engine_probe.model_path if identity.kind == "llama-server" else None,
        context_tokens=engine_probe.context_tokens,
        slots=engine_probe.slots,
        speculative=engine_probe.speculative,
        sleeping=engine_probe.sleeping,
        template_habits=engine_probe.template_habits,
        model=ModelFacts(
            path=engine_probe.model_path,
            quantisation=engine_probe.quantisation,
            parameters=engine_probe.parameters,
            file_bytes=engine_probe.weight_bytes,
        ),
    )


async def _asked(session: aiohttp.ClientSession, named: Loaded, url: str | None) -> Loaded:
    if url is None or not await is_local(url):
        return named
    identity = await identify(session, url)
    if identity is None or identity.kind in {"unknown", "llama-swap"}:
        return named
    ask = PROBES.get(identity.kind, openai_server.probe)
    return read_loaded(named, url, identity, await ask(session, url))


def _urls(running: ProbeReply | None) -> list[str | None]:
    return [_url(each.get("proxy")) for each in _ready(running) or ()]


def _url(text: object) -> str | None:
    """Return an address that can be asked, without a slash at its end."""
    try:
        url = URL(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if url is None or url.scheme != "http" or not url.host else str(url).rstrip("/")


def _ready(running: ProbeReply | None) -> Sequence[Mapping[str, Any]] | None:
    """Return the entries of models that run; None where it did not tell."""
    body = None if running is None else running.json
    entries = body.get("running") if isinstance(body, dict) else None
    if not isinstance(entries, list):
        return None
    return [each for each in entries if isinstance(each, dict) and each.get("state") == READY]
