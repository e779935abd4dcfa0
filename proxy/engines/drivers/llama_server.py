"""llama.cpp's server, alone or as a router: what it reports about itself, and its options.

Nothing here requests `/slots`: that wakes a sleeping model, and any queued task keeps one awake. A
router loads the model that `?model=` names, also for a GET, unless `autoload=false` is set; then it
answers with an error (tools/server/server-models.cpp). Options come from its command line, its
environment and its defaults.
"""

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import aiohttp

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.probing.argv import number, options, values
from slowtok.proxy.engines.probing.facts import ALL_LAYERS, Flags, Loaded, Probe
from slowtok.proxy.engines.probing.reply import ProbeReply, get

IN_MEMORY = frozenset({"loaded", "sleeping"})

HABITS = {
    "thinking": re.compile(
        r"last_query_index|(?:split|rsplit)\(\s*['\"]</think>|not\s+loop\.last[^%]*think|"
        r"future_final_message|last_tool_call\.name\s+is\s+none.{0,400}analysis",
        re.DOTALL,
    ),
    "tools-last": re.compile(
        r"(?:loop\.last|messages\s*\|\s*length|messages\[-1\]|user_messages\[-1\])"
        r"[^%]{0,200}%\}.{0,400}AVAILABLE_TOOLS",
        re.DOTALL,
    ),
    "clock": re.compile(r"strftime_now"),
}
"""How a chat template treats earlier turns, by what its text has. The text is the model's, not a
user's; still only the habits found in it are kept.

- `thinking`: thoughts are left out of earlier turns (Qwen3 and its successors compare with the last
  question's place, DeepSeek's and others split at the closing tag).
- `tools-last`: the tools, or the system's word, stand before the last question (Mistral's).
- `clock`: the date is written into the prompt (Llama 3.1 and later, gpt-oss).

Sources: the templates in the repositories of these models; QwenLM/Qwen3#1826.
"""

# Name of the fact: its environment variable (`LLAMA_ARG_...`), then its spellings.
OPTIONS = {
    "model_path": ("MODEL", "-m", "--model"),
    "alias": ("ALIAS", "-a", "--alias"),
    "device": ("DEVICE", "-dev", "--device"),
    "gpu_layers": ("N_GPU_LAYERS", "-ngl", "--gpu-layers", "--n-gpu-layers"),
    "cpu_moe_layers": ("N_CPU_MOE", "-ncmoe", "--n-cpu-moe"),
    "threads": ("THREADS", "-t", "--threads"),
    "context_tokens": ("CTX_SIZE", "-c", "--ctx-size"),
    "slots": ("N_PARALLEL", "-np", "--parallel"),
    "context_shared": ("KV_UNIFIED",),
    "context_per_slot": ("KV_UNIFIED_PER_SLOT", "--kv-unified-per-slot"),
    "batch_tokens": ("BATCH", "-b", "--batch-size"),
    "micro_batch_tokens": ("UBATCH", "-ub", "--ubatch-size"),
    "flash_attention": ("FLASH_ATTN", "-fa", "--flash-attn"),
    "kv_type_k": ("CACHE_TYPE_K", "-ctk", "--cache-type-k"),
    "kv_type_v": ("CACHE_TYPE_V", "-ctv", "--cache-type-v"),
    "kv_offload": ("KV_OFFLOAD",),
    "mmap": ("MMAP",),
    "load_mode": ("LOAD_MODE", "-lm", "--load-mode"),
    "prompt_cache": ("CACHE_PROMPT",),
    "spec_type": ("SPEC_TYPE", "--spec-type"),
    "draft_model": (
        "SPEC_DRAFT_MODEL", "-md", "--model-draft", "--spec-draft-model", "-hfd", "-hfrd",
        "--hf-repo-draft",
    ),
    "split_mode": ("SPLIT_MODE", "-sm", "--split-mode"),
    "swa_full": ("SWA_FULL",),
    "checkpoints": ("CTX_CHECKPOINTS", "-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"),
    "sleep_idle_s": ("SLEEP_IDLE_SECONDS", "--sleep-idle-seconds"),
}  # fmt: skip
MORE_VARIABLES = {"MODEL_DRAFT": "draft_model"}  # before the options were renamed
NEGATED = ("kv_offload", "mmap", "prompt_cache")  # `LLAMA_ARG_NO_...` counts, whatever its value
BARE = {
    "-nkvo": ("kv_offload", "0"),
    "--no-kv-offload": ("kv_offload", "0"),
    "-kvo": ("kv_offload", "1"),
    "--kv-offload": ("kv_offload", "1"),
    "--no-mmap": ("mmap", "0"),
    "--mmap": ("mmap", "1"),
    "--swa-full": ("swa_full", "1"),
    "--no-cache-prompt": ("prompt_cache", "0"),
    "--cache-prompt": ("prompt_cache", "1"),
    "-kvu": ("context_shared", "1"),
    "--kv-unified": ("context_shared", "1"),
    "-no-kvu": ("context_shared", "0"),
    "--no-kv-unified": ("context_shared", "0"),
    "-cmoe": ("cpu_moe_layers", str(ALL_LAYERS)),
    "--cpu-moe": ("cpu_moe_layers", str(ALL_LAYERS)),
}
OVERRIDES = frozenset({"-ot", "--override-tensor"})  # may stand several times
EXPERT_MATRICES = ("gate", "up", "down")
EVERY_LAYER = range(100)  # no mixture of experts has as many
ON, OFF = frozenset({"on", "enabled", "true", "1"}), frozenset({"off", "disabled", "false", "0"})
AUTO = frozenset({"auto", "-1"})
FLASH_ATTENTION = ("on", ON | OFF | AUTO)  # before build 6325 the option stood alone
MAPPING_MODES = frozenset({"mmap", "mmap+mlock"})
VALUED = {spelling: name for name, (_, *spellings) in OPTIONS.items() for spelling in spellings}
# Of llama.cpp's common/common.h, build 11434 (2026-10), as all that `with_defaults` fills in.
DEFAULT_BATCH_TOKENS, DEFAULT_MICRO_BATCH_TOKENS = 2048, 512


