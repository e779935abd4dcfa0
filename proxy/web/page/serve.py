"""`/slowtok/`: the files of the live page.

Strategy: they are few and small, so they are read once and answered from memory. What is asked
for is looked up among them by name: no path of the file system is ever made of a request.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from slowtok.proxy.http.response import error_page

FOLDER = Path(__file__).parent
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"
HEADERS = {
    # Own files only, nothing inline, no frame around it, and no way from text to markup.
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "object-src 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked again each time, by its tag: an update shows at once
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is answered."""

    body: bytes
    content_type: str
    tag: str


def read_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Return the page's files by their path in `folder`, as URLs write it."""
    found = (path for path in sorted(folder.rglob("*")) if path.suffix in TYPES)
    return {path.relative_to(folder).as_posix(): _read(path) for path in found}


class Page:
    """Answers with the page's files."""

    def __init__(self) -> None:
        self._files = read_files()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the page, all of them for GET and HEAD."""
        return [
            web.get("/slowtok", self.move),
            web.get("/slowtok/", self.file),
            web.get("/slowtok/page/{name:.+}", self.file),
        ]

    async def move(self, _request: web.Request) -> web.Response:
        """Send a browser to the path that the page's relative links are made for."""
        return web.Response(status=308, headers={"Location": "/slowtok/"})

    async def file(self, request: web.Request) -> web.Response:
        """Return one file, or 304 where the browser has it."""
        found = self._files.get(request.match_info.get("name", INDEX))
        if found is None:
            return error_page(404, f"{request.path} is not part of the page", "not-found")
        if any(tag.value == found.tag for tag in request.if_none_match or ()):
            response = web.Response(status=304, headers=HEADERS)
        else:
            response = web.Response(
                body=found.body, content_type=found.content_type, charset="utf-8", headers=HEADERS
            )
        response.etag = found.tag
        return response


def _read(path: Path) -> PageFile:
    body = path.read_bytes()
    return PageFile(body, TYPES[path.suffix], hashlib.sha256(body).hexdigest()[:16])
