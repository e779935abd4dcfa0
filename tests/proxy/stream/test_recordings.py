"""Recorded replies through the meter: the engines' own numbers come out, however bytes are cut.

The expected numbers stand in the recordings' `timings`, `metrics` and `usage`. Ollama's recordings
are in `test_recorded_ollama.py`.
"""

from collections.abc import Iterable

import orjson
import pytest

from fakes import recordings
from fakes.recordings import Response
from slowtok.detectors.case.case import EngineTimings, Tokens
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.call import read_call
from slowtok.proxy.stream.meter import Meter

LLAMA, VLLM = "llama-server-2026.10", "vllm-0.32"
NAMES = recordings.names("llama-server-*") + recordings.names("vllm-*")


def counts(prompt: int, cached: int, completion: int) -> Tokens:
    return Tokens(prompt=prompt, cached=cached, completion=completion)


def ms(prefill: float, decode: float, queue: float | None = None) -> EngineTimings:
    return EngineTimings(
        prefill_s=prefill / 1000,
        decode_s=decode / 1000,
        queue_s=None if queue is None else queue / 1000,
    )


STREAMS = {  # counts, engine's timings, choices, first and last token, reads with tokens
    f"{LLAMA}.chat-stream": (counts(34, 24, 16), ms(303.354, 259.844), 1, 0.312242, 0.572043, 16),
    f"{LLAMA}.chat-stream-usage": (
        counts(34, 33, 16), ms(9.92, 136.023), 1, 0.011425, 0.147387, 16,
    ),
    f"{LLAMA}.chat-stream-long-prompt": (
        counts(571, 24, 8), ms(5907.497, 17941.636), 1, 5.918185, 23.857144, 8,
    ),
    f"{LLAMA}.chat-stream-logprobs": (
        counts(34, 33, 3), ms(2593.22, 4967.008), 1, 2.595053, 7.562983, 3,
    ),
    f"{LLAMA}.chat-stream-tool": (
        counts(34, 24, 48), ms(2600.238, 6873.867), 1, 2.603337, 9.475437, 48,
    ),
    f"{LLAMA}.chat-stream-progress": (
        counts(36, 26, 8), ms(957.667, 537.264), 1, 0.95911, 1.496541, 8,
    ),
    f"{LLAMA}.chat-stream-n2": (
        counts(34, 33, 16), ms(2348.391, 17771.93), 2, 2.349856, 20.121867, 12,
    ),
    f"{LLAMA}.completions-stream": (counts(2, 1, 8), ms(22.367, 434.042), 1, 0.02577, 0.457425, 8),
    f"{VLLM}.chat-stream": (Tokens(), None, 1, 0.083924, 0.350327, 16),
    f"{VLLM}.chat-stream-usage": (
        counts(34, 0, 16),
        ms(30.628409000200918, 244.63728399996398, 0.010865999684028793),
        1, 0.037185, 0.279055, 16,
    ),
    f"{VLLM}.chat-stream-long-prompt": (
        counts(571, 0, 8),
        ms(341.49221799998486, 121.28108100023383, 0.013419999959296547),
        1, 0.348397, 0.46745, 8,
    ),
    f"{VLLM}.chat-stream-logprobs": (Tokens(), None, 1, 11.111553, 11.112288, 2),
    f"{VLLM}.chat-stream-n2": (counts(34, 0, 16), None, 2, 0.054716, 0.172231, 16),
    f"{VLLM}.chat-stream-tool-call": (  # held back until its name is known
        Tokens(prompt=37, completion=48), None, 1, 0.400286, 0.637494, 4,
    ),
    f"{VLLM}.completions-stream": (
        counts(2, 0, 8),
        ms(15.268351000031544, 100.97107899991897, 0.011627000276348554),
        1, 0.017594, 0.118668, 8,
    ),
    f"{LLAMA}.completion-stream": (
        counts(4, 3, 12), ms(51.24, 2167.997), 1, 0.071313, 2.227589, 12,
    ),
    f"{LLAMA}.responses-stream": (
        counts(34, 33, 16), ms(7.547, 687.656), 1, 0.008776, 0.696419, 16,
    ),
    f"{VLLM}.responses-stream": (
        counts(34, 0, 10),
        ms(31.601168000179314, 136.57494399967618, 0.009545000011712546),
        1, 0.051801, 0.161142, 9,  # its last token shows nowhere
    ),
    f"{LLAMA}.messages-stream": (counts(34, 33, 16), None, 1, 0.007327, 0.106423, 16),
    f"{VLLM}.messages-stream": (counts(34, 0, 16), None, 1, 0.034546, 0.259539, 16),
}  # fmt: skip
HIDDEN_END = f"{VLLM}.responses-stream"
SAYS_DONE = [name for name in STREAMS if ".chat" in name or ".completions" in name]  # [DONE]