async def probe(session: aiohttp.ClientSession, base_url: str) -> Probe:
    """Return what `/props` and `/v1/models` say; neither loads nor wakes a model."""
    props, models = await asyncio.gather(
        get(session, base_url, "/props"), get(session, base_url, "/v1/models")
    )
    if not _is_router(props, models):
        return read_probe(props, models)
    names = [str(entry.get("id")) for entry in _entries(models) if _state(entry) == "loaded"]
    model_props = await asyncio.gather(
        *(get(session, base_url, f"/props?{router_query(name)}") for name in names)
    )
    return read_probe(props, models, dict(zip(names, model_props, strict=True)))


async def is_sleeping(session: aiohttp.ClientSession, base_url: str) -> bool | None:
    """Return whether the model is unloaded, without waking it; None if that is not reported."""
    sleeping = _object(await get(session, base_url, "/props")).get("is_sleeping")
    return sleeping if isinstance(sleeping, bool) else None


def router_query(model: str) -> str:
    """Return the query for which a router answers only if the model is loaded."""
    return urlencode({"model": model, "autoload": "false"})


def read_probe(
    props: ProbeReply | None,
    models: ProbeReply | None,
    of_model: Mapping[str, ProbeReply | None] | None = None,
) -> Probe:
    """Return what the replies say; any may be missing. `of_model` are a router's, by model."""
    about, entries = _object(props), _entries(models)
    names = tuple(entry["id"] for entry in entries if isinstance(entry.get("id"), str))
    loading = any(reply is not None and reply.status == 503 for reply in (props, models))
    if _is_router(props, models):
        return Probe(
            version=about.get("build_info"),
            models=names,
            loading=loading,
            loaded=tuple(_loaded(entries, of_model or {})) if entries else None,
            most_loaded=about.get("max_instances") or None,  # 0: as many as are asked for
        )
    settings = _dict(about.get("default_generation_settings"))
    meta = _dict(entries[0].get("meta")) if len(entries) == 1 else {}
    return Probe(
        version=about.get("build_info"),
        models=names,
        model_path=about.get("model_path") or None,
        quantisation=about.get("model_ftype") or meta.get("ftype"),
        parameters=meta.get("n_params"),
        weight_bytes=meta.get("size"),
        context_tokens=settings.get("n_ctx") or meta.get("n_ctx"),
        slots=about.get("total_slots"),
        speculative=_speculative(settings),
        sleeping=about.get("is_sleeping"),
        loading=loading,
        template_habits=habits_of(about.get("chat_template")),
    )


