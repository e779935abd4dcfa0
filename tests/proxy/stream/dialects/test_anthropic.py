"""Anthropic's dialect, event by event, beside the recorded ones of test_recordings.py."""

from typing import Any

import pytest

from slowtok.detectors.case.case import Tokens
from slowtok.proxy.stream.dialects.anthropic import read
from slowtok.proxy.stream.reply import Reply


def replied(*events: dict[str, Any]) -> Reply:
    reply = Reply()
    for event in events:
        read(event, reply)
    return reply


def start(**usage: int) -> dict[str, Any]:
    return {"type": "message_start", "message": {"model": "m", "content": [], "usage": usage}}


def end(reason: str = "end_turn", **usage: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


@pytest.mark.parametrize(
    "event",
    [
        {"type": "ping"},
        start(input_tokens=3),
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}},
        {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "x"}},
        {"type": "content_block_stop", "index": 0},
        end(),
        {"type": "message_stop"},
        {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
    ],
)
def test_no_token(event: dict[str, Any]) -> None:
    assert not read(event, Reply())


@pytest.mark.parametrize(
    "event",
    [
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "x"}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}},
        {"type": "message", "content": [{"type": "text", "text": "x"}]},
    ],
)
def test_a_token(event: dict[str, Any]) -> None:
    assert read(event, Reply())


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "refusal"),
    ],
)
def test_reasons_in_the_words_of_the_other_apis(reason: str, finish: str) -> None:
    whole = {"type": "message", "content": [], "stop_reason": reason}

    assert replied(start(), end(reason)).finish == finish
    assert replied(whole).finish == finish
    assert replied(start()).finish is None


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "error": {"type": "api_error", "message": "x"}},
        {"code": 500, "message": "x", "type": "server_error"},  # llama-server's bare one
        {"error": {"code": 400, "message": "x"}},
    ],
)
def test_an_error_has_failed(event: dict[str, Any]) -> None:
    assert replied(start(input_tokens=1), event).failed
    assert not replied(start(input_tokens=1), end(output_tokens=1)).failed


@pytest.mark.parametrize(
    ("events", "tokens"),
    [
        pytest.param([start(input_tokens=9)], Tokens(), id="Ollama guesses at first"),
        pytest.param(
            [start(input_tokens=9), end(input_tokens=34, output_tokens=5)],
            Tokens(prompt=34, completion=5),
            id="and counts at last",
        ),
        pytest.param(
            [start(input_tokens=1, cache_read_input_tokens=33), end(output_tokens=5)],
            Tokens(prompt=34, cached=33, completion=5),
            id="llama-server counts the prompt at first",
        ),
        pytest.param(
            [
                {
                    "type": "message",
                    "content": [],
                    "usage": {
                        "input_tokens": 1,
                        "cache_read_input_tokens": 20,
                        "cache_creation_input_tokens": 13,
                        "output_tokens": 5,
                    },
                }
            ],
            Tokens(prompt=34, cached=20, completion=5),
            id="what is stored in the cache was computed",
        ),
    ],
)
def test_counts(events: list[dict[str, Any]], tokens: Tokens) -> None:
    assert replied(*events).tokens() == tokens
