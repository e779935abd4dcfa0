"""One GET to an engine, as plain facts: status, headers, body."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

TIMEOUT_S = (
    1.0  # an engine answers these from memory; one that is busy answers late, and then again
)
BODY_LIMIT_BYTES = 4 << 20  # a router's list of models; anything longer is not what was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReply:
    """What came back. Header names are lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The body of a 200 as JSON, else None."""
        if self.status != 200:
            return None
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


async def get(
    session: aiohttp.ClientSession,
    base_url: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> ProbeReply | None:
    """Return the reply to `GET base_url + path`, or None when nothing answered in time."""
    try:
        async with asyncio.timeout(timeout_s):
            async with session.get(
                base_url.rstrip("/") + path, headers=headers, allow_redirects=False
            ) as response:
                return await _reply(response)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None


async def post(
    session: aiohttp.ClientSession, base_url: str, path: str, question: Mapping[str, object]
) -> ProbeReply | None:
    """Return the reply to a POST of JSON, or None when nothing answered in time."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            async with session.post(
                base_url.rstrip("/") + path, data=orjson.dumps(question), allow_redirects=False
            ) as response:
                return await _reply(response)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None


async def _reply(response: aiohttp.ClientResponse) -> ProbeReply:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > BODY_LIMIT_BYTES:
            break
    headers = {name.lower(): value for name, value in response.headers.items()}
    return ProbeReply(status=response.status, headers=headers, body=bytes(body))
