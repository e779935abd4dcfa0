"""Who may talk to the proxy: the Host and Origin rules. Pure.

A page from anywhere can make a browser send requests to 127.0.0.1, and DNS rebinding can make a
foreign name point there. So a request whose `Host` is not a name of this machine, or whose
`Origin` is a foreign page, is refused. Clients that are not browsers send no `Origin`.
"""

import ipaddress
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

# Shells of desktop programs that run local pages; the list that Ollama allows by default.
_LOCAL_SCHEMES = frozenset({"app", "file", "tauri", "vscode-webview", "vscode-file"})
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")


def refuse(
    host: str | None, origin: str | None, *, own_hosts: Collection[str], allowed: Collection[str]
) -> str | None:
    """Say why a request is refused, or None when it may pass.

    Args:
        host: the request's `Host` field.
        origin: its `Origin` field.
        own_hosts: further names that the proxy answers to (the host part of `listen`).
        allowed: origins that the user allowed (`allow_origin`); `*` allows every page.
    """
    name = _host_of(host)
    own = {own_host.lower() for own_host in own_hosts}
    if name is not None and not _is_local_name(name) and name not in own:
        return f"Host {_show(name)} is not this machine; add it with allow_host if it should be"
    if origin is None or "*" in allowed or origin in allowed or _is_local_origin(origin):
        return None
    return f"Origin {_show(origin)} is not allowed; add it with allow_origin if it should be"


@lru_cache(maxsize=64)
def _host_of(host: str | None) -> str | None:
    if not host:
        return None
    try:
        return (urlsplit(f"//{host}").hostname or host).lower().rstrip(".")
    except ValueError:
        return host


@lru_cache(maxsize=64)
def _is_local_name(name: str) -> bool:
    if name == "localhost" or name.endswith(_LOCAL_SUFFIXES):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True  # an address cannot be rebound


def _is_local_origin(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        name = (parts.hostname or "").lower()
    except ValueError:
        return False
    if parts.scheme in _LOCAL_SCHEMES:
        return True
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _show(text: str) -> str:
    """Quote a foreign text for a message: printable ASCII, at most 80 characters."""
    return repr("".join(c if " " <= c <= "~" else "?" for c in text[:80]))
