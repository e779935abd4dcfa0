"""The proxy's own error replies, in the shape that OpenAI clients understand."""

import orjson
from aiohttp import web

WHAT_TO_CHECK = {
    "no-engine": "start llama-server, vLLM or Ollama, or name one with --upstream URL",
    "upstream-refused": "is the engine running, and is this its address? (slowtok --upstream URL)",
    "upstream-error": "did the engine crash or restart? its own log says more",
    "timeout": "is the machine reachable, and does a firewall drop the connection?",
    "overloaded": "raise the limit of open files (ulimit -n), or set max_connections lower; where "
    "memory was the limit, raise max_held_bytes",
}
"""What to look at, by how a request was cut short: what its error reply has said, too."""


def error_response(status: int, message: str, code: str) -> web.Response:
    """Return an OpenAI-style JSON error. `message` says what failed and what to check.

    A 503 of ours is over soon: it asks to come back in a second.
    """
    body = {"error": {"message": message, "type": "slowtok_error", "param": None, "code": code}}
    return web.Response(
        status=status,
        headers={"Retry-After": "1"} if status == 503 else None,
        body=orjson.dumps(body),
        content_type="application/json",
        charset="utf-8",
    )
