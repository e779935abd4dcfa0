"""Ollama: which models it holds, how much of each is on a GPU, and which file each one is.

Only what neither loads a model nor puts off its unloading is asked: `/api/ps` and `/api/tags` read
lists, `/api/show` reads a file (server/routes.go, 0.34).

Since 0.30 (2026-05) a model in a GGUF file runs in a llama-server of its own, with its own port on
loopback; before, and for models in other files, in an `ollama runner` (llm/llama_server.go,
x/mlxrunner/client.go). A child is started for each load: another pid is a model loaded anew, while
a new `expires_at` in `/api/ps` is not: every request moves that.
"""

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import aiohttp

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.drivers.llama_server import parse_flags, with_defaults
from slowtok.proxy.engines.models.kv_geometry import KvBytes, kv_bytes
from slowtok.proxy.engines.probing.argv import number, options
from slowtok.proxy.engines.probing.facts import Flags, Loaded, Probe
from slowtok.proxy.engines.probing.reply import ProbeReply, get, post
from slowtok.proxy.sampling.protocol import ChildProcess, ProcessFacts

FROM_LINE = re.compile(r"^FROM\s+(\S.*?)\s*$", re.MULTILINE)
BESIDE_THE_WEIGHTS_BYTES = 1 << 20  # templates and licences, which `/api/tags` counts in
COUNTS_CACHED_SINCE = (0, 34)  # before, Responses always said 0 (openai/responses.go)

CHILDS_OWN = {"--model": "model", "--port": "port", "--kv-cache-type": "kv_type"}
GO_FALSE = frozenset({"0", "f", "false"})  # what Go's strconv.ParseBool takes for it


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
    version: ProbeReply | None,
    tags: ProbeReply | None,
    running: ProbeReply | None,
    shown: Mapping[str, ProbeReply | None],
) -> Probe:
    """Return what the replies say; `shown` are those of `/api/show` for each running model."""
    about = None if version is None else version.json
    sizes = {entry.get("digest"): entry.get("size") for entry in entries(tags)}
    on_disk = {digest: size for digest, size in sizes.items() if isinstance(size, int) and digest}
    loaded = [
        _loaded(entry, shown.get(entry["name"]), on_disk.get(entry.get("digest")))
        for entry in entries(running)
        if isinstance(entry.get("name"), str)
    ]
    told = running is not None and isinstance(running.json, dict)
    return Probe(
        version=about.get("version") if isinstance(about, dict) else None,
        models=tuple(e["name"] for e in entries(tags) if isinstance(e.get("name"), str)),
        loaded=tuple(loaded) if told else None,
    )


def counts_cached(version: str | None) -> bool:
    """Return True if this version counts the tokens that came from its cache.

    One built without its version calls itself 0.0.0: not known, so it is not believed.
    """
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return found is not None and (int(found[1]), int(found[2])) >= COUNTS_CACHED_SINCE


def entries(reply: ProbeReply | None) -> Sequence[dict[str, Any]]:
    """Return the objects of a reply's `models`."""
    body = None if reply is None else reply.json
    models = body.get("models") if isinstance(body, dict) else None
    return [m for m in models if isinstance(m, dict)] if isinstance(models, list) else []


def _loaded(entry: dict[str, Any], shown: ProbeReply | None, on_disk_bytes: int | None) -> Loaded:
    path = _path(shown)
    size, on_gpu = _memory(entry, on_disk_bytes)
    return Loaded(
        name=entry["name"],
        path=path,
        context_tokens=entry.get("context_length") or None,
        memory_bytes=size,
        gpu_bytes=on_gpu,
        model=read_model(entry, shown, path=path, on_disk_bytes=on_disk_bytes),
    )


def _memory(entry: dict[str, Any], on_disk_bytes: int | None) -> tuple[int | None, int | None]:
    """Return the bytes in memory and those on GPUs, as far as `/api/ps` is to be believed.

    Ollama reads both out of its child's log. With all layers on GPUs it calls everything on GPUs,
    though some of it is not (the embedding table). Where it could not read the log, both are the
    size of the file, wherever the model is; then nothing is known (`MemorySize` in
    llm/llama_server.go, 0.33). That file is a little less than what `/api/tags` counts.
    """
    size, on_gpu = entry.get("size"), entry.get("size_vram")
    if not isinstance(size, int) or size <= 0:
        return None, None
    if size == on_gpu and on_disk_bytes is not None:
        beside_bytes = on_disk_bytes - size
        if 0 <= beside_bytes <= BESIDE_THE_WEIGHTS_BYTES:
            return None, None
    return size, on_gpu if isinstance(on_gpu, int) else None


def _path(shown: ProbeReply | None) -> str | None:
    body = None if shown is None else shown.json
    modelfile = body.get("modelfile") if isinstance(body, dict) else None
    found = FROM_LINE.search(modelfile) if isinstance(modelfile, str) else None
    return found[1] if found and PurePath(found[1]).is_absolute() else None


