"""One `ServerFacts` of an engine's replies, its command line and its environment.

What an engine answers wins over what it was asked to do: `--fit` and defaults change the request.
"""

import os
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from yarl import URL

from slowtok.detectors.case.engine import LLAMA_CPP_WITH_OPTIONS, ModelFacts, ServerFacts
from slowtok.proxy.engines.drivers import vllm
from slowtok.proxy.engines.drivers.llama_server import parse_flags, with_defaults
from slowtok.proxy.engines.drivers.ollama import find_runner, runner_flags
from slowtok.proxy.engines.probing.facts import Flags, Identity, Kind, Loaded, Probe
from slowtok.proxy.engines.probing.locality import is_here
from slowtok.proxy.sampling.protocol import ChildProcess, ProcessFacts

T = TypeVar("T")

UNMAPPED_REMOTE = "the engine runs on another machine"
UNMAPPED_BEHIND = "{} listens at its port, and the engine is somewhere behind it"
UNIFIED_MEMORY = "GGML_CUDA_ENABLE_UNIFIED_MEMORY"  # counts with any value (ggml-cuda.cu)


def server_facts(
    identity: Identity,
    probe: Probe,
    process: ProcessFacts | None,
    *,
    url: str | None = None,
    name: str | None = None,
    local: bool | None = None,
    model: str | None = None,
) -> ServerFacts:
    """Return what is known of the engine as it serves `model` (None: the only one it has).

    `local` says whether its address is this machine's.
    """
    loaded = loaded_model(probe, model)
    flags = _flags(identity, probe, process, model)
    asked = flags or Flags()
    kind, is_behind = _kind(identity, loaded), loaded is not None and loaded.kind is not None
    context_tokens = _context_tokens(probe, loaded, asked)
    slots = (loaded and loaded.slots) or probe.slots or _positive(asked.slots)
    return ServerFacts(
        kind=kind,
        through=identity.kind if is_behind else None,
        name=name,
        url=url,
        version=loaded.version if loaded and is_behind else probe.version or identity.version,
        local=is_here(local, process, identity.kind),
        pid=None if process is None else process.pid,
        unmapped=_unmapped(process, local, identity.kind),
        context_tokens=context_tokens,
        slots=slots,
        gpu_layers=asked.gpu_layers,
        threads=_threads(asked),
        kv_type_k=asked.kv_type_k,
        kv_type_v=asked.kv_type_v,
        flash_attention=asked.flash_attention,
        memory_mapped=asked.memory_mapped,
        speculative=_speculative(probe, loaded, asked),
        slept=probe.sleeping if loaded is None else loaded.sleeping,
        batch_tokens=asked.batch_tokens,
        micro_batch_tokens=asked.micro_batch_tokens,
        cpu_moe_layers=asked.cpu_moe_layers,
        kv_on_gpu=asked.kv_on_gpu,
        split_mode=asked.split_mode,
        tensor_parallel=asked.tensor_parallel,
        loaded_bytes=None if loaded is None else loaded.memory_bytes,
        loaded_gpu_bytes=None if loaded is None else loaded.gpu_bytes,
        loaded_models=None if probe.loaded is None else tuple(each.name for each in probe.loaded),
        kv_cache_tokens=probe.kv_cache_tokens or _kv_cache_tokens(asked, context_tokens, slots),
        gpu_memory_ratio=_first(probe.gpu_memory_ratio, asked.gpu_memory_ratio),
        prefix_caching=_first(probe.prefix_caching, asked.prefix_caching),
        eager=asked.eager,
        cpu_offload_bytes=asked.cpu_offload_bytes,
        unified_memory=_unified_memory(kind, process),
        started_unix_s=None if process is None else process.created_unix_s,
        swa_full=asked.swa_full,
        checkpoints=asked.checkpoints,
        cache_block_tokens=probe.cache_block_tokens,
        template_habits=probe.template_habits if loaded is None else loaded.template_habits,
    )


def model_path(identity: Identity, probe: Probe, model: str | None = None) -> str | None:
    """Return the model file, on the engine's machine, that serves `model`; only GGUFs have one."""
    loaded = loaded_model(probe, model)
    if loaded is not None:
        return loaded.path
    return probe.model_path if identity.kind == "llama-server" else None


def told_model(probe: Probe, model: str) -> ModelFacts:
    """Return what the engine says of a model itself, for one whose files cannot be read."""
    loaded = loaded_model(probe, model)
    if loaded is not None:
        return replace(loaded.model or ModelFacts(), name=model, path=loaded.path)
    if probe.loaded is not None or probe.models != (model,):
        return ModelFacts(name=model)
    return ModelFacts(
        name=model,
        path=probe.model_path,
        quantisation=probe.quantisation,
        parameters=probe.parameters,
        file_bytes=probe.weight_bytes,
    )


