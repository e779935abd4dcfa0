"""Recorded replies of two Ollamas through the meter: its own words come out, however cut.

0.17.4 runs models itself, 0.34.0 in a llama-server. What is expected is read from the same bytes,
by names that stand in Ollama's documentation.
"""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from fakes import recordings
from fakes.recordings import Response
from slowtok.detectors.case.case import EngineTimings, Tokens
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.call import read_call
from slowtok.proxy.stream.meter import Meter

OLD, NEW = "ollama-0.17", "ollama-0.34"
VERSIONS = (OLD, NEW)
NATIVE = ("api-chat", "api-chat-think", "api-chat-tool", "api-generate")
OPENAI = ("chat", "chat-think", "chat-tool", "completions", "responses", "messages")
REFUSED = {
    "error-bad-messages": 400, "error-no-model": 404, "error-no-model-chat": 404,
    "error-no-thinking": 400, "error-too-long": 400, "error-too-long-stream": 400,
}  # fmt: skip
NS = 1e9


def response_of(version: str, name: str) -> Response:
    return recordings.unframe(recordings.load(f"{version}.{name}"))


def said_in(response: Response) -> list[dict[str, Any]]:
    """Each object of a reply."""
    texts = [line.removeprefix(b"data: ") for line in response.body.splitlines()]
    return [orjson.loads(text) for text in texts if text.startswith(b"{")]


def ways(response: Response) -> Iterator[list[tuple[float, bytes]]]:
    yield [(response.ended_at_s, response.body)]
    yield [(at_s, bytes([byte])) for at_s, piece in response.pieces for byte in piece]
    yield list(response.pieces)


def meters(version: str, name: str) -> Iterator[Meter]:
    """Read a recording whole, byte by byte and as it came."""
    request = recordings.load(f"{version}.{name}").request
    response = response_of(version, name)
    api = find_api(request["method"], request["path"])
    assert api is not None
    for pieces in ways(response):
        meter = Meter(api, response.content_type)
        for at_s, piece in pieces:
            meter.feed(piece, at_s)
        meter.finish(response.ended_at_s)
        assert meter.parse_errors == 0
        yield meter


def seconds(end: dict[str, Any], name: str) -> float:
    return float(end[f"{name}_duration"]) / NS


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["", "-stream"])
@pytest.mark.parametrize("name", [*NATIVE, "api-generate-reload", "api-generate-cut"])
def test_its_own_api_tells_all(version: str, name: str, kind: str) -> None:
    if kind and name not in NATIVE:
        return
    end = said_in(response_of(version, name + kind))[-1]
    timings = EngineTimings(
        load_s=seconds(end, "load"),
        prefill_s=seconds(end, "prompt_eval"),
        decode_s=seconds(end, "eval"),
    )
    cached = end.get("prompt_eval_cached_count")
    assert (cached is not None) == (version == NEW)
    for meter in meters(version, name + kind):
        assert meter.reply.tokens() == Tokens(
            prompt=end["prompt_eval_count"], cached=cached, completion=end["eval_count"]
        )
        assert meter.reply.engine() == timings
        assert meter.reply.finish == end["done_reason"]
        assert meter.is_complete
        assert not meter.reply.failed


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "name",
    [*OPENAI, "responses-stream", "messages-stream", "chat-stream-usage",
     "completions-stream-usage"],
)  # fmt: skip
def test_the_other_apis_tell_counts_and_no_times(version: str, name: str) -> None:
    objects = [said.get("response", said) for said in said_in(response_of(version, name))]
    usage = [said["usage"] for said in objects if said.get("usage")][-1]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    read = usage.get("cache_read_input_tokens")
    cached = details.get("cached_tokens", read)
    prompt = usage.get("prompt_tokens", usage.get("input_tokens")) + (read or 0)
    completion = usage.get("completion_tokens", usage.get("output_tokens"))
    for meter in meters(version, name):
        tokens = Tokens(prompt=prompt, cached=cached, completion=completion)
        assert meter.reply.tokens() == tokens
        assert meter.reply.engine() is None
        assert meter.is_complete


