"""Reads a llama-server's options: command line, environment, its own defaults."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slowtok.proxy.engines.probing.argv import number, options, values
from slowtok.proxy.engines.probing.facts import ALL_LAYERS, Flags

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
EXPERTS_ON_CPU = re.compile(r"exps.*=CPU")
ON, OFF = frozenset({"on", "enabled", "true", "1"}), frozenset({"off", "disabled", "false", "0"})
AUTO = frozenset({"auto", "-1"})
FLASH_ATTENTION = ("on", ON | OFF | AUTO)  # before build 6325 the option stood alone
MAPPING_MODES = frozenset({"mmap", "mmap+mlock"})
VALUED = {spelling: name for name, (_, *spellings) in OPTIONS.items() for spelling in spellings}
# Of llama.cpp's common/common.h, build 11434 (2026-10), as all that `with_defaults` fills in.
DEFAULT_BATCH_TOKENS, DEFAULT_MICRO_BATCH_TOKENS = 2048, 512


def parse_flags(argv: Sequence[str], environ: Mapping[str, str]) -> Flags:
    """Return what llama-server's command line asks for, and its environment where that is silent.

    The program's name does not matter: wrappers that take the same options are read alike.
    """
    said = _from_environment(environ) | options(
        argv, VALUED, BARE, {"-fa": FLASH_ATTENTION, "--flash-attn": FLASH_ATTENTION}
    )
    overrides = [*values(argv, OVERRIDES), environ.get("LLAMA_ARG_OVERRIDE_TENSOR", "")]
    return Flags(
        model_path=said.get("model_path"),
        alias=said.get("alias"),
        gpu_layers=_layers("0" if said.get("device") == "none" else said.get("gpu_layers")),
        cpu_moe_layers=_cpu_moe_layers(number(said.get("cpu_moe_layers")), overrides),
        threads=number(said.get("threads")),
        context_tokens=number(said.get("context_tokens")),
        context_shared=_context_shared(said),
        slots=number(said.get("slots")),
        batch_tokens=number(said.get("batch_tokens")),
        micro_batch_tokens=number(said.get("micro_batch_tokens")),
        flash_attention=_switch(said.get("flash_attention")),
        kv_type_k=said.get("kv_type_k"),
        kv_type_v=said.get("kv_type_v"),
        kv_on_gpu=_truth(said.get("kv_offload")),
        memory_mapped=_memory_mapped(said.get("load_mode"), said.get("mmap")),
        prefix_caching=_truth(said.get("prompt_cache")),
        speculative=_asks_for_drafts(said.get("spec_type"), said.get("draft_model")),
        split_mode=said.get("split_mode"),
        sleep_idle_s=number(said.get("sleep_idle_s")),
        swa_full=_truth(said.get("swa_full")),
        checkpoints=number(said.get("checkpoints")),
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
    said = {
        name: environ[f"LLAMA_ARG_{variable}"]
        for variable, name in names.items()
        if f"LLAMA_ARG_{variable}" in environ
    }
    for name in NEGATED:
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


def _cpu_moe_layers(asked: int | None, overrides: Sequence[str]) -> int | None:
    """Return the layers whose experts stay in RAM, also where a pattern names all of them.

    A pattern with numbers in it means some layers; how many is not known from here.
    """
    moved = [o for text in overrides for o in text.split(",") if EXPERTS_ON_CPU.search(o)]
    everywhere = any(re.search(r"\d", override) is None for override in moved)
    return ALL_LAYERS if everywhere else asked


def _context_shared(said: Mapping[str, str]) -> bool | None:
    """Return whether a slot may use the whole context: not where each has a bound of its own."""
    return False if "context_per_slot" in said else _truth(said.get("context_shared"))


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
