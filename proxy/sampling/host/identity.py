"""Reads a server process's identity: command line, environment, children.

Only what tells how the server is set up leaves this module, and nothing secret.
"""

from typing import Any

from slowtok.proxy.sampling.host.host import parse_field
from slowtok.proxy.sampling.host.port_owner import PortListener
from slowtok.proxy.sampling.host.process import TICKS_PER_S, read_stat
from slowtok.proxy.sampling.host.procfs import read_whole
from slowtok.proxy.sampling.host.redaction import redact_arguments, redact_variable

VARIABLE_PREFIXES = ("LLAMA_ARG_", "OLLAMA_", "GGML_", "VLLM_")
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HOME",
)  # fmt: skip
MAX_ARGUMENTS = 300
MAX_CHARS = 2000
"""Of one argument or variable; the line to the proxy stays below its limit of 1 MiB."""


def parse_arguments(cmdline: bytes) -> list[str]:
    """Split /proc/<pid>/cmdline; without secrets, cut to a bounded size."""
    words = cmdline.rstrip(b"\0").split(b"\0")[:MAX_ARGUMENTS] if cmdline else []
    clean = redact_arguments([word.decode(errors="replace") for word in words])
    return [word[:MAX_CHARS] for word in clean]


def parse_environment(environ: bytes) -> dict[str, str]:
    """Return the variables that set an engine up, from /proc/<pid>/environ, without secrets."""
    pairs = (entry.decode(errors="replace").partition("=") for entry in environ.split(b"\0"))
    return select_variables({name: value for name, _, value in pairs})


def select_variables(environment: dict[str, str]) -> dict[str, str]:
    """Keep the variables that set an engine up; secrets among them are dropped."""
    chosen = {}
    for name, value in environment.items():
        if name in VARIABLES or name.startswith(VARIABLE_PREFIXES):
            shown = redact_variable(name, value)
            if shown is not None:
                chosen[name] = shown[:MAX_CHARS]
    return chosen


def boot_unix_s() -> int | None:
    """Return when this machine started, which process start times are counted from."""
    return parse_field(read_whole("/proc/stat") or b"", b"btime ")


def describe(port: int, listener: PortListener, tree: list[int]) -> dict[str, Any]:
    """Return the line about the process behind a port; `tree` is its pid and its descendants'."""
    booted_s = boot_unix_s()
    started_s = listener.started_ticks / TICKS_PER_S
    return {
        "kind": "process",
        "port": port,
        "pid": listener.pid,
        "name": listener.name,
        "created_unix_s": None if booted_s is None else round(booted_s + started_s, 2),
        "cmdline": _arguments(listener.pid),
        "environment": parse_environment(read_whole(f"/proc/{listener.pid}/environ") or b""),
        "children": [_describe_child(pid) for pid in tree if pid != listener.pid],
    }


def _describe_child(pid: int) -> dict[str, Any]:
    stat = read_stat(pid)
    return {"pid": pid, "name": stat.name if stat else None, "cmdline": _arguments(pid)}


def _arguments(pid: int) -> list[str]:
    return parse_arguments(read_whole(f"/proc/{pid}/cmdline") or b"")


def process_name(pid: int) -> str | None:
    """Return a process's short name, or None where it is not to be seen from here."""
    stat = read_stat(pid)
    return stat.name if stat else None
