"""What each engine answers at each API, as events: recorded where it could be, made otherwise.

Recorded are llama-server, vLLM and Ollama (`tests/data`); the vLLM was started with
per-request metrics and prompt token details, so what it says without them is its recording less
those fields. Made replies follow the documented formats: Ollama's `openai/openai.go` (`timings` of
0.35) and `server/routes.go` (`/api/embeddings`), llama-server's `tools/server/README.md` for
infill, OpenAI's reference for LM Studio, SGLang and other servers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from fakes import recordings

JSON, SSE, NDJSON = "application/json", "text/event-stream", "application/x-ndjson"
LLAMA, VLLM = "llama-server-2026.10", "vllm-0.32"
NAMES = {  # of the recordings of a path
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/embeddings": "embeddings",
    "/embedding": "embedding-native",
    "/v1/rerank": "rerank",
    "/completion": "completion",
    "/api/chat": "api-chat",
    "/api/generate": "api-generate",
    "/api/embed": "api-embed",
}
PREFIXES = {
    "llama-server": LLAMA,
    "vLLM": VLLM,
    "vLLM with metrics": VLLM,
    "Ollama before 0.34": "ollama-0.17",
    "Ollama 0.34": "ollama-0.34",
    "Ollama from 0.34": "ollama-0.34",
}
ASKED_FOR_USAGE = {  # by slowtok, where the client did not
    ("vLLM", "/v1/chat/completions"),
    *(("Ollama", path) for path in ("/v1/chat/completions", "/v1/completions")),
}
BY_FLAG = ("metrics", "prompt_tokens_details")  # of vLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A reply: its events in order, one of them where it is whole; `recorded` on the wire."""

    content_type: str
    events: tuple[bytes, ...]
    recorded: bool

    @property
    def objects(self) -> list[Any]:
        """The JSON of each event, in order."""
        texts = [event.rpartition(b"data: ")[2] for event in self.events]
        return [orjson.loads(text) for text in texts if text.strip() not in (b"", b"[DONE]")]


def play(path: str, engine: str, *, stream: bool) -> Played:
    """What `engine` answers at `path`."""
    name = f"{PREFIXES.get(engine)}.{NAMES.get(path)}" + ("-stream" if stream else "")
    if stream and (engine.partition(" ")[0], path) in ASKED_FOR_USAGE:
        name += "-usage"
    if name in (*recordings.names(), *recordings.names(of=recordings.OLLAMA)):
        return _recorded(name, without=BY_FLAG if engine == "vLLM" else ())
    return _made(path, engine, stream=stream)


def _recorded(name: str, without: tuple[str, ...]) -> Played:
    response = recordings.unframe(recordings.load(name))
    if response.content_type.startswith(NDJSON):
        lines = tuple(line + b"\n" for line in response.body.splitlines())
        return Played(content_type=NDJSON, events=lines, recorded=True)
    if not response.content_type.startswith(SSE):
        body = response.body
        body = orjson.dumps(_less(orjson.loads(body), without)) if without else body
        return Played(content_type=JSON, events=(body,), recorded=True)
    events = []
    for event in response.body.strip().split(b"\n\n"):
        head, mark, text = event.rpartition(b"data: ")
        if without and text.startswith(b"{"):
            text = orjson.dumps(_less(orjson.loads(text), without))
        events.append(head + mark + text + b"\n\n")
    return Played(content_type=SSE, events=tuple(events), recorded=True)


