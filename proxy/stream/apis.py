"""Which paths carry generations, and in which dialect: one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slowtok.proxy.stream.dialects import ollama, openai
from slowtok.proxy.stream.reply import Reply

Dialect = Callable[[Mapping[str, Any], Reply], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One generation API. `streams_by_default` is what an absent `stream` field means."""

    name: str
    read: Dialect
    streams_by_default: bool = False
    takes_stream_options: bool = False


_CHAT = Api(name="openai-chat", read=openai.read, takes_stream_options=True)
_TEXT = Api(name="openai-completions", read=openai.read, takes_stream_options=True)
_OLLAMA = Api(name="ollama", read=ollama.read, streams_by_default=True)

_APIS = {
    "/v1/chat/completions": _CHAT,
    "/chat/completions": _CHAT,  # llama-server's alias; its bare /completions is another API
    "/v1/completions": _TEXT,
    "/api/chat": _OLLAMA,
    "/api/generate": _OLLAMA,
}


def find_api(method: str, path: str) -> Api | None:
    """Return the generation API at `path` (without query), or None: relayed without a verdict."""
    return _APIS.get(path.rstrip("/")) if method == "POST" else None
