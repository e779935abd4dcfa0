"""The OpenAI dialect, event by event."""

from typing import Any

import pytest

from slowtok.detectors.case.case import EngineTimings, Tokens
from slowtok.proxy.stream.dialects.openai import read
from slowtok.proxy.stream.reply import Reply


def replied(*events: dict[str, Any]) -> Reply:
    reply = Reply()
    for event in events:
        read(event, reply)
    return reply


def chunk(index: int = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": "x"}}], **more}


def timings(**changes: Any) -> dict[str, Any]:
    known = {"cache_n": 4, "prompt_n": 6, "prompt_ms": 30.0, "predicted_n": 8, "predicted_ms": 70.0}
    return {**known, **changes}


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"choices": []},
        {"choices": [{"index": 0}]},
        {"choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"index": 0, "delta": {"content": "", "tool_calls": [], "reasoning": ""}}]},
        {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"error": {"code": 500, "message": "x", "type": "server_error"}},
    ],
)
def test_no_token(event: dict[str, Any]) -> None:
    assert read(event, Reply()) is False


@pytest.mark.parametrize(
    "choice",
    [
        {"text": "x"},
        {"delta": {"content": "x"}},
        {"delta": {"content": "x"}, "finish_reason": "length"},
        {"delta": {"reasoning": "x"}},
        {"delta": {"reasoning_content": "x"}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}},
        {"message": {"role": "assistant", "content": "x"}},
    ],
)
def test_a_token(choice: dict[str, Any]) -> None:
    assert read({"choices": [{"index": 0, **choice}]}, Reply()) is True
    assert read({"choices": [{"index": 0}, {"index": 1, **choice}]}, Reply()) is True


def test_an_error_event_has_failed() -> None:
    reply = replied(chunk(), {"error": {"message": "x", "type": "server_error"}})

    assert reply.failed
    assert reply.finish is None
    assert not replied(chunk(error=None)).failed


def test_the_last_reason_stands_and_names_are_kept() -> None:
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    reply = replied(
        chunk(model="m", system_fingerprint="b9"), end, {"choices": [], "model": "other"}
    )

    assert (reply.finish, reply.model, reply.fingerprint) == ("tool_calls", "m", "b9")


def test_usage_without_details_does_not_know_the_cache() -> None:
    reply = replied({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}})

    assert reply.tokens() == Tokens(prompt=9, cached=None, completion=3)
    assert reply.engine() is None


def test_running_usage_ends_with_the_last() -> None:
    usages = [{"prompt_tokens": 9, "completion_tokens": n} for n in range(4)]

    assert replied(*(chunk(usage=usage) for usage in usages)).tokens().completion == 3


def test_timings_count_cached_tokens_too() -> None:
    reply = replied(chunk(timings=timings()))

    assert reply.tokens() == Tokens(prompt=10, cached=4, completion=8)
    assert reply.engine() == EngineTimings(prefill_s=0.03, decode_s=0.07)


def test_timings_win_over_usage() -> None:
    """Usage leaves out hidden tokens that the engine has computed."""
    usage = {"prompt_tokens": 9, "completion_tokens": 3}

    assert replied(chunk(usage=usage, timings=timings())).tokens().completion == 8
    assert replied(chunk(timings=timings()), {"usage": usage}).tokens().completion == 8


@pytest.mark.parametrize("missing", ["prompt_n", "prompt_ms", "predicted_n", "predicted_ms"])
def test_timings_with_a_hole_are_none(missing: str) -> None:
    assert replied(chunk(timings=timings(**{missing: None}))).engine() is None


def test_timings_per_token_end_with_the_last() -> None:
    events = [chunk(timings=timings(predicted_n=n, predicted_ms=10.0 * n)) for n in range(1, 6)]

    assert replied(*events).tokens().completion == 5
    assert replied(*events).engine() == EngineTimings(prefill_s=0.03, decode_s=0.05)


def test_a_progress_report_has_no_timings_of_the_reply() -> None:
    report = {"total": 36, "cache": 0, "processed": 10, "time_ms": 3}

    assert replied(chunk(prompt_progress=report, timings=timings())).engine() is None


def test_answers_side_by_side() -> None:
    """llama-server: each answer ends with its own timings, on a chunk that names no choice."""
    events: list[dict[str, Any]] = []
    for index, decode_ms in ((1, 90.0), (0, 80.0)):
        events.append({"choices": [{"index": index, "delta": {}, "finish_reason": "length"}]})
        events.append({"choices": [], "timings": timings(predicted_ms=decode_ms, draft_n=5)})
    reply = replied(chunk(0), chunk(1), *events)

    assert reply.choices == 2
    assert reply.tokens() == Tokens(prompt=10, cached=4, completion=16, drafted=10)
    assert reply.engine() == EngineTimings(prefill_s=0.03, decode_s=0.09)


def test_counts_of_one_answer_are_not_taken_for_both() -> None:
    """llama-server counts the first answer of a whole reply only."""
    both = [{"index": i, "message": {"content": "x"}, "finish_reason": "stop"} for i in (0, 1)]

    assert replied({"choices": both, "timings": timings()}).choices == 1
    assert replied({"choices": both, "timings": timings()}).tokens().completion == 8
    assert replied({"choices": both}).choices == 2


def test_answers_of_which_one_has_ended_when_the_stream_is_cut() -> None:
    end = {"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}], "timings": timings()}
    reply = replied(chunk(0), chunk(1), end, chunk(0))

    assert (reply.choices, reply.tokens().completion) == (1, 8)


def test_metrics_of_vllm() -> None:
    metrics = {"time_to_first_token_ms": 30.0, "generation_time_ms": 240.0, "queue_time_ms": 0.5}
    usage = {"prompt_tokens": 9, "completion_tokens": 16}
    reply = replied(chunk(), {"choices": [], "usage": usage, "metrics": metrics})

    assert reply.engine() == EngineTimings(queue_s=0.0005, prefill_s=0.03, decode_s=0.24)
    assert replied(chunk(metrics=None)).engine() is None
