"""The proxy's own error replies, in the shape that OpenAI clients understand."""

import orjson
from aiohttp import web


def error_response(status: int, message: str, code: str) -> web.Response:
    """Return an OpenAI-style JSON error. `message` says what failed and what to check."""
    body = {"error": {"message": message, "type": "slowtok_error", "param": None, "code": code}}
    return web.Response(
        status=status, body=orjson.dumps(body), content_type="application/json", charset="utf-8"
    )
