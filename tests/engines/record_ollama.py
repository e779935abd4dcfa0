"""Records every API of a real Ollama into `tests/data/ollama`.

`TEST_OLLAMA=PATH PYTHONPATH=.dev:tests python tests/engines/record_ollama.py`
"""

import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

from fakes.ollama_templates import CALLER, THINKER
from fakes.real_ollama import MODEL, RunningOllama, real_ollama
from fakes.recorded_exchange import record_exchange
from fakes.recordings import OLLAMA
from slowtok.proxy.cli.demo.model import fetch_model

FOLDER = Path("/tmp/ollama")  # neutral: replies name files in it
TOKENS = 12
QUESTION = "Name three colours."
WORDS = [{"role": "user", "content": QUESTION}]
LONG = " ".join(f"{count} apples and {count} pears." for count in range(40))
NATIVE = {"num_predict": TOKENS, "temperature": 0, "seed": 1}
MORE = {"temperature": 0, "seed": 1}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
CALL = {  # the form that CALLER's template gives to calls
    "type": "object",
    "properties": {
        "name": {"const": "weather"},
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris"]}},
            "required": ["city"],
        },
    },
    "required": ["name", "parameters"],
}


class Recorder:
    """Records exchanges with one Ollama under its version."""

    def __init__(self, engine: RunningOllama) -> None:
        self.engine = engine
        self.prefix = "ollama-" + ".".join(engine.version.split(".")[:2])

    def get(self, name: str, path: str) -> None:
        record_exchange(self._file(name), self.engine.url, "GET", path)

    def post(self, name: str, path: str, body: Mapping[str, Any], reads: int | None = None) -> None:
        asked = {"model": MODEL, **body}
        record_exchange(self._file(name), self.engine.url, "POST", path, asked, reads=reads)

    def both(self, name: str, path: str, body: Mapping[str, Any], **streamed: Any) -> None:
        """Whole, then streamed."""
        self.post(name, path, {"stream": False, **body})
        self.post(f"{name}-stream", path, {"stream": True, **body, **streamed})

    def _file(self, name: str) -> Path:
        return OLLAMA / f"{self.prefix}.{name}.jsonl"


def record(engine: RunningOllama) -> None:
    """Record all; the order matters: what is loaded and what is cached changes replies."""
    to = Recorder(engine)
    to.get("root", "/")
    to.get("api-version", "/api/version")
    to.get("api-tags", "/api/tags")
    to.post("api-show", "/api/show", {})
    to.get("api-ps-empty", "/api/ps")
    to.get("models", "/v1/models")
    to.post("api-generate-load", "/api/generate", {"stream": False})
    to.get("api-ps", "/api/ps")
    to.both("api-chat", "/api/chat", {"messages": WORDS, "options": NATIVE})
    to.both("api-generate", "/api/generate", {"prompt": QUESTION, "options": NATIVE})
    usage = {"stream_options": {"include_usage": True}}
    to.both("chat", "/v1/chat/completions", {"messages": WORDS, "max_tokens": TOKENS, **MORE})
    asked = {"messages": WORDS, "max_tokens": TOKENS, **MORE, "stream": True, **usage}
    to.post("chat-stream-usage", "/v1/chat/completions", asked)
    to.both("completions", "/v1/completions", {"prompt": QUESTION, "max_tokens": TOKENS, **MORE})
    asked = {"prompt": QUESTION, "max_tokens": TOKENS, **MORE, "stream": True, **usage}
    to.post("completions-stream-usage", "/v1/completions", asked)
    to.both("responses", "/v1/responses", {"input": QUESTION, "max_output_tokens": TOKENS})
    to.both("messages", "/v1/messages", {"messages": WORDS, "max_tokens": TOKENS})
    record_thinking_and_tools(to)
    record_cut(to)
    record_refusals(to)
    record_queue(to)
    to.post("api-generate-unload", "/api/generate", {"stream": False, "keep_alive": 0})
    record_embeddings(to)


