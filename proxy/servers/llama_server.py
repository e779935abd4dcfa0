"""llama.cpp's server: what it answers about itself, and what its command line asks for.

Nothing here asks `/slots`: that wakes a sleeping model, and any task put in the queue keeps one
from falling asleep.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from slowtok.proxy.servers.argv import number, options
from slowtok.proxy.servers.facts import ALL_LAYERS, Flags, Loaded, Probe
from slowtok.proxy.servers.reply import Reply, get

# Name of the fact: its environment variable (`LLAMA_ARG_...`), then its spellings.
OPTIONS = {
    "model_path": ("MODEL", "-m", "--model"),
    "alias": ("ALIAS", "-a", "--alias"),
    "gpu_layers": ("N_GPU_LAYERS", "-ngl", "--gpu-layers", "--n-gpu-layers"),
    "cpu_moe_layers": ("N_CPU_MOE", "-ncmoe", "--n-cpu-moe"),
    "threads": ("THREADS", "-t", "--threads"),
    "context_tokens": ("CTX_SIZE", "-c", "--ctx-size"),
    "slots": ("N_PARALLEL", "-np", "--parallel"),
    "batch_tokens": ("BATCH", "-b", "--batch-size"),
    "micro_batch_tokens": ("UBATCH", "-ub", "--ubatch-size"),
    "flash_attention": ("FLASH_ATTN", "-fa", "--flash-attn"),
    "kv_type_k": ("CACHE_TYPE_K", "-ctk", "--cache-type-k"),
    "kv_type_v": ("CACHE_TYPE_V", "-ctv", "--cache-type-v"),
    "kv_offload": ("KV_OFFLOAD",),
    "mmap": ("MMAP",),
    "load_mode": ("LOAD_MODE", "-lm", "--load-mode"),
    "spec_type": ("SPEC_TYPE", "--spec-type"),
    "draft_model": (
        "SPEC_DRAFT_MODEL", "-md", "--model-draft", "--spec-draft-model", "-hfd", "-hfrd",
        "--hf-repo-draft",
    ),
    "split_mode": ("SPLIT_MODE", "-sm", "--split-mode"),
    "sleep_idle_s": ("SLEEP_IDLE_SECONDS", "--sleep-idle-seconds"),
}  # fmt: skip
MORE_VARIABLES = {"MODEL_DRAFT": "draft_model"}  # before the options were renamed
BARE = {
    "-nkvo": ("kv_offload", "0"),
    "--no-kv-offload": ("kv_offload", "0"),
    "-kvo": ("kv_offload", "1"),
    "--kv-offload": ("kv_offload", "1"),
    "--no-mmap": ("mmap", "0"),
    "--mmap": ("mmap", "1"),
    "-cmoe": ("cpu_moe_layers", str(ALL_LAYERS)),
    "--cpu-moe": ("cpu_moe_layers", str(ALL_LAYERS)),
}
ON, OFF = frozenset({"on", "enabled", "true", "1"}), frozenset({"off", "disabled", "false", "0"})
AUTO = frozenset({"auto", "-1"})
FLASH_ATTENTION = ("on", ON | OFF | AUTO)  # before build 6325 the option stood alone
MAPPING_MODES = frozenset({"mmap", "mmap+mlock"})
VALUED = {spelling: name for name, (_, *spellings) in OPTIONS.items() for spelling in spellings}


async def probe(session: aiohttp.ClientSession, base_url: str) -> Probe:
    """Return what `/props` and `/v1/models` say; neither loads nor wakes a model."""
    props, models = await asyncio.gather(
        get(session, base_url, "/props"), get(session, base_url, "/v1/models")
    )
    return read_probe(props, models)


async def is_sleeping(session: aiohttp.ClientSession, base_url: str) -> bool | None:
    """Ask whether the model is put away: answered without waking it; None where it is not told."""
    sleeping = _object(await get(session, base_url, "/props")).get("is_sleeping")
    return sleeping if isinstance(sleeping, bool) else None


def read_probe(props: Reply | None, models: Reply | None) -> Probe:
    """Return what the two replies say; either may be missing."""
    about = _object(props)
    settings = _dict(about.get("default_generation_settings"))
    entries = [_dict(entry) for entry in _list(_object(models).get("data"))]
    meta = _dict(entries[0].get("meta")) if len(entries) == 1 else {}
    return Probe(
        version=about.get("build_info"),
        models=tuple(entry["id"] for entry in entries if isinstance(entry.get("id"), str)),
        model_path=about.get("model_path") or None,
        quantisation=about.get("model_ftype") or meta.get("ftype"),
        parameters=meta.get("n_params"),
        weight_bytes=meta.get("size"),
        context_tokens=settings.get("n_ctx") or meta.get("n_ctx"),
        slots=about.get("total_slots"),
        speculative=_speculative(settings),
        sleeping=about.get("is_sleeping"),
        loading=any(reply is not None and reply.status == 503 for reply in (props, models)),
        loaded=tuple(_loaded(entries)),
    )


def parse_flags(argv: Sequence[str], environ: Mapping[str, str]) -> Flags:
    """Return what llama-server's command line asks for, and its environment where that is silent.

    The program's name does not matter: wrappers that take the same options are read alike.
    """
    said = _from_environment(environ) | options(
        argv, VALUED, BARE, {"-fa": FLASH_ATTENTION, "--flash-attn": FLASH_ATTENTION}
    )
    return Flags(
        model_path=said.get("model_path"),
        alias=said.get("alias"),
        gpu_layers=_layers(said.get("gpu_layers")),
        cpu_moe_layers=number(said.get("cpu_moe_layers")),
        threads=number(said.get("threads")),
        context_tokens=number(said.get("context_tokens")),
        slots=number(said.get("slots")),
        batch_tokens=number(said.get("batch_tokens")),
        micro_batch_tokens=number(said.get("micro_batch_tokens")),
        flash_attention=_switch(said.get("flash_attention")),
        kv_type_k=said.get("kv_type_k"),
        kv_type_v=said.get("kv_type_v"),
        kv_on_gpu=_truth(said.get("kv_offload")),
        memory_mapped=_memory_mapped(said.get("load_mode"), said.get("mmap")),
        speculative=_asks_for_drafts(said.get("spec_type"), said.get("draft_model")),
        split_mode=said.get("split_mode"),
        sleep_idle_s=number(said.get("sleep_idle_s")),
    )


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    names = {variable: name for name, (variable, *_) in OPTIONS.items()} | MORE_VARIABLES
    said = {
        name: environ[f"LLAMA_ARG_{variable}"]
        for variable, name in names.items()
        if f"LLAMA_ARG_{variable}" in environ
    }
    for name in ("kv_offload", "mmap"):  # a variable of the negated name counts, whatever its value
        if f"LLAMA_ARG_NO_{OPTIONS[name][0]}" in environ:
            said[name] = "0"
    if _truth(environ.get("LLAMA_ARG_CPU_MOE")):
        said["cpu_moe_layers"] = str(ALL_LAYERS)
    return said


def _layers(text: str | None) -> int | None:
    if text == "auto":
        return -1
    count = ALL_LAYERS if text == "all" else number(text)
    return ALL_LAYERS if count is not None and count <= -2 else count


def _switch(text: str | None) -> str | None:
    for name, spellings in (("on", ON), ("off", OFF), ("auto", AUTO)):
        if text in spellings:
            return name
    return None


def _truth(text: str | None) -> bool | None:
    return {"on": True, "off": False}.get(_switch(text) or "")


def _memory_mapped(load_mode: str | None, mmap: str | None) -> bool | None:
    if load_mode is not None and load_mode != "auto":
        return load_mode in MAPPING_MODES
    return _truth(mmap)


def _asks_for_drafts(spec_type: str | None, draft_model: str | None) -> bool | None:
    if draft_model:
        return True
    return None if spec_type is None else spec_type != "none"


def _speculative(settings: Mapping[str, Any]) -> bool | None:
    types = _dict(settings.get("params")).get("speculative.types")
    return None if not isinstance(types, str) else types != "none"


def _loaded(entries: Sequence[Mapping[str, Any]]) -> list[Loaded]:
    """Return the models that a router holds; a plain server's entries carry no status."""
    found = []
    for entry in entries:
        status = _dict(entry.get("status"))
        if status.get("value") not in {"loaded", "sleeping"}:
            continue
        argv = tuple(word for word in _list(status.get("args")) if isinstance(word, str))
        meta, flags = _dict(entry.get("meta")), parse_flags(argv, {})
        found.append(
            Loaded(
                name=str(entry.get("id")),
                path=flags.model_path,
                context_tokens=meta.get("n_ctx"),
                quantisation=meta.get("ftype"),
                sleeping=status.get("value") == "sleeping",
                argv=argv,
            )
        )
    return found


def _object(reply: Reply | None) -> Mapping[str, Any]:
    return {} if reply is None else _dict(reply.json)


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
