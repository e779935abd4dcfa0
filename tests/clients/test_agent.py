"""An agent with tools over fourteen turns: what the prompt cache gave is seen at each one."""

import time
from typing import Any

import openai
import pytest

from fakes.both import WEATHER, Both

pytestmark = pytest.mark.engine

TURNS, CLOCK_FROM = 14, 12  # from there on a clock stands at the begin of the prompt
RULES = " ".join(f"Rule {i}: answer question {i} shortly and kindly." for i in range(25))
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]


def turn(number: int, answer: str) -> list[dict[str, Any]]:
    """What one turn adds: the answer, a call of a tool, its result, the next question."""
    function = {"name": "weather", "arguments": '{"city":"Rome"}'}
    call = {"id": f"call-{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": answer, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call-{number}", "content": f"{number} degrees"},
        {"role": "user", "content": f"And on day {number}?"},
    ]


def test_fourteen_turns(both: Both) -> None:
    begun = time.strftime("%H:%M:%S")  # an engine may know the prompts of an earlier run
    said: list[dict[str, Any]] = [{"role": "user", "content": "How is the weather?"}]
    records = []
    with openai.OpenAI(base_url=f"{both.proxy.url}/v1", api_key="x", max_retries=0) as client:
        for number in range(1, TURNS + 1):
            clock = f"It is {begun}.{number:02}. " if number >= CLOCK_FROM else ""
            messages: Any = [{"role": "system", "content": clock + RULES}, *said]
            raw = client.chat.completions.with_raw_response.create(
                model="m", messages=messages, tools=TOOLS, max_tokens=4, temperature=0
            )
            answer = raw.parse().choices[0].message.content or ""
            records.append(both.proxy.record(raw.headers["slowtok-id"]))
            said += turn(number, answer)

    steady, clocked = records[1 : CLOCK_FROM - 1], records[CLOCK_FROM - 1 :]
    for before, record in zip(records, steady, strict=False):
        tokens = record["tokens"]
        assert tokens["cached"] >= 0.9 * before["tokens"]["prompt"], "all but the newest turn"
        assert "prompt-cache-miss" not in causes(record)
    for record in clocked:
        assert record["tokens"]["cached"] < 0.1 * record["tokens"]["prompt"]
        assert "prompt-cache-miss" in causes(record), record["verdict"]
    for record in clocked[1:]:
        assert "a date or time changes" in causes(record)["prompt-cache-miss"]


def causes(record: dict[str, Any]) -> dict[str, str]:
    return {f["cause"]: f["summary"] for f in record["findings"]}