def read_model(
    entry: Mapping[str, Any],
    shown: ProbeReply | None,
    *,
    path: str | None,
    on_disk_bytes: int | None,
) -> ModelFacts:
    """Return what `/api/ps` (one entry), `/api/tags` (its size) and `/api/show` say of a model.

    `on_disk_bytes` counts all of its files: beside the weights a projector, where there is one.
    `/api/show` gives the file's metadata without its longer arrays and without its tensors (they
    would be a megabyte each time), so the weights read for a token stay unknown.
    """
    body = None if shown is None else shown.json
    info = body.get("model_info") if isinstance(body, dict) else None
    metadata = info if isinstance(info, dict) else {}
    details = entry.get("details")
    kv = _kv(metadata)
    parameters = _count(metadata.get("general.parameter_count"))
    return ModelFacts(
        name=entry.get("name"),
        path=path,
        digest=entry.get("digest"),
        quantisation=details.get("quantization_level") if isinstance(details, dict) else None,
        parameters=parameters,
        file_bytes=on_disk_bytes,
        layers=_count(_field(metadata, "{arch}.block_count")),
        experts=_count(_field(metadata, "{arch}.expert_count")),
        experts_used=_count(_field(metadata, "{arch}.expert_used_count")),
        kv_bytes_per_token=None if kv is None else kv.growing,
        kv_window_tokens=None if kv is None else kv.window_tokens,
        kv_window_bytes_per_token=None if kv is None else kv.windowed,
    )


def _kv(metadata: Mapping[str, Any]) -> KvBytes | None:
    """Return the bytes of the KV cache; None where a list that they depend on was left out.

    Layers that keep a state instead of keys are told by their tensors alone: also None.
    """
    layers = _count(_field(metadata, "{arch}.block_count"))
    geometry = {k: v for k, v in metadata.items() if not k.startswith(("general.", "tokenizer."))}
    left_out = any(value in (None, []) for value in geometry.values())
    recurrent = any(".ssm." in key or ".wkv" in key for key in geometry)
    if layers is None or left_out or recurrent:
        return None
    return kv_bytes(lambda key: _field(metadata, key), layers, frozenset())


def _field(metadata: Mapping[str, Any], key: str) -> Any:
    return metadata.get(key.format(arch=metadata.get("general.architecture")))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def find_runner(
    process: ProcessFacts, path: str | None, *, foreign: Collection[str] = ()
) -> ChildProcess | None:
    """Return the child that runs the model file `path`.

    Where the path is not known it is the only child whose file is not `foreign`, one of the other
    loaded models' files: of several none. A model that is no GGUF goes by its name, not a path.
    """
    runners = [(child, _own(child).get("model")) for child in process.children if _runs(child)]
    if path is not None:
        return next((child for child, model in runners if model == path), None)
    left = [child for child, model in runners if model not in foreign]
    return left[0] if len(left) == 1 else None


def is_llama_server(child: ChildProcess) -> bool:
    """Return True if a child is a llama-server, with all that one answers."""
    return bool(child.cmdline) and PurePath(child.cmdline[0]).name.startswith("llama-server")


def runner_url(child: ChildProcess) -> str | None:
    """Return the address of a child that is a llama-server; it listens on loopback without a key.

    Asking it for `/slots` or `/props` neither loads a model nor keeps one loaded: Ollama counts
    only its own requests, and starts the child without the option to sleep.
    """
    port = number(_own(child).get("port"))
    return f"http://127.0.0.1:{port}" if port and is_llama_server(child) else None


def runner_flags(process: ProcessFacts, child: ChildProcess | None) -> Flags | None:
    """Return what the child was asked to do, or what Ollama's environment says of all of them.

    The child inherits the environment. An `ollama runner` of the newer kind gets its options over
    HTTP, so that only the environment tells the type of the KV cache.
    """
    environment = process.environment
    if child is not None and is_llama_server(child):
        return with_defaults(parse_flags(child.cmdline, environment))
    said = Flags() if child is None else parse_flags(child.cmdline, {})
    own = {} if child is None else _own(child)
    kv_type = own.get("kv_type") or environment.get("OLLAMA_KV_CACHE_TYPE") or None
    flags = replace(
        said,
        kv_type_k=kv_type,
        kv_type_v=kv_type,
        flash_attention=said.flash_attention or _flash_attention(environment),
    )
    return None if flags == Flags() else flags


def _runs(child: ChildProcess) -> bool:
    """Return True if a child runs a model: others only list the devices, for a moment."""
    if not child.cmdline or "--model" not in child.cmdline:
        return False
    return is_llama_server(child) or child.cmdline[1:2] == ("runner",)


def _own(child: ChildProcess) -> dict[str, str]:
    return options(child.cmdline, CHILDS_OWN, {})


def _flash_attention(environment: Mapping[str, str]) -> str | None:
    asked = environment.get("OLLAMA_FLASH_ATTENTION")
    if not asked:
        return None
    return "off" if asked.lower() in GO_FALSE else "on"
