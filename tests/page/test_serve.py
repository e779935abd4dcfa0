"""The page's files as they are served; no browser is needed."""

import re
from pathlib import Path

import pytest
from aiohttp import web

from fakes.proxy import serving
from fakes.upstream import listening
from slowtok.proxy.page.serve import FOLDER, HEADERS, Page, read_files

FILES = read_files()
IMPORT = re.compile(r"""from "\./([a-z]+\.js)";""")


@pytest.fixture
async def page(aiohttp_client: object) -> object:
    app = web.Application()
    app.add_routes(Page().routes())
    return await aiohttp_client(app)  # type: ignore[operator]
