"""Embeddings and reranking: a prompt is read and nothing is generated, so it is prefill only.

Three formats: OpenAI's, Cohere's, and llama-server's own, which has no counts.
"""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.reply import Reply, count_of, text_of


def read(event: Mapping[str, Any], reply: Reply) -> bool:
    """Parse a body into `reply`; it carries no token."""
    if event.get("error"):
        reply.failed = True
        return False
    reply.model = reply.model or text_of(event.get("model"))
    reply.completion_tokens = 0
    if isinstance(usage := event.get("usage"), dict):
        reply.prompt_tokens = count_of(usage.get("prompt_tokens", usage.get("total_tokens")))
    return False