WHOLE = {  # counts, engine's timings, choices
    f"{LLAMA}.chat": (counts(34, 33, 16), ms(12.783, 1091.994), 1),
    # The engine counts the first answer only, so the counts cover one choice of the two.
    f"{LLAMA}.chat-n2": (counts(34, 33, 16), ms(31.127, 7099.751), 1),
    f"{LLAMA}.completions": (counts(2, 0, 8), ms(19.879, 39.119), 1),
    f"{VLLM}.chat": (
        counts(34, 0, 16),
        ms(34.00194699997883, 230.33628099983616, 0.017566000224178424),
        1,
    ),
    f"{VLLM}.chat-tool-call": (Tokens(prompt=37, completion=48), None, 1),
    f"{VLLM}.completions": (
        counts(2, 0, 8),
        ms(15.094802000021446, 103.7465469999006, 0.01246800002263626),
        1,
    ),
    f"{LLAMA}.completion": (counts(4, 0, 12), ms(3149.068, 2002.984), 1),
    f"{LLAMA}.responses": (counts(34, 33, 16), None, 1),
    f"{VLLM}.responses": (
        counts(34, 0, 16),
        ms(30.438795999998547, 220.89020900011747, 0.009643999874242581),
        1,
    ),
    f"{LLAMA}.messages": (counts(34, 33, 16), None, 1),
    f"{VLLM}.messages": (counts(34, 0, 16), None, 1),
}
READ_ONLY = {  # embeddings and reranking: nothing is generated
    f"{LLAMA}.embeddings": Tokens(prompt=5, completion=0),
    f"{LLAMA}.embedding-native": Tokens(completion=0),
    f"{LLAMA}.rerank": Tokens(prompt=8, completion=0),
    f"{LLAMA}.reranking": Tokens(prompt=8, completion=0),
    f"{VLLM}.embeddings": Tokens(prompt=5, completion=0),
    f"{VLLM}.rerank": Tokens(prompt=7, completion=0),
}
REFUSED = [
    f"{LLAMA}.error-bad-messages",
    f"{LLAMA}.error-too-long",
    f"{LLAMA}.infill",  # the model has no tokens for it
    f"{VLLM}.chat-stream-tool",
    f"{VLLM}.error-bad-messages",
    f"{VLLM}.error-too-long",
]


def measure(name: str, pieces: Iterable[tuple[float, bytes]], response: Response) -> Meter:
    request = recordings.load(name).request
    api = find_api(request["method"], request["path"])
    assert api is not None
    meter = Meter(api, response.content_type)
    for at_s, piece in pieces:
        meter.feed(piece, at_s)
    meter.finish(response.ended_at_s)
    return meter


def each_byte(response: Response) -> Iterable[tuple[float, bytes]]:
    """Each byte on its own, at the time of the read that brought it."""
    return ((at_s, bytes([byte])) for at_s, piece in response.pieces for byte in piece)


def ways(response: Response) -> dict[str, Iterable[tuple[float, bytes]]]:
    return {
        "whole": [(response.ended_at_s, response.body)],
        "each byte": each_byte(response),
        "as recorded": response.pieces,
    }


def test_every_generation_that_was_recorded_is_in_a_table() -> None:
    generations = {n for n in NAMES if ".chat" in n or ".completions" in n}

    assert generations - {*REFUSED, *STREAMS, *WHOLE} == set()


@pytest.mark.parametrize("way", ["whole", "each byte", "as recorded"])
@pytest.mark.parametrize("name", [*STREAMS, *WHOLE])
def test_the_engines_numbers_come_out_in_any_pieces(name: str, way: str) -> None:
    tokens, engine, choices = ({**STREAMS, **WHOLE}[name])[:3]
    response = recordings.unframe(recordings.load(name))

    meter = measure(name, ways(response)[way], response)

    assert meter.parse_errors == 0
    assert meter.reply.tokens() == tokens
    assert meter.reply.engine() == engine
    assert meter.reply.choices == choices
    assert meter.reply.finish in ("length", "stop", "tool_calls")
    assert not meter.reply.failed


