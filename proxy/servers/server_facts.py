"""One `ServerFacts` of an engine's replies, its command line and its environment.

What an engine answers wins over what it was asked to do: `--fit` and defaults change the request.
"""

import os

from slowtok.detectors.engine import ServerFacts
from slowtok.proxy.sampling.wire import ProcessFacts
from slowtok.proxy.servers import llama_server, ollama, vllm
from slowtok.proxy.servers.facts import Flags, Identity, Loaded, Probe

UNMAPPED_REMOTE = "the engine runs on another machine"


def server_facts(
    identity: Identity,
    probe: Probe,
    process: ProcessFacts | None,
    *,
    url: str | None = None,
    name: str | None = None,
    local: bool | None = None,
    model: str | None = None,
    now_unix_s: float | None = None,
) -> ServerFacts:
    """Return what is known of the engine as it serves `model` (None: the only one it has).

    `now_unix_s` is the wall clock that its uptime is counted to.
    """
    loaded = loaded_model(probe, model)
    flags = _flags(identity, process, loaded)
    asked = flags or Flags()
    return ServerFacts(
        kind=identity.kind,
        name=name,
        url=url,
        version=probe.version or identity.version,
        local=local,
        pid=None if process is None else process.pid,
        unmapped=_unmapped(process, local),
        context_tokens=_context_tokens(probe, loaded, asked),
        slots=probe.slots or _positive(asked.slots),
        gpu_layers=_gpu_layers(identity, flags),
        threads=_threads(asked),
        kv_type_k=asked.kv_type_k or _default_kv_type(identity, flags),
        kv_type_v=asked.kv_type_v or _default_kv_type(identity, flags),
        flash_attention=asked.flash_attention,
        memory_mapped=asked.memory_mapped,
        speculative=_speculative(probe, flags),
        slept=probe.sleeping if loaded is None else loaded.sleeping,
        uptime_s=_uptime_s(process, now_unix_s),
    )


def model_path(identity: Identity, probe: Probe, model: str | None = None) -> str | None:
    """Return the model file, on the engine's machine, that serves `model`; only GGUFs have one."""
    loaded = loaded_model(probe, model)
    if loaded is not None:
        return loaded.path
    return probe.model_path if identity.kind == "llama-server" else None


def loaded_model(probe: Probe, model: str | None) -> Loaded | None:
    """Return the loaded model that a request's name means, or the only one when none is named."""
    if model is None:
        return probe.loaded[0] if len(probe.loaded) == 1 else None
    return next((loaded for loaded in probe.loaded if loaded.name in meant_by(model)), None)


def meant_by(model: str) -> tuple[str, str]:
    """Return the names that a model may mean: Ollama takes one without a tag for the latest."""
    return model, f"{model}:latest"


def _flags(identity: Identity, process: ProcessFacts | None, loaded: Loaded | None) -> Flags | None:
    """Return what the process that runs the model was asked to do; None when it is not visible."""
    if loaded is not None and loaded.argv:
        return llama_server.parse_flags(loaded.argv, {})
    if process is None or not process.cmdline:
        return None
    if identity.kind == "llama-server":
        flags = llama_server.parse_flags(process.cmdline, process.environment)
        # A program that takes none of the options may set them in code: it says nothing.
        return None if flags == Flags() and "llama" not in process.cmdline[0] else flags
    if identity.kind == "ollama":
        argv = ollama.runner_argv(process, None if loaded is None else loaded.path)
        return llama_server.parse_flags(argv, {}) if argv else None
    return vllm.parse_flags(process.cmdline) if identity.kind == "vllm" else None


def _unmapped(process: ProcessFacts | None, local: bool | None) -> str | None:
    if local is False:
        return UNMAPPED_REMOTE
    return None if process is None else process.unmapped


def _context_tokens(probe: Probe, loaded: Loaded | None, asked: Flags) -> int | None:
    told = (loaded and loaded.context_tokens) or probe.context_tokens
    if told or not asked.context_tokens:
        return told
    return asked.context_tokens // max(asked.slots or 1, 1)


def _gpu_layers(identity: Identity, flags: Flags | None) -> int | None:
    """Return the layers asked for; a llama-server that was asked nothing decides for itself."""
    if flags is None or identity.kind not in {"llama-server", "ollama"}:
        return None
    return -1 if flags.gpu_layers is None else flags.gpu_layers


def _threads(asked: Flags) -> int | None:
    """Return the threads asked for: 0 and below are all logical cores to llama-server."""
    return os.cpu_count() if asked.threads is not None and asked.threads < 1 else asked.threads


def _default_kv_type(identity: Identity, flags: Flags | None) -> str | None:
    known = flags is not None and identity.kind in {"llama-server", "ollama"}
    return "f16" if known else None


def _speculative(probe: Probe, flags: Flags | None) -> bool | None:
    if probe.speculative or (flags is not None and flags.speculative):
        return True
    return None if probe.speculative is None and flags is None else False


def _uptime_s(process: ProcessFacts | None, now_unix_s: float | None) -> float | None:
    if process is None or process.created_unix_s is None or now_unix_s is None:
        return None
    return max(now_unix_s - process.created_unix_s, 0.0)


def _positive(count: int | None) -> int | None:
    return count if count is not None and count > 0 else None
