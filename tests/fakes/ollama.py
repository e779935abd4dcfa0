"""A stand-in for Ollama that answers from a real llama-server.

Ollama itself is not in a Python package index; `fakes.real_ollama` runs one that is there. This
translates its native API to the engine that Ollama runs underneath: tokens and times are real, the
shapes those of `tests/data/ollama/ollama-0.34.*`. It refuses foreign `Origin` and `Host` fields
with a bare 403, as Ollama does.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
from aiohttp import web

from slowtok.proxy.cli.demo.model import fetch_model

VERSION = "0.34.0"
MODEL = "smollm2:135m"
NS_PER_MS = 1_000_000


@contextlib.contextmanager
def ollama_stand_in(engine_url: str) -> Iterator[str]:
    """Serve Ollama's API on a free port, answered by the llama-server at `engine_url`."""
    started = threading.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        runner = web.AppRunner(_make_app(engine_url), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found["loop"], found["stop"] = asyncio.get_running_loop(), asyncio.Event()
        found["port"] = runner.addresses[0][1]
        started.set()
        await found["stop"].wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(10)
        yield f"http://127.0.0.1:{found['port']}"
    finally:
        found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join(10)


def _make_app(engine_url: str) -> web.Application:
    app = web.Application(middlewares=[_refuse_foreign])
    engine = _Engine(engine_url)
    listed = {
        "name": MODEL,
        "model": MODEL,
        "size": 98_362_432,
        "digest": "b179c9523d0e",
        "details": {"format": "gguf", "quantization_level": "Q4_1"},
    }
    running = {**listed, "context_length": 2048, "expires_at": "2026-11-20T09:00:00Z"}
    app.add_routes(
        [
            web.get("/", _fixed("Ollama is running")),
            web.get("/api/version", _fixed({"version": VERSION})),
            web.get("/api/tags", _fixed({"models": [listed]})),
            web.get("/api/ps", _fixed({"models": [{**running, "size_vram": 0}]})),
            web.post("/api/show", _show),
            web.post("/api/chat", engine.chat),
            web.post("/api/generate", engine.generate),
        ]
    )
    return app


class _Engine:
    """Translates one native request to llama-server's, and its reply back."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        prompt = (
            "\n".join(f"{m['role']}: {m['content']}" for m in asked["messages"]) + "\nassistant:"
        )
        return await self._answer(request, asked, prompt, _chat_line)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        return await self._answer(request, asked, asked["prompt"], _generate_line)

    async def _answer(
        self, request: web.Request, asked: dict[str, Any], prompt: str, line: Any
    ) -> web.StreamResponse:
        began_s = time.monotonic()
        pieces = self._complete(prompt, asked.get("options", {}))
        if not asked.get("stream", True):
            events = [event async for event in pieces]
            text = "".join(event["content"] for event in events)
            return web.json_response({**line(text), **_end(events[-1], began_s)})
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        async for event in pieces:
            if not response.prepared:  # Ollama sends its head with the first line
                await response.prepare(request)
            said = line(event["content"])
            if event["stop"]:
                said |= _end(event, began_s)
            await response.write(json.dumps(said).encode() + b"\n")
        return response

    async def _complete(
        self, prompt: str, options: dict[str, Any]
    ) -> AsyncIterator[dict[str, Any]]:
        asked = {
            "prompt": prompt,
            "stream": True,
            "n_predict": options.get("num_predict", 32),
            "temperature": options.get("temperature", 0.0),
            "seed": options.get("seed", -1),
            "ignore_eos": True,  # a model this small may have nothing to say at all
        }
        async with (
            httpx.AsyncClient(timeout=120) as client,
            client.stream("POST", f"{self._url}/completion", json=asked) as reply,
        ):
            async for text in reply.aiter_lines():
                if text.startswith("data: "):
                    yield json.loads(text[6:])


async def _show(request: web.Request) -> web.Response:
    """Tell of one model, without loading it; the file is the one that the engine runs."""
    if (await request.json()).get("model") != MODEL:
        return web.json_response({"error": "model not found"}, status=404)
    path = await asyncio.to_thread(fetch_model)
    return web.json_response({"modelfile": f"FROM {path}\n", "model_info": {}})


def _chat_line(text: str) -> dict[str, Any]:
    return {**_head(), "message": {"role": "assistant", "content": text}, "done": False}


def _generate_line(text: str) -> dict[str, Any]:
    return {**_head(), "response": text, "done": False}


def _head() -> dict[str, Any]:
    return {"model": MODEL, "created_at": "2026-11-20T08:00:00.000000Z"}


def _end(event: dict[str, Any], began_s: float) -> dict[str, Any]:
    timings = event["timings"]
    return {
        "done": True,
        "done_reason": "length" if event.get("stop_type") == "limit" else "stop",
        "total_duration": int((time.monotonic() - began_s) * 1e9),
        "load_duration": NS_PER_MS,
        "prompt_eval_count": timings["cache_n"] + timings["prompt_n"],
        "prompt_eval_cached_count": timings["cache_n"],
        "prompt_eval_duration": int(timings["prompt_ms"] * NS_PER_MS),
        "eval_count": timings["predicted_n"],
        "eval_duration": int(timings["predicted_ms"] * NS_PER_MS),
    }


@web.middleware
async def _refuse_foreign(request: web.Request, handler: Any) -> web.StreamResponse:
    local = request.headers.get("Host", "").startswith(("127.0.0.1", "localhost"))
    if "Origin" in request.headers or not local:
        return web.Response(status=403)
    response: web.StreamResponse = await handler(request)
    return response


def _fixed(value: Any) -> Any:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=value) if isinstance(value, str) else web.json_response(value)

    return answer