def _less(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {k: _less(v, names) for k, v in value.items() if k not in names}
    return [_less(one, names) for one in value] if isinstance(value, list) else value


def _made(path: str, engine: str, *, stream: bool) -> Played:
    objects = MAKERS[path](engine, stream)
    if not stream:
        return Played(content_type=JSON, events=(orjson.dumps(objects[0]),), recorded=False)
    events = [_named(said) + b"data: " + orjson.dumps(said) + b"\n\n" for said in objects]
    if path in ("/v1/chat/completions", "/v1/completions"):
        events.append(b"data: [DONE]\n\n")
    return Played(content_type=SSE, events=tuple(events), recorded=False)


def _named(said: Mapping[str, Any]) -> bytes:
    return b"event: %s\n" % said["type"].encode() if "type" in said else b""


def _usage(engine: str) -> dict[str, Any]:
    """What the last chunk, or a whole reply, has beside its choices."""
    usage: dict[str, Any] = {"prompt_tokens": 34, "completion_tokens": 5, "total_tokens": 39}
    if engine != "Ollama from 0.35":
        return {"usage": usage}
    usage["prompt_tokens_details"] = {"cached_tokens": 24}
    timings = {"prompt_n": 34, "prompt_ms": 303, "predicted_n": 5, "predicted_ms": 259}
    return {"usage": usage, "timings": timings}


def _chat(engine: str, stream: bool) -> list[dict[str, Any]]:
    told = _usage(engine)
    if not stream:
        message = {"role": "assistant", "content": "Red, green."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return [{"object": "chat.completion", "model": "m", "choices": [choice], **told}]
    said: list[dict[str, Any]] = [{"role": "assistant", "content": "Red"}, {"content": ","}]
    said += [{"content": " green"}, {"content": "."}, {}]
    chunks: list[dict[str, Any]] = []
    for delta in said:
        choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
        chunks.append({"object": "chat.completion.chunk", "model": "m", "choices": [choice]})
    return [*chunks, {"object": "chat.completion.chunk", "choices": [], **told}]


def _text(engine: str, stream: bool) -> list[dict[str, Any]]:
    told = _usage(engine)
    head = {"object": "text_completion", "model": "m"}
    if not stream:
        choice = {"index": 0, "text": "Red, green.", "finish_reason": "length"}
        return [{**head, "choices": [choice], **told}]
    zeros: dict[str, Any] = {}
    if engine == "Ollama from 0.35":  # on each chunk
        zeros = {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}
    said = [("Red", None), (",", None), (" green", None), (".", "length")]
    chunks: list[dict[str, Any]] = []
    for text, reason in said:
        choice = {"index": 0, "text": text, "finish_reason": reason}
        chunks.append({**head, "choices": [choice], **zeros})
    return [*chunks, {**head, "choices": [], **told}]


def _responses(engine: str, stream: bool) -> list[dict[str, Any]]:
    details = {"input_tokens_details": {"cached_tokens": 24}}
    usage = {"input_tokens": 34, "output_tokens": 5, "total_tokens": 39, **details}
    content = [{"type": "output_text", "text": "Red, green."}]
    output = [{"type": "message", "role": "assistant", "content": content}]
    whole = {"object": "response", "model": "m", "status": "completed", "output": output,
             "usage": usage}  # fmt: skip
    if not stream:
        return [whole]
    begun = {"object": "response", "model": "m", "status": "in_progress", "output": []}
    kind = "response.output_text.delta"
    deltas = [{"type": kind, "delta": piece} for piece in ("Red", ",", " green", ".")]
    first, last = "response.created", "response.completed"
    return [{"type": first, "response": begun}, *deltas, {"type": last, "response": whole}]


def _messages(engine: str, stream: bool) -> list[dict[str, Any]]:
    usage = {"input_tokens": 34, "output_tokens": 5}
    head = {"type": "message", "role": "assistant", "model": "m"}
    if not stream:
        content = [{"type": "text", "text": "Red, green."}]
        return [{**head, "content": content, "stop_reason": "end_turn", "usage": usage}]
    begun = {**head, "content": [], "usage": {"input_tokens": 9, "output_tokens": 0}}
    deltas: list[dict[str, Any]] = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        for piece in ("Red", ",", " green", ".")
    ]
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]


def _embeddings(engine: str, stream: bool) -> list[dict[str, Any]]:
    data = [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}]
    usage = {"prompt_tokens": 5, "total_tokens": 5}
    return [{"object": "list", "model": "m", "data": data, "usage": usage}]


def _rerank(engine: str, stream: bool) -> list[dict[str, Any]]:
    results = [{"index": 0, "document": {"text": "a"}, "relevance_score": 0.5}]
    return [{"id": "r", "model": "m", "usage": {"total_tokens": 8}, "results": results}]


def _older_embed(engine: str, stream: bool) -> list[dict[str, Any]]:
    return [{"embedding": [0.1, 0.2]}]


def _infill(engine: str, stream: bool) -> list[dict[str, Any]]:
    timings = {"cache_n": 3, "prompt_n": 7, "prompt_ms": 51.24, "predicted_n": 4,
               "predicted_ms": 67.9}  # fmt: skip
    end = {"stop": True, "stop_type": "eos", "tokens_predicted": 4, "tokens_evaluated": 10,
           "timings": timings}  # fmt: skip
    if not stream:
        return [{"index": 0, "content": "return x", **end}]
    chunks = [{"index": 0, "content": text, "stop": False} for text in ("return", " ", "x")]
    return [*chunks, {"index": 0, "content": "", **end}]


MAKERS: Mapping[str, Callable[[str, bool], list[dict[str, Any]]]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _text,
    "/v1/responses": _responses,
    "/v1/messages": _messages,
    "/v1/embeddings": _embeddings,
    "/v1/rerank": _rerank,
    "/api/embeddings": _older_embed,
    "/infill": _infill,
}
