"""Rules for Host, Origin and Sec-Fetch: which web pages may talk to the proxy. Pure.

Any web page can make a browser send requests to 127.0.0.1, and DNS rebinding can make a foreign
name resolve to it. So a request that names a host other than this machine, or that a page of
another site made, is refused. Clients that are not browsers send neither `Origin` nor
`Sec-Fetch-Site`.
"""

import ipaddress
import re
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

# Shells of desktop programs that run local pages; the list that Ollama allows by default.
_LOCAL_SCHEMES = frozenset({"app", "file", "tauri", "vscode-webview", "vscode-file"})
_LOCAL_SUFFIXES = (".localhost", ".internal")  # nobody can register a name that ends so
# Anybody on the local network can answer for such a name (RFC 6762): no help against rebinding, and
# of use only where other machines may come in.
_NETWORK_SUFFIX = ".local"
# Nobody's page, or one of this machine. A foreign one shows no `Origin` where its own rules leave
# it out, and where it loads an image or follows a link.
_SITES_OF_OURS = frozenset({None, "none", "same-origin", "same-site"})
_FOLLOWS_A_LINK = frozenset({"GET", "HEAD"})
_AUTHORITY = re.compile(r"(\[[0-9A-Za-z:.%]+\]|[^\s\[\]:/?#@\\]+)(?::[0-9]*)?")
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


def refusal_reason(
    host: str | None,
    origin: str | None,
    *,
    own_hosts: Collection[str],
    allowed: Collection[str],
    target: str = "/",
    site: str | None = None,
    mode: str | None = None,
    method: str = "GET",
    is_local: bool = True,
) -> str | None:
    """Say why a request is refused, or None when it may pass.

    Args:
        host: the request's `Host` field.
        origin: its `Origin` field.
        own_hosts: further names that the proxy answers to (the host part of `listen`).
        allowed: origins that the user allowed (`allow_origin`); `*` allows every page.
        target: its target; one in absolute form names a host, too.
        site: its `Sec-Fetch-Site` field, by which browsers tell of pages that show no `Origin`.
        mode: its `Sec-Fetch-Mode` field; who follows a link navigates, and so does a form.
        method: its method, by which a link and a form can be told apart.
        is_local: whether only this machine can reach the proxy.
    """
    absolute = None if target.startswith("/") else _ABSOLUTE.match(target)
    for name in (_host_of(host), _host_of(absolute[1]) if absolute else None):
        if name is None or _is_local_name(name, is_local=is_local):
            continue
        if name not in {own_host.lower() for own_host in own_hosts}:
            return f"Host {_show(name)} is not this machine; add it with allow_host if it should be"
    if "*" in allowed:
        return None
    if origin is None:
        if site not in _SITES_OF_OURS and not (mode == "navigate" and method in _FOLLOWS_A_LINK):
            return (
                "pages of other sites may not use slowtok; to allow one, add its origin with"
                " allow_origin"
            )
        return None
    if origin in allowed or _is_local_origin(origin) or _is_same(origin, host):
        return None
    return f"Origin {_show(origin)} is not allowed; add it with allow_origin if it should be"


@lru_cache(maxsize=64)
def _host_of(host: str | None) -> str | None:
    """Return the host name of `HOST` or `HOST:PORT`; anything else as it is, which is no name."""
    if not host:
        return None
    found = _AUTHORITY.fullmatch(host)
    return found[1].strip("[]").lower().rstrip(".") if found else host


@lru_cache(maxsize=64)
def _is_local_name(name: str, *, is_local: bool) -> bool:
    if name == "localhost" or name.endswith(_LOCAL_SUFFIXES):
        return True
    if name.endswith(_NETWORK_SUFFIX):
        return not is_local
    try:
        ipaddress.ip_address(name.replace("%25", "%"))
    except ValueError:
        return False
    return True  # an address cannot be rebound


def _is_same(origin: str, host: str | None) -> bool:
    """Return True if the page was loaded through the proxy itself, such as llama-server's UI."""
    return bool(host) and origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())


def _is_local_origin(origin: str) -> bool:
    parts = _origin(origin)
    if parts is None:
        return False
    scheme, name = parts
    if scheme in _LOCAL_SCHEMES:
        return True
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _origin(origin: str) -> tuple[str, str] | None:
    """Return scheme and host name of an origin; None for what no browser would send."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    if parts.scheme in _LOCAL_SCHEMES:
        return parts.scheme, ""
    name = _host_of(parts.netloc)
    if parts.scheme not in ("http", "https") or parts.path or parts.query or parts.fragment:
        return None
    return None if name is None else (parts.scheme, name)


def _show(text: str) -> str:
    """Quote a foreign text for a message: printable ASCII, at most 80 characters."""
    return repr("".join(c if " " <= c <= "~" else "?" for c in text[:80]))
