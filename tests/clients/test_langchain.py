"""langchain-openai through the proxy (installed by `make clients`)."""

from typing import Any

import pytest

from fakes.both import WEATHER, Both

langchain_openai = pytest.importorskip("langchain_openai", reason="make clients installs it")
pytestmark = pytest.mark.engine


def model(url: str, *, tokens: int = 12) -> Any:
    return langchain_openai.ChatOpenAI(
        base_url=f"{url}/v1",
        api_key="x",
        model="m",
        temperature=0,
        max_tokens=tokens,
        max_retries=0,
    )


def test_invoke(both: Both) -> None:
    def ask(url: str) -> Any:
        answer = model(url).invoke("Name three colours.")
        return answer.content, answer.usage_metadata["output_tokens"]

    content, tokens = both.same(ask)

    assert content
    assert tokens == 12


def test_stream(both: Both) -> None:
    def ask(url: str) -> list[str]:
        return [str(piece.content) for piece in model(url).stream("Name three colours.")]

    assert "".join(both.same(ask))
    assert both.newest()["tokens"]["completion"] == 12


async def test_async_batch(both: Both) -> None:
    answers = await model(both.proxy.url).abatch(["Name a colour.", "Name a city."])

    assert all(answer.content for answer in answers)


def test_structured_output(both: Both) -> None:
    schema = {**WEATHER, "title": "weather", "description": "of a city"}

    def ask(url: str) -> Any:
        structured = model(url, tokens=40).with_structured_output(schema, method="json_schema")
        return structured.invoke("Which of the two cities is in Italy?")

    assert both.same(ask)["city"] in ("Paris", "Rome")
