"""Embeddings and reranking: a prompt is read and nothing is generated, so all is prefill.

OpenAI's shape, Cohere's and llama-server's own, which tells no counts.
"""

from collections.abc import Mapping
from typing import Any

from slowtok.proxy.stream.reply import Reply, count_of, text_of


def read(event: Mapping[str, Any], reply: Reply) -> bool:
    """Note what a body says; it carries no token."""
    if event.get("error"):
        reply.failed = True
        return False
    reply.model = reply.model or text_of(event.get("model"))
    reply.completion_tokens = 0
    if isinstance(usage := event.get("usage"), dict):
        reply.prompt_tokens = count_of(usage.get("prompt_tokens", usage.get("total_tokens")))
    return False
