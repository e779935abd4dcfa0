"""Tells whether an upstream runs on this machine: only then its samples and hardware count.

An address of this machine is not enough: what listens there may only pass bytes on. Behind a tunnel
the engine is on another machine; behind a reverse proxy or a gateway it is wherever that says, so
nothing of this machine is held against it. A container or a virtual machine for containers uses
this machine's hardware, also where its processes are not to be seen.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Collection

import psutil
from yarl import URL

from slowtok.proxy.engines.probing.facts import Kind
from slowtok.proxy.sampling.host.programs import REACH
from slowtok.proxy.sampling.protocol import ProcessFacts

FARTHER = frozenset({"elsewhere", "unknown"})
"""Reach of forwarders behind which this machine's hardware may not be the engine's."""


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


def is_here(
    address_local: bool | None, process: ProcessFacts | None, kind: Kind = "unknown"
) -> bool | None:
    """Return whether the engine itself runs here, by its address and by who answers there."""
    listens = None if process is None else process.unmapped
    forwards = FARTHER & {REACH.get(listens or ""), REACH.get(kind)}
    return False if forwards else address_local


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
