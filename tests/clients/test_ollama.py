"""ollama-python through the proxy, before a stand-in that answers from the real engine."""

from typing import Any

import httpx
import ollama as library
import pytest

from fakes.both import MESSAGES, Both
from fakes.ollama import MODEL

pytestmark = pytest.mark.engine

OPTIONS = {"num_predict": 12, "temperature": 0, "seed": 1}


@pytest.mark.parametrize("stream", [False, True])
def test_chat(ollama: Both, stream: bool) -> None:
    def ask(url: str) -> str:
        with library.Client(host=url) as client:
            given: Any = {"model": MODEL, "messages": MESSAGES, "options": OPTIONS}
            answer: Any = client.chat(**given, stream=stream)
            parts = list(answer) if stream else [answer]
        assert parts[-1].done
        assert parts[-1].eval_count > 0
        return "".join(part.message.content for part in parts)

    assert ollama.same(ask)


def test_generate_is_timed_by_the_engines_own_word(ollama: Both) -> None:
    with library.Client(host=ollama.proxy.url) as client:
        answer = client.generate(MODEL, "Name three colours.", options={"num_predict": 12})

    record = ollama.newest()
    assert record["upstream"]["kind"] == "ollama"
    assert record["path"] == "/api/generate"
    assert record["timing"]["source"] == "engine"
    assert record["timing"]["decode_ms"] == pytest.approx(
        (answer.eval_duration or 0) / 1e6, rel=0.03
    )
    assert record["tokens"]["completion"] == answer.eval_count


async def test_async(ollama: Both) -> None:
    async with library.AsyncClient(host=ollama.proxy.url) as client:
        parts = [part async for part in await client.chat(MODEL, MESSAGES, stream=True)]
        models = [model.model for model in (await client.list()).models]

    assert parts[-1].done
    assert models == [MODEL]


def test_show_and_running_models(ollama: Both) -> None:
    def ask(url: str) -> Any:
        with library.Client(host=url) as client:
            return client.show(MODEL).modelfile, [model.model for model in client.ps().models]

    modelfile, running = ollama.same(ask)

    assert modelfile.startswith("FROM ")
    assert running == [MODEL]


def test_a_local_page_reaches_ollama_in_spite_of_its_origin_check(ollama: Both) -> None:
    headers = {"Origin": "http://localhost:3000"}
    direct = httpx.get(f"{ollama.direct}/api/tags", headers=headers)
    relayed = httpx.get(f"{ollama.proxy.url}/api/tags", headers=headers)

    assert direct.status_code == 403
    assert relayed.status_code == 200
    assert relayed.headers["access-control-allow-origin"] == "http://localhost:3000"
