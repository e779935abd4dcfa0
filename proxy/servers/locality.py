"""Whether an upstream runs on this machine: only then do its samples and hardware count."""

import asyncio
import ipaddress
import socket
from collections.abc import Collection

import psutil
from yarl import URL


async def is_local(url: str) -> bool | None:
    """Return whether the host of `url` is this machine; None when its name does not resolve."""
    host = URL(url).host
    if host is None:
        return None
    own = own_addresses()
    known = is_own(host, own)
    if known is not None:
        return known
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    return any(is_own(str(address[0]), own) for *_, address in found)


def is_own(host: str, own: Collection[str]) -> bool | None:
    """Return whether `host` is this machine; None for a name that must be resolved first."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback or address.is_unspecified or str(address) in own


def own_addresses() -> frozenset[str]:
    """Return the addresses of this machine's interfaces, without the scope of link-local ones."""
    return frozenset(
        entry.address.partition("%")[0]
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in {socket.AF_INET, socket.AF_INET6}
    )
