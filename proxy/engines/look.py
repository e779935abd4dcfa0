"""A complete probe of an engine: its kind, what it reports, and what its model files contain."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import aiohttp

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.drivers import vllm
from slowtok.proxy.engines.engine import Engine
from slowtok.proxy.engines.model_lists import read_list
from slowtok.proxy.engines.models.loading import (
    AS_IN_THE_FILES,
    SGLANG_ONLINE,
    VLLM_ONLINE,
    Loading,
    loading_asked,
    with_options_read,
)
from slowtok.proxy.engines.models.model_facts import find_folder, read_model_facts
from slowtok.proxy.engines.probing import probe
from slowtok.proxy.engines.probing.identify import identify
from slowtok.proxy.engines.probing.locality import is_local
from slowtok.proxy.engines.probing.reply import get
from slowtok.proxy.engines.probing.server_facts import model_path, told_model
from slowtok.proxy.engines.routing import MODELS
from slowtok.proxy.sampling.protocol import ProcessFacts

SERVES_FOLDERS = frozenset({"vllm", "sglang"})


async def look(
    session: aiohttp.ClientSession,
    engine: Engine,
    process: ProcessFacts | None,
    cache_dir: Path,
    *,
    is_asked: Callable[[], bool] = lambda: False,
) -> None:
    """Probe an engine and store the result; `process` listens at its port, if that is visible.

    While requests are in flight (`is_asked`) it may answer late, or only in part; then its earlier
    reports remain valid. A lost engine ends its requests. An engine that was there is asked twice
    before it counts as lost, because a probe also fails if this machine was suspended meanwhile.

    Raises:
        Exception: a reply of unknown form may raise anything.
    """
    engine.local = await is_local(engine.url)
    found = await identify(session, engine.url)
    if found is None and engine.identity is not None:
        found = await identify(session, engine.url)
    if (found is None or found.kind == "unknown") and engine.kind != "unknown" and is_asked():
        return
    engine.identity = found
    if engine.identity is not None:
        engine.last_kind = engine.identity.kind
        listed = read_list(await get(session, engine.url, MODELS))
        if listed is not None:  # one that wants a key keeps what a client was told
            engine.listed[MODELS] = listed
        said = await probe.ask(session, engine.identity, engine.url)
        if engine.probe.models and not said.models and is_asked():
            return
        engine.probe = said
        await _read_models(engine, process, cache_dir)


async def _read_models(engine: Engine, process: ProcessFacts | None, cache_dir: Path) -> None:
    """Read the geometry of the engine's models, once per file or folder."""
    names = engine.probe.models
    before, engine.loading = engine.loading, await _loading(engine, process)
    for name in names:
        path = await _path(engine, name, process)
        known = engine.models.get(name)
        is_loaded_anew = engine.loading != before
        if known is None or is_loaded_anew or (path is not None and known.path != path):
            here = path if engine.is_here(process) else None
            engine.models[name] = await _read_model(engine, name, here, cache_dir)
    for name in [name for name in engine.models if name not in names]:
        del engine.models[name]


async def _loading(engine: Engine, process: ProcessFacts | None) -> Loading:
    """Return how the engine loads weights: as reported, else by its command line.

    A process that is not visible now was started as it was when it was visible.
    """
    if engine.kind not in SERVES_FOLDERS:
        return AS_IN_THE_FILES
    if engine.probe.weights is not None:
        return engine.probe.weights
    if process is None or not process.cmdline:
        return engine.loading
    online = SGLANG_ONLINE if engine.kind == "sglang" else VLLM_ONLINE
    return await asyncio.to_thread(with_options_read, loading_asked(process.cmdline, online))


async def _path(engine: Engine, name: str, process: ProcessFacts | None) -> str | None:
    """Return the path of the model's weights: a GGUF file, or a folder as vLLM uses them."""
    if engine.identity is None:
        return None
    several = len(engine.probe.models) > 1
    path = model_path(engine.identity, engine.probe, name if several else None)
    root = engine.probe.model_path
    if path or not root or not engine.is_here(process) or engine.kind not in SERVES_FOLDERS:
        return path
    if root.endswith(".gguf"):
        return root
    folder = await asyncio.to_thread(_find_folder, root, process)
    return None if folder is None else str(folder)


def _find_folder(root: str, process: ProcessFacts | None) -> Path | None:
    """Return the model's folder; SGLang's two relevant options are named as vLLM's."""
    told = {} if process is None else process.environment
    download_dir, revision = vllm.weights_asked(() if process is None else process.cmdline)
    return find_folder(root, {**os.environ, **told}, download_dir=download_dir, revision=revision)


async def _read_model(engine: Engine, name: str, path: str | None, cache_dir: Path) -> ModelFacts:
    """Return the model's facts from its files on this machine, else as the engine reports them."""
    if path:
        facts = await read_model_facts(Path(path), cache_dir, loading=engine.loading)
        if facts is not None:
            return replace(facts, name=name, path=path)
    return replace(told_model(engine.probe, name), path=None)  # asked for again at the next look
