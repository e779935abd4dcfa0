"""The naive relay: aiohttp's server and client, nothing looked at; what a Python proxy must cost.

python -m bench.naive PORT UPSTREAM_PORT
"""

import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web

SESSION = web.AppKey("session", aiohttp.ClientSession)
BETWEEN_TWO = frozenset(("connection", "content-length", "host", "transfer-encoding"))


def make_app(upstream_port: int) -> web.Application:
    """Return the relay as an application."""

    async def relay(request: web.Request) -> web.StreamResponse:
        url = f"http://127.0.0.1:{upstream_port}{request.rel_url}"
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in BETWEEN_TWO]
        data = await request.read()
        async with request.app[SESSION].post(url, headers=headers, data=data) as reply:
            response = web.StreamResponse(status=reply.status)
            for name, value in reply.headers.items():
                if name.lower() not in BETWEEN_TWO:
                    response.headers.add(name, value)
            response.content_length = reply.content_length
            await response.prepare(request)
            async for chunk in reply.content.iter_any():
                await response.write(chunk)
            return response

    async def life(app: web.Application) -> AsyncIterator[None]:
        app[SESSION] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        yield
        await app[SESSION].close()

    app = web.Application(client_max_size=1 << 26)
    app.cleanup_ctx.append(life)
    app.router.add_post("/v1/chat/completions", relay)
    return app


if __name__ == "__main__":
    web.run_app(
        make_app(int(sys.argv[2])),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        print=None,
        access_log=None,
        loop=uvloop.new_event_loop(),
    )
