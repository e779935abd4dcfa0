"""Recognises a program by its command line: an engine, or one that only passes bytes on.

Pure. A program that passes bytes on is never taken for the engine: its CPU and memory say nothing,
and the engine behind it may be on another machine.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

Reach = Literal["container", "elsewhere", "unknown"]
"""Where the server behind a forwarder runs: in a container or virtual machine of this machine, on
another machine, or wherever its configuration says."""

_CONTAINERS = {
    "docker-proxy": "docker-proxy",
    "dockerd": "docker-proxy",
    "com.docker.backend": "docker-proxy",
    "com.docker.backend.exe": "docker-proxy",
    "conmon": "podman",
    "rootlessport": "rootlessport",
    "rootlesskit": "rootlessport",
    "slirp4netns": "slirp4netns",
    "pasta": "pasta",
    "pasta.avx2": "pasta",
    "gvproxy": "gvproxy",
    "wslrelay.exe": "wslrelay",
    "wslhost.exe": "wslrelay",
}
_TUNNELS = {
    "ssh": "ssh",
    "ssh.exe": "ssh",
    "sshd": "ssh",
    "sshd-session": "ssh",
    "autossh": "ssh",
    "plink.exe": "ssh",
    "kubectl": "kubectl",
    "kubectl.exe": "kubectl",
    "cloudflared": "cloudflared",
    "ngrok": "ngrok",
    "frpc": "frpc",
    "chisel": "chisel",
    "tailscaled": "tailscale",
}
_RELAYS = {
    "socat": "socat",
    "ncat": "ncat",
    "systemd-socket-proxyd": "systemd-socket-proxyd",
    "nginx": "nginx",
    "nginx.exe": "nginx",
    "haproxy": "haproxy",
    "caddy": "caddy",
    "traefik": "traefik",
    "envoy": "envoy",
    "apache2": "apache2",
    "httpd": "httpd",
    "litellm": "litellm",
}
FORWARDERS: dict[str, str] = {**_CONTAINERS, **_TUNNELS, **_RELAYS}
"""The forwarder's name by the name of its program."""

REACH: dict[str, Reach] = {
    **dict.fromkeys(_CONTAINERS.values(), "container"),
    **dict.fromkeys(_TUNNELS.values(), "elsewhere"),
    **dict.fromkeys(_RELAYS.values(), "unknown"),
}
"""Where the server behind a forwarder runs, by the forwarder's name."""

ENGINES = {
    "llama-server": 8080,
    "llamafile": 8080,
    "llama-swap": 8080,
    "local-ai": 8080,
    "ollama": 11434,
    "vllm": 8000,
    "sglang": 30000,
    "lm-studio": 1234,
    "koboldcpp": 5001,
}
"""The port that an engine listens on unless it is told another, by the name of its program."""

PORT_BY_ENVIRONMENT = frozenset({"ollama", "lm-studio"})
"""Engines whose port is never on their command line: OLLAMA_HOST, a settings file."""

_SERVES = {"ollama": ("serve", "start")}
"""Programs that are a server only when called so; `ollama runner` and `ollama run` are others."""

_INTERPRETER = re.compile(r"^(python[\d.]*|pypy[\d.]*|node|bun|uv|uvx)(\.exe)?$")
_PORT_OPTION = re.compile(r"^--?([\w-]+-)?port$|^-p$")
_ADDRESS_OPTION = re.compile(r"port$|listen|bind|addr|^--?host$|^-[pLl]$")


def program_names(comm: str | None, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a process goes by: its program's, and its script's or module's.

    Of a module the package counts: `python -m vllm.entrypoints.openai.api_server` is vllm.
    """
    names = [] if comm is None else [comm]
    if argv:
        program = _base(argv[0])
        names.append(program)
        if _INTERPRETER.match(program):
            names += _scripts(argv[1:])
    return tuple(dict.fromkeys(name for name in names if name))


def forwarder(comm: str | None, argv: Sequence[str]) -> str | None:
    """Return the forwarder that a process is, None where it is none that is known."""
    names = program_names(comm, argv)
    return next((FORWARDERS[name] for name in names if name in FORWARDERS), None)


def engine(comm: str | None, argv: Sequence[str]) -> str | None:
    """Return the engine that a process is by name, None where it is none that is known."""
    for name in program_names(comm, argv):
        if name in ENGINES and (name not in _SERVES or _first_word(argv) in _SERVES[name]):
            return name
    return None


def says_port(argv: Sequence[str], port: int) -> bool | None:
    """Return True if a command line names a port to listen on; False where it names another one.

    Addresses that a program only connects to do not count: of `-L 8080:host:11434` and of
    `8080:80` the first number listens. None where no port is named.
    """
    named: bool | None = None
    listens = re.compile(rf"^(?:(?!\d+:)[\w.*\[\]-]*:)?{port}(?:[:,].*)?$")
    for at, word in enumerate(argv[1:]):
        option, equals, value = word.partition("=")
        before, said = (option, value) if equals else (argv[at], word)
        if word.startswith("-L"):  # ssh takes both spellings
            before, said = "-L", word[2:]
        is_option = before.startswith("-")
        if "container" in before or (is_option and not _ADDRESS_OPTION.search(before)):
            continue  # a number or an address that is something else
        if said == str(port) if said.isdecimal() else listens.match(said):
            if is_option or not said.isdecimal():
                return True
        elif said.isdecimal() and _PORT_OPTION.match(before):
            named = False
    return named


def container_address(argv: Sequence[str]) -> tuple[str, int] | None:
    """Return the address in a container that Docker's proxy passes connections on to."""
    told = {word.lstrip("-"): after for word, after in pairwise(argv)}
    address, port = told.get("container-ip"), told.get("container-port", "")
    return (address, int(port)) if address and port.isdecimal() else None


def _base(path: str) -> str:
    return re.split(r"[/\\]", path)[-1]


def _scripts(words: Sequence[str]) -> list[str]:
    for at, word in enumerate(words):
        if word == "-m" and at + 1 < len(words):
            return [words[at + 1].partition(".")[0]]
        if not word.startswith("-"):
            return [_base(word).removesuffix(".py")]
    return []


def _first_word(argv: Sequence[str]) -> str | None:
    return next((word for word in argv[1:] if not word.startswith("-")), None)
