"""Which requests have their prompt compared with earlier ones: what leaves a prompt in a cache."""

from typing import Any

import orjson
import pytest

from fakes.api_replies import play
from fakes.client import Client
from fakes.proxy import Served
from fakes.upstream import Arrival, Upstream
from fakes.wire import JSON, reply, until

SYSTEM = "Be short and friendly, and answer in English. " * 20
ASKED: list[Any] = [
    ("/v1/chat/completions", {"messages": [{"role": "system", "content": SYSTEM}]}),
    ("/v1/responses", {"instructions": SYSTEM, "input": "What?"}),
    ("/v1/messages", {"system": SYSTEM, "messages": [{"role": "user", "content": "What?"}]}),
    ("/completion", {"prompt": SYSTEM}),
    ("/api/generate", {"system": SYSTEM, "prompt": "What?"}),
]

ENGINES = {"/api/chat": "Ollama 0.34", "/api/generate": "Ollama 0.34"}  # of whom the reply is


async def ask(client: Client, engine: Upstream, path: str, asked: dict[str, Any]) -> Arrival:
    body = orjson.dumps({"model": "small", "stream": False, **asked})
    await client.ask("POST", path, JSON, body=body)
    return await engine.next()


async def answer(client: Client, arrived: Arrival, path: str) -> None:
    await arrived.answer(
        reply(play(path, ENGINES.get(path, "llama-server"), stream=False).events[0], JSON)
    )
    await client.reply()


@pytest.mark.parametrize(("path", "asked"), ASKED, ids=[path for path, _ in ASKED])
async def test_the_second_of_two_prompts_is_compared_however_soon_its_reply_is_there(
    proxy: Served, engine: Upstream, client: Client, path: str, asked: dict[str, Any]
) -> None:
    for count in (1, 2):
        arrived = await ask(client, engine, path, asked)
        await answer(client, arrived, path)
        await until(lambda count=count: len(proxy.cases) == count)  # type: ignore[misc]

    first, second = proxy.cases
    assert first.prompt is None
    assert second.prompt is not None
    assert second.prompt.common_prefix_chars == second.prompt.chars >= len(SYSTEM)


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/v1/embeddings", {"input": SYSTEM}), ("/api/embeddings", {"prompt": SYSTEM})],
)
async def test_what_is_embedded_leaves_no_prompt(
    proxy: Served,
    engine: Upstream,
    client: Client,
    path: str,
    asked: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[object] = []
    monkeypatch.setattr(proxy.proxy.observer, "note_prompt", lambda *given: printed.append(given))
    await answer(client, await ask(client, engine, path, asked), path)
    await until(lambda: proxy.cases)

    assert printed == []
