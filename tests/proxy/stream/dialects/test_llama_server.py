"""llama-server's own dialect, event by event, beside the recorded ones of test_recordings.py."""

from typing import Any

import orjson
import pytest

from slowtok.detectors.case.case import Tokens
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.dialects.llama_server import read
from slowtok.proxy.stream.meter import Meter
from slowtok.proxy.stream.reply import Reply

TIMINGS = {"cache_n": 1, "prompt_n": 3, "prompt_ms": 30.0, "predicted_n": 5, "predicted_ms": 80.0}


def end(**more: Any) -> dict[str, Any]:
    counts = {"tokens_evaluated": 4, "tokens_predicted": 5}
    return {"index": 0, "content": "", "stop": True, "stop_type": "limit", **counts, **more}


@pytest.mark.parametrize(
    ("event", "carried"),
    [
        ({"content": "x", "stop": False}, True),
        ({"content": "", "stop": False, "tokens": [1]}, False),
        (end(), False),
        ({"prompt_progress": {"total": 9}, "timings": TIMINGS}, False),
        ({"error": {"code": 500, "message": "x"}}, False),
    ],
)
def test_first_token(event: dict[str, Any], carried: bool) -> None:
    assert read(event, Reply()) is carried


@pytest.mark.parametrize(
    ("stop_type", "finish"),
    [("eos", "stop"), ("word", "stop"), ("limit", "length"), ("none", "none"), (None, "stop")],
)
def test_how_it_ended(stop_type: str | None, finish: str) -> None:
    reply = Reply()

    read({"content": "x", "stop": False}, reply)
    read(end(stop_type=stop_type), reply)

    assert (reply.finish, reply.failed) == (finish, False)


def test_timings_win_and_those_of_progress_do_not_count() -> None:
    reply = Reply()
    read({"prompt_progress": {"total": 9}, "timings": TIMINGS}, reply)
    assert reply.engine() is None
    read(end(), reply)
    assert reply.tokens() == Tokens(prompt=4, completion=5)

    read(end(timings=TIMINGS), reply)

    assert reply.tokens() == Tokens(prompt=4, cached=1, completion=5)


def test_several_prompts_are_answered_with_a_list() -> None:
    api = find_api("POST", "/completion")
    assert api is not None
    meter = Meter(api, "application/json")
    meter.feed(orjson.dumps([end(timings=TIMINGS), end(index=1, timings=TIMINGS)]), 1.0)
    meter.finish(1.0)

    assert meter.reply.choices == 2
    assert meter.reply.tokens().completion == 10
    assert meter.parse_errors == 0
