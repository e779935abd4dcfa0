"""Ollama: which models it holds, how much of each is on a GPU, and which file each one is.

Since 0.30 each model runs in a llama-server of its own; that child's command line is read by
`llama_server.parse_flags`.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import aiohttp

from slowtok.proxy.sampling.wire import ProcessFacts
from slowtok.proxy.servers.facts import Loaded, Probe
from slowtok.proxy.servers.reply import Reply, get, post

FROM_LINE = re.compile(r"^FROM\s+(\S.*?)\s*$", re.MULTILINE)
RUNNERS = ("llama-server", "ollama")  # the second before 0.30, and for models that are no GGUF


async def probe(session: aiohttp.ClientSession, base_url: str) -> Probe:
    """Return the version, the names and the loaded models; nothing asked here loads a model."""
    version, tags, running = await asyncio.gather(
        get(session, base_url, "/api/version"),
        get(session, base_url, "/api/tags"),
        get(session, base_url, "/api/ps"),
    )
    names = [entry["name"] for entry in entries(running) if isinstance(entry.get("name"), str)]
    shown = await asyncio.gather(
        *(post(session, base_url, "/api/show", {"model": name}) for name in names)
    )
    return read_probe(version, tags, running, dict(zip(names, shown, strict=True)))


def read_probe(
    version: Reply | None,
    tags: Reply | None,
    running: Reply | None,
    shown: Mapping[str, Reply | None],
) -> Probe:
    """Return what the replies say; `shown` are those of `/api/show` for each running model."""
    about = None if version is None else version.json
    return Probe(
        version=about.get("version") if isinstance(about, dict) else None,
        models=tuple(e["name"] for e in entries(tags) if isinstance(e.get("name"), str)),
        loaded=tuple(
            _loaded(entry, shown.get(entry["name"]))
            for entry in entries(running)
            if isinstance(entry.get("name"), str)
        ),
    )


def runner_argv(process: ProcessFacts, path: str | None) -> tuple[str, ...]:
    """Return the command line of the child that runs the model file `path`.

    Without a path, or with children that do not name one, the only child is taken; of several none.
    """
    runners = [
        child.cmdline
        for child in process.children
        if child.cmdline and PurePath(child.cmdline[0]).name.startswith(RUNNERS)
    ]
    for argv in runners:
        if path is not None and path in argv:
            return argv
    return runners[0] if path is None and len(runners) == 1 else ()


def entries(reply: Reply | None) -> Sequence[dict[str, Any]]:
    """Return the objects of a reply's `models`."""
    body = None if reply is None else reply.json
    models = body.get("models") if isinstance(body, dict) else None
    return [m for m in models if isinstance(m, dict)] if isinstance(models, list) else []


def _loaded(entry: dict[str, Any], shown: Reply | None) -> Loaded:
    details = entry.get("details")
    size, on_gpu = entry.get("size"), entry.get("size_vram")
    return Loaded(
        name=entry["name"],
        path=_path(shown),
        context_tokens=entry.get("context_length") or None,
        memory_bytes=size or None,
        # Go leaves a zero out: a loaded model without the field has nothing on a GPU.
        gpu_bytes=(on_gpu or 0) if size else None,
        quantisation=details.get("quantization_level") if isinstance(details, dict) else None,
    )


def _path(shown: Reply | None) -> str | None:
    body = None if shown is None else shown.json
    modelfile = body.get("modelfile") if isinstance(body, dict) else None
    found = FROM_LINE.search(modelfile) if isinstance(modelfile, str) else None
    return found[1] if found and PurePath(found[1]).is_absolute() else None
