"""`/slowtok/` at a worker: passed to the observing process, which has all records."""

import aiohttp
from aiohttp import web
from yarl import URL

from slowtok.proxy.http import headers
from slowtok.proxy.http.errors import error_page

CONNECT_S = 5.0


class Pages:
    """Passes requests for the proxy's own pages to the observing process's socket at `path`."""

    def __init__(self, path: str) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        )

    def routes(self) -> list[web.RouteDef]:
        """Return the routes: all that is, or might be, one of the proxy's own."""
        return [
            web.route("*", "/slowtok", self._pass_on),
            web.route("*", "/slowtok/{rest:(?s:.*)}", self._pass_on),
        ]

    async def close(self) -> None:
        """Close all connections to the observing process."""
        await self._session.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        """Ask the process that observes, which judges host, origin and key again, too."""
        target = URL("http://localhost" + request.rel_url.raw_path_qs, encoded=True)
        fields = headers.to_own_page(request.headers)
        try:
            reply = await self._session.request(
                request.method, target, headers=fields, allow_redirects=False
            )
        except (aiohttp.ClientError, TimeoutError, OSError):
            return error_page(503, "slowtok's observing process does not answer", "not-there")
        async with reply:
            passed = headers.to_client(reply.headers, origin=None)
            response = web.StreamResponse(status=reply.status, headers=passed)
            try:
                await response.prepare(request)
                async for chunk in reply.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            except (ConnectionError, aiohttp.ClientError):
                response.force_close()  # one of both is gone: a page that is cut short looks so
                if request.transport is not None:
                    request.transport.close()
            return response
