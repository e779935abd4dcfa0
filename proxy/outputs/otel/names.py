"""Attributes of a request by OpenTelemetry's GenAI semantic conventions. Pure.

The conventions are in development (opentelemetry.io/docs/specs/semconv/gen-ai). These are the names
of release 1.42 to 1.44, which instrumentations and back ends use; the conventions' own repository
has renamed some since, in no release yet.
"""

from urllib.parse import urlsplit

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.ending import CUT_SHORT, CutShort
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.stream.apis import find_api

Attributes = dict[str, str | int | float | bool | list[str]]

_OPERATIONS = {  # by the name of the API
    "openai-chat": "chat",
    "openai-responses": "chat",
    "anthropic-messages": "chat",
    "openai-completions": "text_completion",
    "llama-server": "text_completion",
    "ollama": "chat",
    "ollama-embed": "embeddings",
    "embeddings": "embeddings",
    "rerank": "rerank",  # the conventions have no word for it
}
_ERRORS = frozenset(CUT_SHORT) - {CutShort.CLIENT_GONE}
_NO_FINISH_REASON = frozenset({*CUT_SHORT, "http-error", "complete", "unknown"})


def operation(case: Case) -> str:
    """Return the operation name: chat, text_completion, embeddings."""
    path = case.timeline.path
    api = find_api("POST", path)
    if path.rstrip("/") == "/api/generate":
        return "text_completion"
    return _OPERATIONS.get(api.name, "chat") if api else "chat"


def error_type(case: Case) -> str | None:
    """Return the error type of a failed request: its status, or what cut it short."""
    status, ended = case.timeline.status, case.timeline.ended
    if status is not None and status >= 400:
        return str(status)
    return ended if ended in _ERRORS else None


def common(case: Case, model: str | None) -> Attributes:
    """Return the attributes that spans and metrics share; `model` is bounded for metrics."""
    parts = urlsplit(case.server.url or "")
    attributes: dict[str, str | int | None] = {
        "gen_ai.operation.name": operation(case),
        "gen_ai.provider.name": case.server.kind,
        "gen_ai.request.model": model,
        "server.address": parts.hostname,
        "server.port": parts.port,
        "error.type": error_type(case),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def of_span(case: Case, diagnosis: Diagnosis) -> Attributes:
    """Return all attributes of a request's span."""
    timeline, phases, tokens = case.timeline, case.phases, case.timeline.tokens
    decode = case.envelope.decode
    attributes: dict[str, str | int | float | bool | list[str] | None] = {
        "gen_ai.response.model": case.model.name,
        "gen_ai.request.stream": timeline.stream,
        "gen_ai.response.finish_reasons": _finish(timeline.ended),
        "gen_ai.response.time_to_first_chunk": phases.ttft_s,
        "gen_ai.usage.input_tokens": tokens.prompt,
        "gen_ai.usage.cache_read.input_tokens": tokens.cached,
        "gen_ai.usage.output_tokens": tokens.completion,
        "http.response.status_code": timeline.status,
        "slowtok.request.id": timeline.request_id,
        "slowtok.verdict": diagnosis.verdict,
        "slowtok.phase": diagnosis.phase,
        "slowtok.causes": [c for c, f in diagnosis.findings.items() if not f.informational],
        "slowtok.reason": diagnosis.reason or None,
        "slowtok.ended": timeline.ended,
        "slowtok.source": phases.source,
        "slowtok.prefill.rate": phases.prefill_tps,
        "slowtok.decode.rate": phases.decode_tps,
        "slowtok.decode.expected_low": decode.low if decode else None,
        "slowtok.decode.expected_high": decode.high if decode else None,
    }
    known = {name: value for name, value in attributes.items() if value is not None}
    return common(case, timeline.model) | known


def _finish(ended: str) -> list[str] | None:
    return None if ended in _NO_FINISH_REASON else [ended]
