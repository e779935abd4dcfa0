"""The proxy's own error replies, in the shape that OpenAI clients understand."""

import orjson
from aiohttp import web
from multidict import CIMultiDict

from slowtok.proxy.http.response import ClientReply

WHAT_TO_CHECK = {
    "no-engine": "start llama-server, vLLM or Ollama, or name one with --upstream URL",
    "upstream-refused": "is the engine running, and is this its address? (slowtok --upstream URL)",
    "upstream-error": "did the engine crash or restart? its own log says more",
    "timeout": "is the machine reachable, and does a firewall drop the connection?",
    "overloaded": "raise the limit of open files (ulimit -n), or set max_connections lower; where "
    "memory was the limit, raise max_held_bytes",
}
"""What to look at, by how a request was cut short: what its error reply has said, too."""


def error_response(status: int, message: str, code: str) -> ClientReply:
    """Return an OpenAI-style JSON error. `message` says what failed and what to check.

    A 503 of ours is over soon: it asks to come back in a second.
    """
    body = {"error": {"message": message, "type": "slowtok_error", "param": None, "code": code}}
    fields = CIMultiDict({"Content-Type": "application/json; charset=utf-8"})
    if status == 503:
        fields["Retry-After"] = "1"
    return ClientReply(status, fields, orjson.dumps(body))


def error_page(status: int, message: str, code: str) -> web.Response:
    """Return the same for one of the proxy's own pages, which aiohttp sends."""
    return as_page(error_response(status, message, code))


def as_page(reply: ClientReply) -> web.Response:
    """Return a whole reply as one of aiohttp's."""
    return web.Response(status=reply.status, headers=reply.headers, body=reply.body)