def _loaded(
    entries: Sequence[Mapping[str, Any]], of_model: Mapping[str, ProbeReply | None]
) -> list[Loaded]:
    return [
        _one_loaded(entry, _object(of_model.get(str(entry.get("id")))))
        for entry in entries
        if _state(entry) in IN_MEMORY
    ]


def _one_loaded(entry: Mapping[str, Any], about: Mapping[str, Any]) -> Loaded:
    status, meta = _dict(entry.get("status")), _dict(entry.get("meta"))
    settings = _dict(about.get("default_generation_settings"))
    argv = tuple(word for word in _list(status.get("args")) if isinstance(word, str))
    path = about.get("model_path") or parse_flags(argv, {}).model_path
    return Loaded(
        name=str(entry.get("id")),
        aliases=tuple(name for name in _list(entry.get("aliases")) if isinstance(name, str)),
        path=path,
        context_tokens=settings.get("n_ctx") or meta.get("n_ctx"),
        slots=about.get("total_slots"),
        speculative=_speculative(settings),
        sleeping=about.get("is_sleeping", _state(entry) == "sleeping"),
        argv=argv,
        template_habits=habits_of(about.get("chat_template")),
        model=ModelFacts(
            path=path,
            quantisation=about.get("model_ftype") or meta.get("ftype"),
            parameters=meta.get("n_params"),
            file_bytes=meta.get("size"),
        ),
    )


def _is_router(props: ProbeReply | None, models: ProbeReply | None) -> bool:
    says_so = _object(props).get("role") == "router"
    return says_so or any(_state(entry) is not None for entry in _entries(models))


def _state(entry: Mapping[str, Any]) -> object:
    return _dict(entry.get("status")).get("value")


def _speculative(settings: Mapping[str, Any]) -> bool | None:
    types = _dict(settings.get("params")).get("speculative.types")
    return None if not isinstance(types, str) else types != "none"


def _entries(models: ProbeReply | None) -> list[Mapping[str, Any]]:
    return [_dict(entry) for entry in _list(_object(models).get("data"))]


def _object(reply: ProbeReply | None) -> Mapping[str, Any]:
    return {} if reply is None else _dict(reply.json)


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def habits_of(template: object) -> tuple[str, ...] | None:
    """Return what a chat template does to earlier turns; None without a template."""
    if not isinstance(template, str) or not template:
        return None
    return tuple([habit for habit, pattern in HABITS.items() if pattern.search(template)])


def parse_flags(argv: Sequence[str], environ: Mapping[str, str]) -> Flags:
    """Return what llama-server's command line asks for, and its environment where that is silent.

    The program's name does not matter: wrappers that take the same options are read alike.
    """
    given = _from_environment(environ) | options(
        argv, VALUED, BARE, {"-fa": FLASH_ATTENTION, "--flash-attn": FLASH_ATTENTION}
    )
    overrides = [*values(argv, OVERRIDES), environ.get("LLAMA_ARG_OVERRIDE_TENSOR", "")]
    return Flags(
        model_path=given.get("model_path"),
        alias=given.get("alias"),
        gpu_layers=_layers("0" if given.get("device") == "none" else given.get("gpu_layers")),
        cpu_moe_layers=_cpu_moe_layers(number(given.get("cpu_moe_layers")), overrides),
        threads=number(given.get("threads")),
        context_tokens=number(given.get("context_tokens")),
        context_shared=_context_shared(given),
        slots=number(given.get("slots")),
        batch_tokens=number(given.get("batch_tokens")),
        micro_batch_tokens=number(given.get("micro_batch_tokens")),
        flash_attention=_switch(given.get("flash_attention")),
        kv_type_k=given.get("kv_type_k"),
        kv_type_v=given.get("kv_type_v"),
        kv_on_gpu=_truth(given.get("kv_offload")),
        memory_mapped=_memory_mapped(given.get("load_mode"), given.get("mmap")),
        prefix_caching=_truth(given.get("prompt_cache")),
        speculative=_asks_for_drafts(given.get("spec_type"), given.get("draft_model")),
        split_mode=given.get("split_mode"),
        sleep_idle_s=number(given.get("sleep_idle_s")),
        swa_full=_truth(given.get("swa_full")),
        checkpoints=number(given.get("checkpoints")),
    )


