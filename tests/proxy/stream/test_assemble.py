"""A whole reply out of a stream: the same as openai-python's own accumulator makes of it."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion

from fakes import recordings
from slowtok.proxy.stream.assemble import Assembler, Chunks, ask_for_stream

CHATS = [name for name in recordings.names("*chat-stream*") if name != "vllm-0.32.chat-stream-tool"]
# Its reports of progress repeat the role, which openai-python strings together.
COMPARED = [name for name in CHATS if "progress" not in name]
TEXTS = recordings.names("*completions-stream*")
HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def chunk(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**HEAD, "choices": list(choices), **more}


def delta(index: int = 0, finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"index": index, "delta": said, "finish_reason": finish}


def call(index: int | None, **said: Any) -> dict[str, Any]:
    return {"index": index, **said} if index is not None else said


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)


def assemble(*pieces: bytes) -> dict[str, Any] | None:
    assembler = Assembler(Chunks)
    for piece in pieces:
        assembler.feed(piece)
    whole = assembler.reply()
    return None if whole is None else orjson.loads(whole)


def accumulated(body: bytes) -> ChatCompletion:
    """What openai-python makes of the same stream."""
    state = ChatCompletionStreamState()
    for event in body.split(b"\n\n"):
        said = event.removeprefix(b"data: ")
        if said.startswith(b"{"):
            state.handle_chunk(ChatCompletionChunk.model_validate(orjson.loads(said)))
    return state.current_completion_snapshot


def plain(value: Any) -> Any:
    """Without nulls, empty lists, and what openai-python adds."""
    if isinstance(value, dict):
        own = ("parsed", "parsed_arguments", *(("index",) if "function" in value else ()))
        kept = {k: plain(v) for k, v in value.items() if k not in own}
        return {k: v for k, v in kept.items() if v not in (None, [], {})}
    return [plain(one) for one in value] if isinstance(value, list) else value


MADE = {
    "tool calls in parallel": sse(
        chunk(delta(role="assistant", content=None)),
        chunk(delta(tool_calls=[call(0, id="a", type="function", function={"name": "f"})])),
        chunk(delta(tool_calls=[call(0, function={"arguments": '{"x"'})])),
        chunk(
            delta(
                tool_calls=[
                    call(1, id="b", type="function", function={"name": "g", "arguments": ""}),
                    call(0, function={"arguments": ": 1}"}),
                ]
            )
        ),
        chunk(delta(tool_calls=[call(1, function={"arguments": "{}"})])),
        chunk(delta(finish="tool_calls")),
    ),
    "a refusal": sse(
        chunk(delta(role="assistant", content=None)),
        chunk(delta(refusal="I can")),
        chunk(delta(refusal="not.")),
        chunk(delta(finish="stop")),
    ),
    "reasoning, first llama-server's, then vLLM's": sse(
        chunk(delta(role="assistant", reasoning_content="H")),
        chunk(delta(reasoning_content="m")),
        chunk(delta(reasoning="so")),
        chunk(delta(reasoning=" so")),
        chunk(delta(content="Red")),
        chunk(delta(content=".", finish="stop")),
    ),
    "two answers, interleaved": sse(
        chunk(delta(0, role="assistant", content="a")),
        chunk(delta(1, role="assistant", content="b")),
        chunk(delta(1, content="B", finish="length")),
        chunk(delta(0, content="A")),
        chunk(delta(0, finish="stop")),
    ),
    "logprobs": sse(
        chunk(
            {
                **delta(role="assistant", content="a"),
                "logprobs": {
                    "content": [{"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}],
                    "refusal": None,
                },
            }
        ),
        chunk(
            {
                **delta(content="bc", finish="stop"),
                "logprobs": {
                    "content": [
                        {"token": "b", "logprob": -0.2, "bytes": [98], "top_logprobs": []},
                        {"token": "c", "logprob": -0.3, "bytes": [99], "top_logprobs": []},
                    ],
                    "refusal": None,
                },
            }
        ),
    ),
    "usage and a fingerprint": sse(
        chunk(delta(role="assistant", content="a"), system_fingerprint="fp"),
        chunk(delta(finish="stop"), system_fingerprint="fp"),
        chunk(
            system_fingerprint="fp",
            usage={"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
        ),
    ),
}


@pytest.mark.parametrize("name", COMPARED)
def test_recorded_chats_are_what_openai_python_makes_of_them(name: str) -> None:
    body = recordings.unframe(recordings.load(name)).body
    whole = assemble(body)
    expected = accumulated(body).model_dump()
    last = [orjson.loads(e[6:]) for e in body.split(b"\n\n") if e.startswith(b"data: {")][-1]
    assert whole is not None

    assert plain(whole["choices"]) == plain(expected["choices"])
    assert (whole["id"], whole["model"], whole["object"]) == (
        last["id"],
        last["model"],
        "chat.completion",
    )
    for name_of_extra in ("timings", "metrics", "system_fingerprint"):
        assert whole.get(name_of_extra) == last.get(name_of_extra, whole.get(name_of_extra))
    ChatCompletion.model_validate(whole)


@pytest.mark.parametrize("name", [name for name in CHATS if "usage" in name or "long" in name])
def test_usage_is_the_streams(name: str) -> None:
    body = recordings.unframe(recordings.load(name)).body
    whole = assemble(body)

    assert whole is not None
    assert plain(whole["usage"]) == plain(accumulated(body).model_dump()["usage"])


def test_llama_server_counts_each_of_two_answers_on_its_own() -> None:
    whole = assemble(
        recordings.unframe(recordings.load("llama-server-2026.10.chat-stream-n2")).body
    )

    assert whole is not None
    assert whole["usage"]["prompt_tokens"] == 34
    assert whole["usage"]["completion_tokens"] == 16
    assert whole["usage"]["total_tokens"] == 50


@pytest.mark.parametrize("name", MADE)
def test_made_chats_are_what_openai_python_makes_of_them(name: str) -> None:
    whole = assemble(MADE[name])

    assert plain(whole) == plain(accumulated(MADE[name]).model_dump())
    assert whole is not None
    ChatCompletion.model_validate(whole)


@pytest.mark.parametrize("name", [*CHATS, *TEXTS])
@settings(max_examples=15)
@given(offsets=st.lists(st.integers(0, 12_000), max_size=40))
def test_in_any_pieces(name: str, offsets: list[int]) -> None:
    body = recordings.unframe(recordings.load(name)).body

    assert assemble(*recordings.cut(body, offsets)) == assemble(body)


@pytest.mark.parametrize("name", TEXTS)
def test_recorded_texts(name: str) -> None:
    body = recordings.unframe(recordings.load(name)).body
    said = [orjson.loads(e[6:]) for e in body.split(b"\n\n") if e.startswith(b"data: {")]

    whole = assemble(body)

    read = Completion.model_validate(whole)
    assert read.choices[0].text == "".join(s["choices"][0]["text"] for s in said if s["choices"])
    assert read.choices[0].finish_reason == "length"
    assert read.usage is not None
    assert read.usage.completion_tokens == 8
    assert read.object == "text_completion"


def test_unknown_fields_stay() -> None:
    whole = assemble(
        sse(
            chunk({**delta(role="assistant", content="a", audio={"id": "x", "data": "AA"}),
                   "token_ids": [1]}, prompt_token_ids=[7, 8]),
            chunk({**delta(content="b", audio={"data": "BB"}), "token_ids": [2]}),
            chunk({**delta(finish="stop"), "stop_reason": 13}, kv_transfer_params={"k": 1}),
        )
    )  # fmt: skip

    assert whole is not None
    assert (whole["prompt_token_ids"], whole["kv_transfer_params"]) == ([7, 8], {"k": 1})
    [choice] = whole["choices"]
    assert (choice["token_ids"], choice["stop_reason"]) == ([1, 2], 13)
    assert choice["message"]["audio"] == {"id": "x", "data": "AABB"}


def test_lists_of_unknown_fields_are_strung_together() -> None:
    """As OpenRouter sends thoughts."""
    one, other = {"type": "reasoning.text", "text": "a"}, {"type": "reasoning.text", "text": "b"}
    whole = assemble(
        sse(
            chunk(delta(role="assistant", reasoning_details=[one])),
            chunk(delta(reasoning_details=[other])),
            chunk(delta(finish="stop")),
        )
    )

    assert whole is not None
    assert whole["choices"][0]["message"]["reasoning_details"] == [one, other]


@pytest.mark.parametrize("index", [True, False])
def test_servers_that_name_the_call_again_and_again_or_never_number_it(index: bool) -> None:
    def piece(number: int, name: str, arguments: str) -> dict[str, Any]:
        said = {"id": f"c{number}", "function": {"name": name, "arguments": arguments}}
        return delta(tool_calls=[call(number if index else None, **said)])

    whole = assemble(
        sse(
            chunk(piece(0, "f", "{}")),
            chunk(piece(1, "g", "{")),
            *([chunk(piece(1, "g", "}"))] if index else [chunk(delta(tool_calls=[
                {"function": {"arguments": "}"}}]))]),
            chunk(delta(finish="tool_calls")),
        )
    )  # fmt: skip

    assert whole is not None
    calls = whole["choices"][0]["message"]["tool_calls"]
    assert [(c["id"], c["function"]) for c in calls] == [
        ("c0", {"name": "f", "arguments": "{}"}),
        ("c1", {"name": "g", "arguments": "{}"}),
    ]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"data: [DONE]\n\n", id="no answer"),
        pytest.param(sse(chunk(delta(content="a"))), id="it ended before its answer"),
        pytest.param(sse(chunk(delta(0, "stop"), delta(1, content="b"))), id="one of two did"),
    ],
)
def test_an_answer_without_an_end_is_none(body: bytes) -> None:
    assert assemble(body) is None


def test_an_error_is_told() -> None:
    assembler = Assembler(Chunks)
    error = {"message": "out of memory", "code": 500}
    assembler.feed(sse(chunk(delta(content="a")), {"error": error}) + b"data: [DONE]\n\n")

    assert assembler.reply() is None
    assert assembler.error == {"error": error}


@pytest.mark.parametrize("event", [b"data: nothing\n\n", b"data: [1]\n\n"])
def test_what_is_no_chunk_cannot_be_put_together(event: bytes) -> None:
    with pytest.raises(ValueError, match=r"no object|unexpected character|invalid"):
        assemble(event)


@pytest.mark.parametrize(
    "said",
    [
        {"stream": True},
        {"stream_options": {}},
        {"best_of": 2},
        {"prompt_logprobs": 1},
        {"use_beam_search": True},
        {"echo": True},
        {"background": True},
    ],
)
def test_what_only_a_whole_reply_can_give_is_asked_for_as_it_is(said: dict[str, Any]) -> None:
    assert ask_for_stream(said, stream_options=True) is None


def test_the_same_is_asked_for_as_a_stream_with_usage() -> None:
    said = {"model": "m", "messages": [], "n": 2, "stream": False}

    asked = ask_for_stream(said, stream_options=True)

    assert asked is not None
    assert orjson.loads(asked) == {
        **said, "stream": True, "stream_options": {"include_usage": True}
    }  # fmt: skip
