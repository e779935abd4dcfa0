"""pydantic-ai through the proxy (installed by `make clients`)."""

from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from fakes.both import Both

ai = pytest.importorskip("pydantic_ai", reason="make clients installs it")
pytestmark = pytest.mark.engine

SETTINGS = {"temperature": 0, "max_tokens": 12}


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]


def agent(client: openai.AsyncOpenAI, **more: Any) -> Any:
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    model = models.OpenAIChatModel("m", provider=providers.OpenAIProvider(openai_client=client))
    return ai.Agent(model, model_settings=SETTINGS, **more)


def connected(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)


async def test_run(both: Both) -> None:
    said = []
    for url in (both.direct, both.direct, both.proxy.url):
        async with connected(url) as client:
            answer = await agent(client).run("Name three colours.")
        said.append((answer.output, answer.usage.output_tokens))

    assert said[1] == said[2]
    assert said[2][1] == 12


async def test_stream(both: Both) -> None:
    async with (
        connected(both.proxy.url) as client,
        agent(client).run_stream("Name three colours.") as stream,
    ):
        texts = [text async for text in stream.stream_text()]

    assert texts[-1]
    assert both.newest()["tokens"]["completion"] == 12


async def test_structured_output(both: Both) -> None:
    async with connected(both.proxy.url) as client:
        asked = agent(client, output_type=ai.NativeOutput(Weather))
        room = {**SETTINGS, "max_tokens": 40}
        answer = await asked.run("Which of the two cities is in Italy?", model_settings=room)

    assert isinstance(answer.output, Weather)