def test_a_zero_of_an_old_responses_is_none() -> None:
    """The same prompt for the second time: its chat says nothing, its Responses zero."""
    for name in ("responses", "responses-stream"):
        for meter in meters(OLD, name):
            assert meter.reply.cached_tokens == 0
    assert all(m.reply.cached_tokens == 12 for m in meters(NEW, "responses"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "name",
    [f"{name}-stream" for name in (*NATIVE, *OPENAI)]
    + ["chat-stream-usage", "completions-stream-usage"],
)
def test_a_token_is_seen_when_its_text_is_there(version: str, name: str) -> None:
    """The head comes with the first token, which is the first read."""
    response = response_of(version, name)
    *_, meter = meters(version, name)

    assert meter.first_at_s == response.pieces[0][0] >= response.headers_at_s
    assert meter.last_at_s is not None
    assert meter.first_at_s <= meter.last_at_s <= response.ended_at_s
    if "tool" not in name:  # held back until it is whole
        assert len(set(meter.token_at_s)) in (11, 12), "the last may be its end, without text"


def test_the_wait_for_a_place_is_in_the_total_alone() -> None:
    """Two requests at OLLAMA_NUM_PARALLEL=1; the first, of 60 tokens, began 0.3 s earlier."""
    end = said_in(response_of(NEW, "api-chat-queued-stream"))[-1]
    own_s = sum(seconds(end, name) for name in ("load", "prompt_eval", "eval"))

    assert seconds(end, "total") - own_s > 0.2
    assert seconds(end, "load") < 0.1


def test_a_prompt_is_cut_to_the_context_and_from_030_on_to_half_of_it() -> None:
    """388 tokens at num_ctx 256, of which the first 4 are kept (num_keep); nothing says so."""
    for version, left in ((OLD, 256), (NEW, 256 - (256 - 4) // 2)):
        for name in ("api-generate-cut", "api-chat-cut"):
            assert said_in(response_of(version, name))[-1]["prompt_eval_count"] == left
        assert said_in(response_of(version, "api-generate-reload"))[-1]["prompt_eval_count"] == 388


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("reason", ["load", "unload"])
def test_loading_and_unloading_generate_nothing(version: str, reason: str) -> None:
    for meter in meters(version, f"api-generate-{reason}"):
        assert meter.reply.tokens() == Tokens()
        assert (meter.reply.engine(), meter.first_at_s, meter.reply.finish) == (None, None, reason)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["api-embed", "api-embed-load", "embeddings"])
def test_embeddings_are_prefill(version: str, name: str) -> None:
    [said] = said_in(response_of(version, name))
    for meter in meters(version, name):
        assert meter.reply.tokens() == Tokens(prompt=4, completion=0)
        assert meter.first_at_s is None
        if name != "embeddings":
            total_s, load_s = seconds(said, "total"), seconds(said, "load")
            assert meter.reply.engine() == EngineTimings(load_s=load_s, prefill_s=total_s - load_s)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_failed(version: str, name: str) -> None:
    assert response_of(version, name).status == REFUSED[name]
    for meter in meters(version, name):
        assert meter.reply.failed
        assert meter.reply.tokens() == Tokens()


def test_since_034_a_model_of_words_does_not_embed() -> None:
    assert response_of(OLD, "api-embed-chat-model").status == 200
    assert response_of(NEW, "api-embed-chat-model").status == 501


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stream_whose_client_left_keeps_what_it_told(version: str) -> None:
    """It has no end, so that it cannot be unframed: its first lines are read as they came."""
    recording = recordings.load(f"{version}.api-generate-left-stream")
    api = find_api("POST", recording.request["path"])
    assert api is not None
    meter = Meter(api, "application/x-ndjson")
    for at_s, raw in recording.chunks:
        lines = [line for line in raw.splitlines(keepends=True) if line.startswith(b"{")]
        meter.feed(b"".join(lines), at_s)

    assert len(meter.token_at_s) == 3
    assert (meter.reply.finish, meter.is_complete) == (None, False)


@pytest.mark.parametrize(
    "name", [n for v in VERSIONS for n in recordings.names(f"{v}.*chat*", of=recordings.OLLAMA)]
)
def test_the_recorded_requests_can_be_read(name: str) -> None:
    request = recordings.load(name).request
    api = find_api(request["method"], request["path"])
    assert api is not None
    call = read_call(api, orjson.dumps(request["body"]))
    if name.endswith("bad-messages"):
        return

    assert call is not None
    assert call.model in ("small", "thinker", "caller", "embedder", "absent")
    assert call.stream == request["body"].get("stream", request["path"] == "/api/chat")