@pytest.mark.parametrize("name", STREAMS)
def test_tokens_are_timed_by_the_read_that_completed_them(name: str) -> None:
    *_, first_at_s, last_at_s, reads = STREAMS[name]
    response = recordings.unframe(recordings.load(name))

    for way in ("as recorded", "each byte"):
        meter = measure(name, ways(response)[way], response)

        assert (meter.first_at_s, meter.last_at_s) == (first_at_s, last_at_s)
        assert len(set(meter.token_at_s)) == reads
        assert meter.done == (name in SAYS_DONE)
        assert meter.is_complete


@pytest.mark.parametrize("name", [n for n in STREAMS if STREAMS[n][1] and n != HIDDEN_END])
def test_the_engines_clock_and_ours_agree_on_the_decode(name: str) -> None:
    """Within a decode step or 15 ms: the recordings' last event may carry the last token."""
    response = recordings.unframe(recordings.load(name))
    meter = measure(name, response.pieces, response)
    engine = meter.reply.engine()

    assert engine is not None
    assert engine.decode_s is not None
    assert meter.first_at_s is not None
    assert meter.last_at_s is not None
    assert meter.last_at_s - meter.first_at_s == pytest.approx(engine.decode_s, abs=0.015, rel=0.01)


@pytest.mark.parametrize("way", ["whole", "each byte", "as recorded"])
@pytest.mark.parametrize("name", READ_ONLY)
def test_embeddings_and_reranking_generate_nothing(name: str, way: str) -> None:
    response = recordings.unframe(recordings.load(name))

    meter = measure(name, ways(response)[way], response)

    assert meter.reply.tokens() == READ_ONLY[name]
    assert (meter.first_at_s, meter.reply.engine(), meter.parse_errors) == (None, None, 0)
    assert not meter.reply.failed


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_failed_and_counts_nothing(name: str) -> None:
    response = recordings.unframe(recordings.load(name))
    meter = measure(name, response.pieces, response)

    assert response.status in (400, 501)
    assert meter.reply.failed
    assert meter.reply.tokens() == Tokens()
    assert (meter.first_at_s, meter.reply.finish, meter.parse_errors) == (None, None, 0)


@pytest.mark.parametrize("name", [n for n in STREAMS if n.startswith(LLAMA)])
def test_a_stream_that_was_cut_keeps_what_it_told(name: str) -> None:
    response = recordings.unframe(recordings.load(name))
    meter = measure(name, response.pieces[:3], response)

    assert meter.reply.finish is None
    assert not meter.done
    assert meter.first_at_s is not None or "progress" in name
    assert meter.parse_errors == 0


def test_a_progress_report_is_not_the_engines_last_word() -> None:
    """Cut inside the prefill: its timings so far are those of a prefill half done."""
    name = f"{LLAMA}.chat-stream-progress"
    response = recordings.unframe(recordings.load(name))

    assert measure(name, response.pieces[:2], response).reply.engine() is None
    assert measure(name, response.pieces[:5], response).reply.engine() == ms(957.667, 109.107)


OTHERS = [n for n in NAMES if n not in {*STREAMS, *WHOLE, *READ_ONLY, *REFUSED}]


@pytest.mark.parametrize("name", OTHERS)
def test_everything_else_is_relayed_without_a_verdict(name: str) -> None:
    request = recordings.load(name).request

    assert find_api(request["method"], request["path"]) is None


@pytest.mark.parametrize("name", [n for n in recordings.names() if "-left-" not in n])
def test_a_recording_is_whole(name: str) -> None:
    response = recordings.unframe(recordings.load(name))

    assert response.ended_at_s > 0
    assert response.ended_at_s >= response.headers_at_s
    if response.content_type.startswith("application/json"):
        orjson.loads(response.body)


@pytest.mark.parametrize("name", [*STREAMS, *WHOLE])
def test_the_recorded_requests_can_be_read(name: str) -> None:
    request = recordings.load(name).request
    api = find_api(request["method"], request["path"])
    assert api is not None
    call = read_call(api, orjson.dumps(request["body"]))

    assert call is not None
    assert call.stream == (name in STREAMS)
    assert call.model in ("x", "smollm2", "smol", "tiny", None)
