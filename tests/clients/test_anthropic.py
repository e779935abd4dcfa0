"""anthropic-sdk-python through the proxy: llama-server answers its API, too."""

from typing import Any

import anthropic
import pytest

from fakes.both import MESSAGES, Both

pytestmark = pytest.mark.engine

FIXED: Any = {
    "model": "m",
    "messages": MESSAGES,
    "max_tokens": 12,
    "extra_body": {"temperature": 0},
}


def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)


def test_message(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            answer = asked.messages.create(**FIXED)
        return answer.content, answer.stop_reason, answer.usage.output_tokens

    content, reason, count = both.same(ask)

    assert content[0].text
    assert (reason, count) == ("max_tokens", 12)
    record = both.newest()
    assert (record["path"], record["tokens"]["completion"]) == ("/v1/messages", 12)


def test_streaming_helper(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked, asked.messages.stream(**FIXED) as stream:
            return list(stream.text_stream), stream.get_final_message().content

    pieces, content = both.same(ask)

    assert "".join(pieces) == content[0].text != ""
    record = both.newest()
    assert (record["stream"], record["tokens"]["completion"]) == (True, 12)


def test_count_tokens(both: Both) -> None:
    def ask(url: str) -> int:
        with client(url) as asked:
            return asked.messages.count_tokens(model="m", messages=MESSAGES).input_tokens

    assert both.same(ask) > 0


async def test_async(both: Both) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=both.proxy.url, api_key="x", max_retries=0
    ) as asked:
        answer = await asked.messages.create(**FIXED)

    assert answer.usage.output_tokens == 12


def test_error_is_the_engines_own(both: Both) -> None:
    long: Any = [{"role": "user", "content": "word " * 5000}]

    def ask(url: str) -> Any:
        with client(url) as asked, pytest.raises(anthropic.BadRequestError) as caught:
            asked.messages.create(model="m", messages=long, max_tokens=4)
        return caught.value.body

    assert both.same(ask)
