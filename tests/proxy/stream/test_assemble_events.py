"""Whole messages and responses out of their events: what the client libraries make of them."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from fakes import recordings
from slowtok.proxy.stream.assemble import Assembler, MessageAssembler, Parts, Response

MESSAGES, RESPONSES = recordings.names("*messages-stream"), recordings.names("*responses-stream")
ANTHROPIC: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
OPENAI: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
START = {
    "type": "message_start",
    "message": {
        "id": "m", "type": "message", "role": "assistant", "content": [], "model": "m",
        "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 0, "cache_read_input_tokens": 4},
    },
}  # fmt: skip
END = {
    "type": "message_delta",
    "delta": {"stop_reason": "tool_use", "stop_sequence": None},
    "usage": {"output_tokens": 7},
}
STOP = {"type": "message_stop"}


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (event["type"].encode(), orjson.dumps(event))
        for event in events
    )


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **said: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **said}}


def assemble(make_parts: Callable[[], Parts], *pieces: bytes) -> Any:
    assembler = Assembler(make_parts)
    for piece in pieces:
        assembler.feed(piece)
    whole = assembler.reply()
    return None if whole is None else orjson.loads(whole)


def events_of(body: bytes) -> list[Any]:
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [orjson.loads(line) for line in lines]


def accumulated(body: bytes) -> Any:
    """What anthropic's own package makes of the same events."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for said in events_of(body):
        if said["type"] == "ping":
            continue  # the package leaves them out before this
        event = ANTHROPIC.validate_python(said)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    return snapshot.to_dict()


