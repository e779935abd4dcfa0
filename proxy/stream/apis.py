"""The table of paths that make an engine compute, with the dialect of each one's replies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slowtok.proxy.stream.assemble import Chunks, MessageAssembler, Parts, Response
from slowtok.proxy.stream.dialects import (
    anthropic,
    llama_server,
    ollama,
    openai,
    pooling,
    responses,
)
from slowtok.proxy.stream.reply import Reply

Dialect = Callable[[Mapping[str, Any], Reply], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API that makes the engine compute.

    `streams_by_default` is the meaning of an absent `stream` field. `takes_stream_options`: usage
    can be requested. `make_parts`: a whole reply can be assembled from a stream. `prefill_only`:
    nothing is generated. `limits` are the fields that limit the answer's tokens.
    """

    name: str
    read: Dialect
    streams_by_default: bool = False
    takes_stream_options: bool = False
    make_parts: Callable[[], Parts] | None = None
    prefill_only: bool = False
    limits: tuple[str, ...] = ("max_tokens",)


_CHAT = Api(
    name="openai-chat",
    read=openai.read,
    takes_stream_options=True,
    make_parts=Chunks,
    limits=("max_completion_tokens", "max_tokens"),
)
_TEXT = Api(
    name="openai-completions", read=openai.read, takes_stream_options=True, make_parts=Chunks
)
_RESPONSES = Api(
    name="openai-responses",
    read=responses.read,
    make_parts=Response,
    limits=("max_output_tokens",),
)
_MESSAGES = Api(name="anthropic-messages", read=anthropic.read, make_parts=MessageAssembler)
_OLLAMA = Api(
    name="ollama", read=ollama.read, streams_by_default=True, limits=("num_predict",)
)  # among its options
_OLLAMA_EMBED = Api(name="ollama-embed", read=ollama.read_embedding, prefill_only=True)
_NATIVE = Api(name="llama-server", read=llama_server.read, limits=("n_predict",))
_EMBEDDINGS = Api(name="embeddings", read=pooling.read, prefill_only=True)
_RERANK = Api(name="rerank", read=pooling.read, prefill_only=True)

_APIS = {
    "/v1/chat/completions": _CHAT,
    "/chat/completions": _CHAT,  # llama-server's alias; its bare /completions is another API
    "/v1/completions": _TEXT,
    "/v1/responses": _RESPONSES,
    "/responses": _RESPONSES,
    "/v1/messages": _MESSAGES,
    "/api/chat": _OLLAMA,
    "/api/generate": _OLLAMA,
    "/api/embed": _OLLAMA_EMBED,
    "/api/embeddings": _OLLAMA_EMBED,
    "/completion": _NATIVE,
    "/completions": _NATIVE,
    "/infill": _NATIVE,
    "/v1/embeddings": _EMBEDDINGS,
    "/embeddings": _EMBEDDINGS,
    "/embedding": _EMBEDDINGS,
    "/v1/rerank": _RERANK,
    "/v1/reranking": _RERANK,
    "/v2/rerank": _RERANK,
    "/rerank": _RERANK,
    "/reranking": _RERANK,
}


def find_api(method: str, path: str) -> Api | None:
    """Return the API at `path` (without query), or None: relayed without a verdict."""
    return _APIS.get(path.rstrip("/")) if method == "POST" else None
