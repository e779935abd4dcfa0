"""The Responses dialect, event by event, beside the recorded ones of test_recordings.py."""

from typing import Any

import pytest

from slowtok.detectors.case.case import Tokens
from slowtok.proxy.stream.dialects.responses import read
from slowtok.proxy.stream.reply import Reply

CALL = {"type": "function_call", "name": "get_weather", "arguments": "{}"}


def incomplete(details: Any) -> dict[str, Any]:
    return {"status": "incomplete", "incomplete_details": details}


def replied(*events: dict[str, Any]) -> Reply:
    reply = Reply()
    for event in events:
        read(event, reply)
    return reply


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": "response.created", "response": {"status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "item": {"type": "message", "content": []}},
        {"type": "response.output_item.added", "item": {"type": "reasoning"}},
        {"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}},
        {"type": "response.output_text.delta", "delta": ""},
        {"type": "response.output_text.done", "text": "all of it, again"},
        {"type": "response.completed", "response": {"status": "completed", "output": [CALL]}},
        {"type": "error", "message": "x"},
    ],
)
def test_no_token(event: dict[str, Any]) -> None:
    assert not read(event, Reply())


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.output_text.delta", "delta": "x"},
        {"type": "response.reasoning_text.delta", "delta": "x"},
        {"type": "response.reasoning_summary_text.delta", "delta": "x"},
        {"type": "response.refusal.delta", "delta": "x"},
        {"type": "response.function_call_arguments.delta", "delta": "{"},
        {"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}},
    ],
)
def test_a_token(event: dict[str, Any]) -> None:
    assert read(event, Reply())


@pytest.mark.parametrize(
    ("response", "finish"),
    [
        ({"status": "in_progress"}, None),
        ({"status": "completed"}, "stop"),
        ({"status": "completed", "output": [CALL]}, "tool_calls"),
        (incomplete({"reason": "max_output_tokens"}), "length"),
        (incomplete({"reason": "content_filter"}), "content_filter"),
        (incomplete(None), "incomplete"),
        ({"status": "failed", "error": {"message": "x"}}, None),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_how_it_ended(response: dict[str, Any], finish: str | None, whole: bool) -> None:
    kind = f"response.{response['status']}"
    reply = replied(response if whole else {"type": kind, "response": response})

    assert reply.finish == finish
    assert reply.failed == (response["status"] == "failed")


@pytest.mark.parametrize(
    "event", [{"type": "error", "message": "x"}, {"error": {"code": 500, "message": "x"}}]
)
def test_an_error_event_has_failed(event: dict[str, Any]) -> None:
    assert replied(event).failed


def test_usage_without_details_does_not_know_the_cache() -> None:
    reply = replied({"status": "completed", "usage": {"input_tokens": 9, "output_tokens": 2}})

    assert reply.tokens() == Tokens(prompt=9, completion=2)