def with_defaults(flags: Flags) -> Flags:
    """Return the flags with llama-server's defaults where they are silent.

    Left out is what newer builds decide while they load: flash attention, memory mapping. The KV
    cache follows its layers: `kv_on_gpu` says only that it was not kept back in RAM.
    """
    batch_tokens = flags.batch_tokens or DEFAULT_BATCH_TOKENS
    micro_batch_tokens = flags.micro_batch_tokens or DEFAULT_MICRO_BATCH_TOKENS
    automatic_slots = flags.slots is None or flags.slots < 1
    return replace(
        flags,
        gpu_layers=-1 if flags.gpu_layers is None else flags.gpu_layers,
        # Slots that nobody asked for share one context; those asked for divide it.
        context_shared=automatic_slots if flags.context_shared is None else flags.context_shared,
        batch_tokens=batch_tokens,
        micro_batch_tokens=min(micro_batch_tokens, batch_tokens),
        kv_type_k=flags.kv_type_k or "f16",
        kv_type_v=flags.kv_type_v or "f16",
        kv_on_gpu=flags.kv_on_gpu is not False,
        prefix_caching=flags.prefix_caching is not False,
        speculative=flags.speculative is True,
        split_mode=flags.split_mode or "layer",
    )


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    names = {variable: name for name, (variable, *_) in OPTIONS.items()} | MORE_VARIABLES
    given = {
        name: environ[f"LLAMA_ARG_{variable}"]
        for variable, name in names.items()
        if f"LLAMA_ARG_{variable}" in environ
    }
    for name in NEGATED:
        if f"LLAMA_ARG_NO_{OPTIONS[name][0]}" in environ:
            given[name] = "0"
    if _truth(environ.get("LLAMA_ARG_CPU_MOE")):
        given["cpu_moe_layers"] = str(ALL_LAYERS)
    return given


def _layers(text: str | None) -> int | None:
    if text == "auto":
        return -1
    count = ALL_LAYERS if text == "all" else number(text)
    return ALL_LAYERS if count is not None and count <= -2 else count


def _cpu_moe_layers(asked: int | None, overrides: Sequence[str]) -> int | None:
    """Return the layers whose experts stay in RAM, also where patterns put all of them there.

    Patterns that put some layers there, or some matrices of each, leave it unknown how much it is.
    """
    said = [each for text in overrides for each in text.split(",") if "=" in each]
    places = [each.partition("=") for each in said]
    names = (f"blk.{layer}.ffn_{part}_exps" for layer in EVERY_LAYER for part in EXPERT_MATRICES)
    if all(_place(f"{name}.weight", places) == "CPU" for name in names):
        return ALL_LAYERS
    return asked


def _place(tensor: str, places: Sequence[tuple[str, str, str]]) -> str | None:
    """Return where a tensor goes: what the first pattern says that is found in its name."""
    for pattern, _, buffer in places:
        with contextlib.suppress(re.error):
            if re.search(pattern, tensor):
                return buffer
    return None


def _context_shared(given: Mapping[str, str]) -> bool | None:
    """Return whether a slot may use the whole context: not where each has a bound of its own."""
    return False if "context_per_slot" in given else _truth(given.get("context_shared"))


def _switch(text: str | None) -> str | None:
    for name, spellings in (("on", ON), ("off", OFF), ("auto", AUTO)):
        if text is not None and text.lower() in spellings:
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
