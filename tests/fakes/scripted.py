"""A real engine whose model follows a script: it calls a tool so many times, then answers.

A small model cannot be trusted to call tools. So its tokens are computed, with all the times that
this takes, and what it said is replaced by the next step of the script.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
from aiohttp import web

STEPS = 10
TOOL, CITY, DONE = "weather", "Rome", "It stays warm on all ten days."
RESULT = "warm in"  # how each answer of the tool begins
HANDOFF, TO = "handoff", "forecaster"  # LlamaIndex's first agent hands over to the second
NO_TOOLS = "no-tools"  # a model that is refused tools, in Ollama's words
FINAL_TOOL = "final_answer"  # by which smolagents' agents end
MAX_TOKENS = 6  # of each answer: the script needs none of them
_CHAT, _MESSAGES = "/v1/chat/completions", "/v1/messages"


@contextlib.contextmanager
def scripted_engine(engine_url: str) -> Iterator[str]:
    """Serve the engine at `engine_url` on a free port, its answers replaced by the script."""
    started = threading.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", _Script(engine_url).answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
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


class _Script:
    """Asks the engine, and says the next step in its place."""

    def __init__(self, engine_url: str) -> None:
        self._engine_url = engine_url

    async def answer(self, request: web.Request) -> web.Response:
        body, is_chat = await request.read(), request.path in (_CHAT, _MESSAGES)
        asked: dict[str, Any] = json.loads(body) if is_chat else {}
        if asked.get("model") == NO_TOOLS and asked.get("tools"):
            refused = f"registry.ollama.ai/library/{NO_TOOLS} does not support tools"
            return web.json_response({"error": {"message": refused}}, status=400)
        if is_chat:
            most = {"max_tokens": MAX_TOKENS, "max_completion_tokens": MAX_TOKENS}
            plain = {k: v for k, v in asked.items() if k not in ("tool_choice", *most)}
            body = json.dumps(plain | {"max_tokens": MAX_TOKENS, "stream": False}).encode()
        async with httpx.AsyncClient(timeout=300) as client:
            got = await client.request(
                request.method,
                self._engine_url + request.path_qs,
                content=body,
                headers={"Content-Type": "application/json"} if body else {},
            )
        kept = {k: v for k, v in got.headers.items() if k.lower() in ("content-type", "server")}
        if not is_chat or got.status_code != 200:
            return web.Response(body=got.content, status=got.status_code, headers=kept)
        told = got.json() | (_message(asked) if request.path == _MESSAGES else _choices(asked))
        if asked.get("stream"):
            counted = bool((asked.get("stream_options") or {}).get("include_usage"))
            stream = _as_stream(told, with_usage=counted)
            return web.Response(body=stream, content_type="text/event-stream")
        return web.json_response(told, headers={"Server": kept.get("server", "")})


def _steps(asked: dict[str, Any]) -> int:
    """Return how many results of the tool there are, in whatever form."""
    return json.dumps(asked["messages"]).count(RESULT)


def _choices(asked: dict[str, Any]) -> dict[str, Any]:
    done = _steps(asked)
    tools = {tool["function"]["name"] for tool in asked.get("tools") or ()}
    if not tools:
        said = {"role": "assistant", "content": _in_text(done)}
    elif TOOL not in tools:
        said = _call(done, HANDOFF, {"to_agent": TO, "reason": "It knows."})
    elif done < STEPS:
        said = _call(done, TOOL, _arguments(done))
    elif FINAL_TOOL in tools:
        said = _call(done, FINAL_TOOL, {"answer": DONE})
    else:
        said = {"role": "assistant", "content": DONE}
    finish = "tool_calls" if "tool_calls" in said else "stop"
    return {"choices": [{"index": 0, "message": said, "finish_reason": finish}]}


def _in_text(done: int) -> str:
    """Return what the model of an agent says that has told it its tools in the prompt (ReAct)."""
    if done < STEPS:
        asked = json.dumps(_arguments(done))
        return f"Thought: I need a tool.\nAction: {TOOL}\nAction Input: {asked}"
    # the last line in LlamaIndex's words and in CrewAI's
    return f"Thought: I can answer.\nAnswer: {DONE}\nFinal Answer: {DONE}"


def _call(number: int, name: str, arguments: dict[str, str]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _arguments(number: int) -> dict[str, str]:
    """Return what the tool is asked: CrewAI stops an agent that asks the same again and again."""
    return {"city": f"{CITY} {number + 1}"}


def _message(asked: dict[str, Any]) -> dict[str, Any]:
    done = _steps(asked)
    if done >= STEPS:
        return {"content": [{"type": "text", "text": DONE}], "stop_reason": "end_turn"}
    call = {"type": "tool_use", "id": f"call_{done}", "name": TOOL, "input": _arguments(done)}
    return {"content": [call], "stop_reason": "tool_use"}


def _as_stream(told: dict[str, Any], *, with_usage: bool) -> bytes:
    """Return a whole reply of chat completions as a stream."""
    (choice,) = told["choices"]
    message = dict(choice["message"])
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
    last = {**choice, "delta": message}
    del last["message"]
    chunks = [{**told, "object": "chat.completion.chunk", "choices": [last]}]
    if (
        with_usage
    ):  # as llama-server: the counts come in a chunk of their own, the timings with them
        chunks.append({**chunks[0], "choices": []})
        del chunks[0]["usage"], chunks[0]["timings"]
    else:
        del chunks[0]["usage"]
    lines = [*map(json.dumps, chunks), "[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()
