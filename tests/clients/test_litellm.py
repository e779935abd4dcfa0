"""litellm through the proxy (installed by `make clients`)."""

from importlib.util import find_spec
from typing import Any

import pytest

from fakes.both import MESSAGES, Both

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("litellm") is None, reason="make clients installs it"),
    pytest.mark.filterwarnings("default"),  # its own code, and what it does with pydantic
]


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it fetches one at import
    return pytest.importorskip("litellm")


def asked(url: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "openai/m",
        "api_base": f"{url}/v1",
        "api_key": "x",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 12,
        "num_retries": 0,
        **more,
    }


def test_completion(litellm: Any, both: Both) -> None:
    def ask(url: str) -> Any:
        answer = litellm.completion(**asked(url))
        return answer.choices[0].message.content, answer.usage.completion_tokens

    content, tokens = both.same(ask)

    assert content
    assert tokens == 12


def test_stream(litellm: Any, both: Both) -> None:
    def ask(url: str) -> list[str]:
        chunks = litellm.completion(**asked(url, stream=True))
        return [chunk.choices[0].delta.content or "" for chunk in chunks]

    assert "".join(both.same(ask))
    assert both.newest()["tokens"]["completion"] == 12


async def test_async(litellm: Any, both: Both) -> None:
    answer = await litellm.acompletion(**asked(both.proxy.url))

    assert answer.choices[0].finish_reason == "length"
