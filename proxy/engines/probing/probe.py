"""The questions for each engine: all that it says of itself, and where its slots are."""

import aiohttp

from slowtok.proxy.engines.drivers import (
    llama_server,
    llama_swap,
    lm_studio,
    ollama,
    openai_server,
    sglang,
    vllm,
)
from slowtok.proxy.engines.drivers.ollama import runner_url
from slowtok.proxy.engines.probing.facts import Identity, Probe
from slowtok.proxy.engines.probing.server_facts import loaded_model, ollama_runner_of
from slowtok.proxy.sampling.protocol import ProcessFacts

PROBES = {
    "llama-server": llama_server.probe,
    "llama-swap": llama_swap.probe,
    "ollama": ollama.probe,
    "vllm": vllm.probe,
    "lm-studio": lm_studio.probe,
    "sglang": sglang.probe,
}


async def ask(session: aiohttp.ClientSession, identity: Identity, base_url: str) -> Probe:
    """Return what the engine at `base_url` says of itself; nothing that loads or wakes a model."""
    probe = PROBES.get(identity.kind, openai_server.probe)
    return await probe(session, base_url)


def slots_url(
    base_url: str,
    identity: Identity,
    probe: Probe,
    process: ProcessFacts | None,
    model: str | None,
) -> str | None:
    """Return where the slots of the llama-server that runs `model` are to be seen, if anywhere.

    To be asked only while a request for that model is under way: a llama-server wakes a sleeping
    model for it, also one behind a router. A router is asked so that it loads none.
    """
    if identity.kind == "llama-server" and probe.loaded is None:
        return f"{base_url.rstrip('/')}/slots"
    if identity.kind == "ollama":
        child = None if process is None else ollama_runner_of(process, probe, model)
        url = None if child is None else runner_url(child)
        return None if url is None else f"{url}/slots"
    loaded = loaded_model(probe, model)
    if loaded is None or loaded.sleeping:
        return None
    if identity.kind == "llama-server":
        return f"{base_url.rstrip('/')}/slots?{llama_server.router_query(loaded.name)}"
    return f"{loaded.url}/slots" if loaded.kind == "llama-server" else None