def plain(value: Any) -> Any:
    """Without nulls and empty lists."""
    if isinstance(value, dict):
        kept = {k: plain(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v not in (None, [])}
    return [plain(one) for one in value] if isinstance(value, list) else value


CITED = {"type": "char_location", "cited_text": "x", "document_index": 0, "start_char_index": 0,
         "end_char_index": 1, "document_title": None}  # fmt: skip
MADE = {
    "thought, text and two tools": sse(
        START,
        start(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="Hm"),
        {"type": "ping"},
        delta(0, "thinking_delta", thinking=", so"),
        delta(0, "signature_delta", signature="abc"),
        {"type": "content_block_stop", "index": 0},
        start(1, type="text", text=""),
        delta(1, "text_delta", text="åß"),
        delta(1, "text_delta", text="水🎉"),
        {"type": "content_block_stop", "index": 1},
        start(2, type="tool_use", id="a", name="f", input={}),
        delta(2, "input_json_delta", partial_json=""),
        delta(2, "input_json_delta", partial_json='{"x": ["a'),
        delta(2, "input_json_delta", partial_json='", 1]}'),
        {"type": "content_block_stop", "index": 2},
        start(3, type="tool_use", id="b", name="g", input={}),
        {"type": "content_block_stop", "index": 3},
        END,
        STOP,
    ),
    "citations": sse(
        START,
        start(0, type="text", text=""),
        delta(0, "text_delta", text="x"),
        delta(0, "citations_delta", citation=CITED),
        delta(0, "citations_delta", citation={**CITED, "end_char_index": 2}),
        END,
        STOP,
    ),
    "counts that the end corrects": sse(
        START,
        start(0, type="text", text="a"),
        delta(0, "text_delta", text="b"),
        {**END, "usage": {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 8}},
        STOP,
    ),
    "a refusal": sse(
        START,
        {**END, "delta": {"stop_reason": "refusal", "stop_sequence": None}},
        STOP,
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_recorded_messages_are_what_anthropics_package_makes_of_them(name: str) -> None:
    body = recordings.unframe(recordings.load(name)).body
    whole = assemble(MessageAssembler, body)

    assert plain(whole) == plain(accumulated(body))
    assert whole["usage"]["output_tokens"] == 16
    AnthropicMessage.model_validate(whole)


@pytest.mark.parametrize("name", MADE)
def test_made_messages_are_what_anthropics_package_makes_of_them(name: str) -> None:
    whole = assemble(MessageAssembler, MADE[name])

    assert plain(whole) == plain(accumulated(MADE[name]))
    AnthropicMessage.model_validate(whole)


def test_fields_that_nobody_knows_stay() -> None:
    said = sse(
        {**START, "message": {**START["message"], "odd": {"a": 1}}},  # type: ignore[dict-item]
        start(0, type="text", text="", strange=[1]),
        delta(0, "text_delta", text="a", logprob=-0.5),
        {**END, "context_management": {"b": 2}},
    )

    whole = assemble(MessageAssembler, said)

    assert (whole["odd"], whole["context_management"]) == ({"a": 1}, {"b": 2})
    assert whole["content"] == [{"type": "text", "text": "a", "strange": [1], "logprob": -0.5}]


def test_a_tool_whose_input_was_cut_has_none() -> None:
    cut = sse(
        START,
        start(0, type="tool_use", id="a", name="f", input={}),
        delta(0, "input_json_delta", partial_json='{"x": '),
        {**END, "delta": {"stop_reason": "max_tokens"}},
    )

    assert assemble(MessageAssembler, cut)["content"][0]["input"] == {}


@pytest.mark.parametrize("name", RESPONSES)
def test_recorded_responses_are_what_openais_package_makes_of_them(name: str) -> None:
    body = recordings.unframe(recordings.load(name)).body
    whole = assemble(Response, body)
    said = events_of(body)

    assert whole == said[-1]["response"]
    texts = "".join(e["delta"] for e in said if e["type"] == "response.output_text.delta")
    assert OpenAIResponse.model_validate(_filled(whole)).output_text == texts
    if name.startswith("vllm"):  # llama-server's first event lacks what the package needs
        state: Any = ResponseStreamState(input_tools=[], text_format=omit)
        for event in said:
            state.handle_event(OPENAI.validate_python(event))
        snapshot = state._completed_response.to_dict()
        assert plain(snapshot["output"]) == plain(whole["output"])
        assert plain(snapshot["usage"]) == plain(whole["usage"])


def _filled(whole: dict[str, Any]) -> dict[str, Any]:
    """With what OpenAI's own replies always have, and llama-server's do not."""
    usage = {**whole["usage"], "output_tokens_details": {"reasoning_tokens": 0}}
    usage["input_tokens_details"] = {"cache_write_tokens": 0, **usage["input_tokens_details"]}
    return {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], **whole,
            "usage": usage}  # fmt: skip


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
def test_the_last_event_carries_the_response(kind: str) -> None:
    response = {"id": "r", "status": kind, "output": [{"type": "function_call", "x": 1}]}
    said = sse(
        {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
        {"type": f"response.{kind}", "response": response},
    )

    assert assemble(Response, said) == response


@pytest.mark.parametrize(
    ("make_parts", "body"),
    [
        pytest.param(MessageAssembler, b"", id="no message"),
        pytest.param(
            MessageAssembler, sse(START, start(0, type="text", text="a"), STOP), id="no reason"
        ),
        pytest.param(Response, sse({"type": "response.created", "response": {}}), id="no end"),
    ],
)
def test_what_has_no_end_is_none(make_parts: Callable[[], Parts], body: bytes) -> None:
    assert assemble(make_parts, body) is None


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
            {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
        ),
        (
            {"type": "server_error", "code": 500, "message": "x"},
            {"error": {"type": "server_error", "code": 500, "message": "x"}},
        ),
        (
            {"type": "error", "code": None, "message": "x", "sequence_number": 3},
            {"error": {"type": "error", "code": None, "message": "x", "sequence_number": 3}},
        ),
    ],
    ids=["Anthropic's", "llama-server's", "of Responses"],
)
@pytest.mark.parametrize("make_parts", [MessageAssembler, Response])
def test_an_error_is_told(
    make_parts: Callable[[], Parts], said: dict[str, Any], error: dict[str, Any]
) -> None:
    assembler = Assembler(make_parts)
    assembler.feed(sse(START, said))

    assert assembler.reply() is None
    assert assembler.error == error


@pytest.mark.parametrize("event", [delta(0, "text_delta", text="a"), {"type": "message_start"}])
def test_events_that_do_not_fit_together_raise(event: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError)):
        assemble(MessageAssembler, sse(event))


@pytest.mark.parametrize("name", [*MESSAGES, *RESPONSES])
@settings(max_examples=15)
@given(offsets=st.lists(st.integers(0, 12_000), max_size=40))
def test_in_any_pieces(name: str, offsets: list[int]) -> None:
    make_parts: Callable[[], Parts] = MessageAssembler if "messages" in name else Response
    body = recordings.unframe(recordings.load(name)).body

    assert assemble(make_parts, *recordings.cut(body, offsets)) == assemble(make_parts, body)
