"""Finds the child of Ollama that runs a model, and reads its options.

Since 0.30 (2026-05) a model in a GGUF file runs in a llama-server of its own, with its own port on
loopback; before, and for models in other files, in an `ollama runner` (llm/llama_server.go,
x/mlxrunner/client.go). A child is started for each load: another pid is a model loaded anew, while
a new `expires_at` in `/api/ps` is not: every request moves that.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import PurePath

from slowtok.proxy.engines.drivers.llama_flags import parse_flags, with_defaults
from slowtok.proxy.engines.probing.argv import number, options
from slowtok.proxy.engines.probing.facts import Flags
from slowtok.proxy.sampling.protocol import ChildProcess, ProcessFacts

CHILDS_OWN = {"--model": "model", "--port": "port", "--kv-cache-type": "kv_type"}
GO_FALSE = frozenset({"0", "f", "false"})  # what Go's strconv.ParseBool takes for it


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
    """Say whether a child is a llama-server, with all that one answers."""
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
    """Say whether a child runs a model: others only list the devices, for a moment."""
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