def loaded_model(probe: Probe, model: str | None) -> Loaded | None:
    """Return the loaded model that a request's name means, or the only one when none is named."""
    held = probe.loaded or ()
    if model is None:
        return held[0] if len(held) == 1 else None
    names = meant_by(model)
    return next((each for each in held if each.name in names or model in each.aliases), None)


def meant_by(model: str) -> tuple[str, str]:
    """Return the names that a model may mean: Ollama takes one without a tag for the latest."""
    return model, f"{model}:latest"


def ollama_runner_of(process: ProcessFacts, probe: Probe, model: str | None) -> ChildProcess | None:
    """Return the child of Ollama that runs `model`.

    One loaded since the last look is in no list yet: then its child is the one that runs none of
    the models listed.
    """
    loaded = loaded_model(probe, model)
    foreign = [each.path for each in probe.loaded or () if each is not loaded and each.path]
    return find_runner(process, None if loaded is None else loaded.path, foreign=foreign)


def _flags(
    identity: Identity, probe: Probe, process: ProcessFacts | None, model: str | None
) -> Flags | None:
    """Return what the engine was asked to do: by its own word, else by its process."""
    loaded = loaded_model(probe, model)
    if loaded is not None and loaded.argv:  # a router's children have its environment
        environment = {} if process is None else process.environment
        return with_defaults(_parsed(tuple(loaded.argv), frozenset(environment.items())))
    told = probe.flags if loaded is None else loaded.flags
    if told is not None or process is None or not process.cmdline:
        return told
    if loaded is not None and loaded.kind is not None:
        runs_it = process.port == URL(loaded.url or "").port
        return _own_flags(loaded.kind, process) if runs_it else None
    if identity.kind == "ollama":
        return runner_flags(process, ollama_runner_of(process, probe, model))
    return None if probe.loaded is not None else _own_flags(identity.kind, process)


@lru_cache(maxsize=64)
def _parsed(argv: tuple[str, ...], environment: frozenset[tuple[str, str]]) -> Flags:
    """Parse a command line once, not with each request."""
    return parse_flags(argv, dict(environment))


def _own_flags(kind: Kind, process: ProcessFacts) -> Flags | None:
    """Return the flags of an engine that runs its one model itself."""
    if kind == "vllm":
        flags = vllm.parse_flags(process.cmdline)
        return replace(flags, speculative=flags.speculative is True)
    if kind != "llama-server":
        return None
    flags = _parsed(tuple(process.cmdline), frozenset(process.environment.items()))
    # A program that takes none of the options may set them in code: it says nothing.
    silent = flags == Flags() and "llama" not in process.cmdline[0]
    return None if silent else with_defaults(flags)


def _kind(identity: Identity, loaded: Loaded | None) -> Kind:
    """Return which engine runs a model: not the program that only started it."""
    return identity.kind if loaded is None or loaded.kind is None else loaded.kind


def _unmapped(process: ProcessFacts | None, local: bool | None, kind: Kind) -> str | None:
    if local is False:
        return UNMAPPED_REMOTE
    if is_here(local, process, kind) is False:
        return UNMAPPED_BEHIND.format((process and process.unmapped) or kind)
    return None if process is None else process.unmapped


def _context_tokens(probe: Probe, loaded: Loaded | None, asked: Flags) -> int | None:
    told = (loaded and loaded.context_tokens) or probe.context_tokens
    if told or not asked.context_tokens:
        return told
    if asked.context_shared:
        return asked.context_tokens
    return asked.context_tokens // max(asked.slots or 1, 1)


def _kv_cache_tokens(asked: Flags, context_tokens: int | None, slots: int | None) -> int | None:
    """Return what a llama-server's whole cache holds: slots share one context or have their own."""
    if asked.context_shared is None or context_tokens is None:
        return None
    if asked.context_shared:
        return context_tokens
    return None if slots is None else context_tokens * slots


def _threads(asked: Flags) -> int | None:
    """Return the threads asked for: 0 and below are all logical cores to llama-server."""
    return os.cpu_count() if asked.threads is not None and asked.threads < 1 else asked.threads


def _speculative(probe: Probe, loaded: Loaded | None, asked: Flags) -> bool | None:
    """Return whether any source speaks of drafts; the default settings do not know the model's."""
    said = (asked.speculative, probe.speculative, None if loaded is None else loaded.speculative)
    return True if True in said else (False if False in said else None)


def _unified_memory(kind: Kind, process: ProcessFacts | None) -> bool | None:
    """Return whether weights may spill into RAM unseen.

    An environment without any variable of the engine's is one that could not be read, or a bare
    one: which, is not told.
    """
    if process is None or kind not in LLAMA_CPP_WITH_OPTIONS or not process.environment:
        return None
    return UNIFIED_MEMORY in process.environment


def _first(told: T | None, asked: T | None) -> T | None:
    return asked if told is None else told


def _positive(count: int | None) -> int | None:
    return count if count is not None and count > 0 else None
