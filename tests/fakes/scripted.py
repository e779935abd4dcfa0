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
            return web.Response(body=_as_stream(told), content_type="text/event-stream")
        return web.json_response(told, headers={"Server": kept.get("server", "")})


def _steps(asked: dict[str, Any]) -> int:
    """Return how many results of tools there are.

    They are messages of OpenAI's, parts of Anthropic's, or what smolagents says as a user.
    """
    as_messages = [m for m in asked["messages"] if m.get("role") == "tool"]
    written = json.dumps(asked["messages"])
    return len(as_messages) + written.count('"tool_result"') + written.count("Observation:\\n")


def _choices(asked: dict[str, Any]) -> dict[str, Any]:
    done = _steps(asked)
    tools = {tool["function"]["name"] for tool in asked.get("tools") or ()}
    if done < STEPS:
        said = _call(done, TOOL, _arguments(done))
    elif FINAL_TOOL in tools:
        said = _call(done, FINAL_TOOL, {"answer": DONE})
    else:
        said = {"role": "assistant", "content": DONE}
    finish = "tool_calls" if "tool_calls" in said else "stop"
    return {"choices": [{"index": 0, "message": said, "finish_reason": finish}]}


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


def _as_stream(told: dict[str, Any]) -> bytes:
    """Return a whole reply of chat completions as one chunk of a stream."""
    (choice,) = told["choices"]
    message = dict(choice["message"])
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
    last = {**choice, "delta": message}
    del last["message"]
    chunk = {**told, "object": "chat.completion.chunk", "choices": [last]}
    return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