def record_thinking_and_tools(to: Recorder) -> None:
    """Record with models that think, and that call a tool."""
    to.engine.create("thinker", template=THINKER)
    to.engine.create("caller", template=CALLER)
    asked = {"model": "thinker", "messages": WORDS, "think": True, "options": NATIVE}
    to.both("api-chat-think", "/api/chat", asked)
    more = {"max_tokens": TOKENS, **MORE}
    to.both("chat-think", "/v1/chat/completions", {"model": "thinker", "messages": WORDS, **more})
    asked = {"model": "caller", "messages": WORDS, "tools": TOOLS, "format": CALL}
    to.both("api-chat-tool", "/api/chat", {**asked, "options": {**NATIVE, "num_predict": 60}})
    schema = {"type": "json_schema", "json_schema": {"name": "call", "schema": CALL}}
    asked = {"model": "caller", "messages": WORDS, "tools": TOOLS, "response_format": schema}
    to.both("chat-tool", "/v1/chat/completions", {**asked, "max_tokens": 60, **MORE})


def record_embeddings(to: Recorder) -> None:
    """Record with a model that says it was made for embeddings, and with one of words."""
    to.engine.create("embedder", pooled(fetch_model(), FOLDER / "embedder.gguf"))
    asked = {"model": "embedder", "input": QUESTION}
    to.post("api-embed-load", "/api/embed", asked)
    to.post("api-embed", "/api/embed", asked)
    to.post("embeddings", "/v1/embeddings", asked)
    to.post("api-embed-chat-model", "/api/embed", {"input": QUESTION})


def pooled(model: Path, file: Path) -> Path:
    """Write a model anew, with a mark that its embeddings are means over tokens."""
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(file, arch="llama")
    mark = MetadataDetails(gguf.GGUFValueType.UINT32, 1)
    copy_with_new_metadata(reader, writer, {"llama.pooling_type": mark}, [])
    return file


def record_cut(to: Recorder) -> None:
    """Record prompts that are longer than the context: cut in silence, or refused."""
    small = {**NATIVE, "num_ctx": 256}
    prompt, words = {"prompt": LONG}, {"messages": [{"role": "user", "content": LONG}]}
    to.post("api-generate-reload", "/api/generate", {**prompt, "options": NATIVE, "stream": False})
    to.post("api-generate-cut", "/api/generate", {**prompt, "options": small, "stream": False})
    to.post("api-chat-cut", "/api/chat", {**words, "options": small, "stream": False})
    whole = {"truncate": False, "options": small, "stream": False}
    to.post("error-too-long", "/api/generate", {**prompt, **whole})
    to.post("error-too-long-stream", "/api/chat", {**words, **whole, "stream": True})


def record_refusals(to: Recorder) -> None:
    """Record what is refused."""
    to.get("error-unknown-path", "/v1/nothing")
    to.post("error-no-model", "/api/chat", {"model": "absent", "messages": WORDS})
    to.post("error-no-model-chat", "/v1/chat/completions", {"model": "absent", "messages": WORDS})
    to.post("error-bad-messages", "/api/chat", {"messages": 3})
    to.post("error-no-thinking", "/api/chat", {"messages": WORDS, "think": True})


def record_queue(to: Recorder) -> None:
    """Record a request that waits for another one's end, and one whose client hangs up."""
    long = {"prompt": "Once upon a time", "raw": True, "options": {**NATIVE, "num_predict": 60}}
    short = {"messages": WORDS, "options": NATIVE}
    to.engine.ask("/api/chat", short)
    both(
        lambda: to.engine.ask("/api/generate", long),
        lambda: to.post("api-chat-queued-stream", "/api/chat", short),
    )
    to.post("api-generate-left-stream", "/api/generate", long, reads=3)


def both(first: Callable[[], object], second: Callable[[], object]) -> None:
    """Do both at once, the first a little earlier."""
    begun = threading.Timer(0.3, second)
    begun.start()
    first()
    begun.join()


def main() -> None:
    shutil.rmtree(FOLDER / "serve", ignore_errors=True)
    (FOLDER / "serve").mkdir(parents=True)
    with real_ollama(FOLDER / "serve", OLLAMA_NUM_PARALLEL="1") as engine:
        record(engine)
        sys.stdout.write(f"recorded Ollama {engine.version}\n")


if __name__ == "__main__":
    main()
