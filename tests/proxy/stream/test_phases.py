"""Where the time went: tables of time lines, and what holds for all of them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import recordings
from slowtok.detectors.case.case import EngineTimings, Phases, Timeline, Tokens
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.meter import Meter
from slowtok.proxy.stream.phases import split, with_queue

TIMES = {  # the clock does not begin at zero, and zero on it is no special time
    "accepted_at_s": 0.0,
    "sent_at_s": 0.5,
    "headers_at_s": 1.0,
    "first_token_at_s": 3.0,
    "last_token_at_s": 7.0,
    "last_byte_at_s": 7.0,
    "delivered_at_s": 7.5,
}
TOKENS = Tokens(prompt=300, cached=100, completion=41)


def stream(**changes: Any) -> Timeline:
    known = {
        "request_id": "1",
        "path": "/",
        "started_unix_s": 0.0,
        "stream": True,
        "tokens": TOKENS,
    }
    return Timeline(**{**known, **TIMES, **changes})


def whole(**changes: Any) -> Timeline:
    """A reply in one piece: its head comes with all of it, its tokens have no times."""
    none = {"first_token_at_s": None, "last_token_at_s": None, "stream": False, "headers_at_s": 7.0}
    return stream(**{**none, **changes})


def engine(**timings: float) -> EngineTimings:
    return EngineTimings(**timings)


BUSY = engine(prefill_s=2.0, decode_s=4.0)
CUT = {"last_byte_at_s": None, "delivered_at_s": None}

LLAMA_SERVER = [
    pytest.param(
        stream(engine=BUSY),
        {"source": "engine", "queue_s": 0.5, "prefill_s": 2.0, "decode_s": 4.0, "load_s": None},
        id="streamed",
    ),
    pytest.param(
        stream(engine=engine(prefill_s=1.0, decode_s=4.0)),
        {"queue_s": 1.5, "prefill_s": 1.0},
        id="a head that came while it queued",
    ),
    pytest.param(
        stream(engine=BUSY, headers_at_s=3.0),
        {"queue_s": 0.5, "prefill_s": 2.0},
        id="before b9425 the head came with the first token",
    ),
    pytest.param(
        stream(engine=BUSY, first_token_at_s=6.9, headers_at_s=6.9),
        {"queue_s": 0.5, "prefill_from_at_s": 1.0, "decode_from_at_s": 3.0, "ttft_s": 6.9},
        id="the first tokens do not show: a tool call is no queue",
    ),
    pytest.param(
        stream(engine=BUSY, first_token_at_s=None, last_token_at_s=None),
        {"queue_s": 0.5, "decode_from_at_s": 3.0, "decode_to_at_s": 7.0, "ttft_s": None},
        id="no token shows at all",
    ),
    pytest.param(
        stream(),
        {"source": "stream", "queue_s": 0.5, "prefill_s": 2.0, "decode_s": 4.0},
        id="streamed, without timings",
    ),
    pytest.param(
        stream(**CUT),
        {"source": "stream", "queue_s": 0.5, "decode_s": 4.0, "total_s": 7.0, "delivery_s": None},
        id="the client left in the answer",
    ),
    pytest.param(
        stream(**CUT, first_token_at_s=None, last_token_at_s=None),
        {"queue_s": 0.5, "prefill_s": None, "decode_s": None, "total_s": 1.0},
        id="the client left in the prefill",
    ),
    pytest.param(
        stream(**CUT, first_token_at_s=None, last_token_at_s=None, headers_at_s=None),
        {"queue_s": None, "prefill_s": None, "total_s": 0.5, "decode_to_at_s": None},
        id="the client left in the queue",
    ),
    pytest.param(
        whole(engine=BUSY),
        {"source": "engine", "queue_s": 0.5, "prefill_from_at_s": 1.0, "decode_from_at_s": 3.0},
        id="whole",
    ),
    pytest.param(
        whole(),
        {"source": "estimate", "queue_s": None, "prefill_s": None, "decode_s": None},
        id="whole, without timings: its head says nothing of a queue",
    ),
    pytest.param(
        stream(engine=BUSY, tokens=Tokens(prompt=300, cached=300, completion=1)),
        {"prefill_tps": None, "decode_tps": None},
        id="one token, and the prompt from the cache: no rates",
    ),
    pytest.param(
        stream(engine=engine(prefill_s=0.0, decode_s=0.0)),
        {
            "source": "engine",
            "prefill_s": 0.0,
            "decode_s": 0.0,
            "prefill_tps": None,
            "decode_tps": None,
        },
        id="no time at all: no rates",
    ),
]


@pytest.mark.parametrize(("timeline", "expected"), LLAMA_SERVER)
def test_llama_server(timeline: Timeline, expected: dict[str, Any]) -> None:
    check(split(timeline, early_head=True), expected)


VLLM = [
    pytest.param(
        stream(headers_at_s=0.5),
        {"source": "stream", "queue_s": None, "prefill_s": 2.5, "decode_s": 4.0},
        id="streamed: the head comes at once, and says nothing",
    ),
    pytest.param(
        stream(headers_at_s=0.5, engine=engine(queue_s=0.4, prefill_s=2.0, decode_s=4.0)),
        {"source": "engine", "queue_s": 0.4, "prefill_s": 2.0, "decode_s": 4.0},
        id="streamed, with --enable-per-request-metrics",
    ),
    pytest.param(
        whole(engine=engine(queue_s=0.4, prefill_s=2.0, decode_s=4.0)),
        {"source": "engine", "queue_s": 0.4, "prefill_from_at_s": 1.0},
        id="whole, with metrics",
    ),
    pytest.param(whole(), {"source": "estimate", "queue_s": None}, id="whole, without metrics"),
    pytest.param(
        whole(tokens=Tokens(), headers_at_s=0.6, last_byte_at_s=0.6, delivered_at_s=0.6),
        {"source": "estimate", "total_s": 0.6, "decode_tps": None},
        id="refused",
    ),
]


@pytest.mark.parametrize(("timeline", "expected"), VLLM)
def test_vllm(timeline: Timeline, expected: dict[str, Any]) -> None:
    check(split(timeline), expected)


OLLAMA = [
    pytest.param(
        stream(headers_at_s=3.0, engine=engine(load_s=0.1, prefill_s=2.0, decode_s=4.0)),
        {"source": "engine", "queue_s": 0.4, "load_s": 0.1, "prefill_s": 2.0, "decode_s": 4.0},
        id="native: what its durations leave over is the queue",
    ),
    pytest.param(
        stream(headers_at_s=3.0, engine=engine(load_s=2.4, prefill_s=0.1, decode_s=4.0)),
        {"load_s": 2.4, "queue_s": 0.0, "prefill_from_at_s": 2.9},
        id="native, with a load",
    ),
    pytest.param(
        whole(engine=engine(load_s=0.1, prefill_s=2.0, decode_s=4.0)),
        {"source": "engine", "load_s": 0.1, "queue_s": 0.4},
        id="native, whole",
    ),
    pytest.param(
        whole(engine=engine(load_s=6.0), tokens=Tokens()),
        {"source": "estimate", "load_s": 6.0, "queue_s": None, "decode_tps": None},
        id="an empty prompt only loads the model",
    ),
    pytest.param(
        stream(headers_at_s=6.9, first_token_at_s=6.9, engine=engine(prefill_s=2.0, decode_s=4.0)),
        {"queue_s": 0.5, "decode_from_at_s": 3.0},
        id="a tool call comes in one piece at the end: its decode is no queue",
    ),
    pytest.param(
        stream(headers_at_s=3.0, engine=engine(load_s=2.0)),
        {"source": "stream", "load_s": 2.0, "prefill_s": 0.5, "prefill_from_at_s": 2.5},
        id="only the load is told",
    ),
    pytest.param(
        stream(headers_at_s=3.0),
        {"source": "stream", "queue_s": None, "load_s": None, "prefill_s": 2.5, "decode_s": 4.0},
        id="/v1 without timings",
    ),
]


@pytest.mark.parametrize(("timeline", "expected"), OLLAMA)
def test_ollama(timeline: Timeline, expected: dict[str, Any]) -> None:
    check(split(timeline), expected)


def check(phases: Phases, expected: dict[str, Any]) -> None:
    found = {name: getattr(phases, name) for name in expected}
    assert found == {
        name: value if value is None or isinstance(value, str) else pytest.approx(value)
        for name, value in expected.items()
    }


def test_a_wait_for_a_model_that_slept_is_a_load() -> None:
    phases = split(stream(engine=BUSY), early_head=True, was_unloaded=True)
    known = split(stream(engine=replace(BUSY, load_s=0.2)), was_unloaded=True)

    assert (phases.queue_s, phases.load_s) == (None, 0.5)
    assert known.queue_s == pytest.approx(0.3)
    assert known.load_s == 0.2


@pytest.mark.parametrize(
    ("last_byte_at_s", "delivery_s"),
    [
        pytest.param(7.0, 50.0, id="it left while the rest waited for it"),
        pytest.param(None, None, id="it left before the engine was done"),
    ],
)
def test_a_client_that_left_read_until_then(
    last_byte_at_s: float | None, delivery_s: float | None
) -> None:
    times = {"last_byte_at_s": last_byte_at_s, "delivered_at_s": None, "ended_at_s": 57.0}

    assert split(stream(engine=BUSY, **times)).delivery_s == delivery_s


def test_the_rest() -> None:
    phases = split(stream(engine=BUSY), early_head=True)

    assert (phases.total_s, phases.delivery_s, phases.ttft_s) == (7.5, 0.5, 3.0)
    assert (phases.decode_stream_s, phases.decode_to_at_s) == (4.0, 7.0)
    assert phases.prefill_tps == 200 / 2.0
    assert phases.decode_tps == 40 / 4.0


def test_a_rate_is_that_of_one_answer() -> None:
    timeline = stream(engine=BUSY, tokens=Tokens(prompt=9, completion=82))

    assert split(timeline, choices=2).decode_tps == pytest.approx(40 / 4.0)
    assert split(timeline, choices=82).decode_tps is None


@pytest.mark.parametrize("timeline", [stream, whole])
def test_the_engines_word_stands_even_where_it_exceeds_the_time_that_passed(timeline: Any) -> None:
    """An answer from a cache may carry the timings of the request that first paid for it."""
    phases = split(timeline(engine=engine(prefill_s=20.0, decode_s=40.0)))

    assert (phases.source, phases.prefill_s, phases.decode_s) == ("engine", 20.0, 40.0)
    assert phases.queue_s == 0.0


@pytest.mark.parametrize(
    ("name", "choices", "rate"),
    [
        ("llama-server-2026.10.chat-stream", 1, 57.72694385862287),
        ("llama-server-2026.10.chat-stream-long-prompt", 1, 0.3901539413685575),
        ("llama-server-2026.10.chat-stream-n2", 2, 0.3938795617583459),
        ("llama-server-2026.10.chat", 1, 13.736339210655004),
        ("llama-server-2026.10.chat-n2", 1, 2.1127501513785485),
        ("vllm-0.32.chat-stream-usage", 1, 1000 / 16.309152266664263),
        ("vllm-0.32.chat", 1, 1000 / 15.355752066655743),
    ],
)
def test_recorded_rates_are_what_the_engine_says(name: str, choices: int, rate: float) -> None:
    """The engines' `predicted_per_second`, and the inverse of vLLM's `mean_itl_ms`."""
    recording = recordings.load(name)
    response = recordings.unframe(recording)
    api = find_api("POST", recording.request["path"])
    assert api is not None
    meter = Meter(api, response.content_type)
    for at_s, piece in response.pieces:
        meter.feed(piece, at_s)
    meter.finish(response.ended_at_s)
    timeline = stream(
        stream="-stream" in name,
        sent_at_s=0.0,
        headers_at_s=response.headers_at_s,
        first_token_at_s=meter.first_at_s if "-stream" in name else None,
        last_token_at_s=meter.last_at_s if "-stream" in name else None,
        last_byte_at_s=response.ended_at_s,
        delivered_at_s=response.ended_at_s,
        tokens=meter.reply.tokens(),
        engine=meter.reply.engine(),
    )
    phases = split(timeline, choices=meter.reply.choices, early_head=name.startswith("llama"))

    assert meter.reply.choices == choices
    assert phases.source == "engine"
    assert phases.decode_tps == pytest.approx(rate, rel=0.01)
    assert phases.queue_s is not None
    assert phases.queue_s < 0.03
    assert_sound(phases, timeline)


def assert_sound(phases: Phases, timeline: Timeline) -> None:
    parts = (phases.queue_s, phases.load_s, phases.prefill_s, phases.decode_s, phases.delivery_s)
    known = [part for part in parts if part is not None]
    others = (phases.ttft_s, phases.decode_stream_s, phases.prefill_tps, phases.decode_tps)
    bounds = (phases.prefill_from_at_s, phases.decode_from_at_s, phases.decode_to_at_s)
    in_order = [bound for bound in bounds if bound is not None]

    assert all(part >= 0 for part in [*known, phases.total_s])
    assert all(other is None or other >= 0 for other in others)
    assert _claims_too_much(timeline) or sum(known) <= phases.total_s + 1e-6
    assert in_order == pytest.approx(sorted(in_order), abs=1e-9)
    assert all(timeline.accepted_at_s - 1e-9 <= at_s for at_s in in_order)


def _claims_too_much(timeline: Timeline) -> bool:
    """Say whether the engine's own timings exceed the time that passed."""
    said = timeline.engine or EngineTimings()
    claimed = (said.queue_s, said.load_s, said.prefill_s, said.decode_s)
    ends = (timeline.last_byte_at_s, timeline.last_token_at_s)
    end = next((at_s for at_s in ends if at_s is not None), timeline.accepted_at_s)
    sent_at_s = timeline.sent_at_s or timeline.accepted_at_s
    before_s = (said.queue_s or 0.0) + (said.load_s or 0.0)
    first_at_s = end if timeline.first_token_at_s is None else timeline.first_token_at_s
    claimed_s = sum(part for part in claimed if part is not None)
    if said.decode_s is None:  # then it is seen from the first token on
        before_s += said.prefill_s or 0.0
    return claimed_s > end - sent_at_s or before_s > first_at_s - sent_at_s


NUMBERS = st.none() | st.floats(0, 50)
TIMINGS = st.none() | st.builds(
    EngineTimings, queue_s=NUMBERS, load_s=NUMBERS, prefill_s=NUMBERS, decode_s=NUMBERS
)
COUNTS = st.none() | st.integers(0, 1000)


@settings(max_examples=400)
@given(
    times=st.lists(st.integers(0, 20_000), min_size=7, max_size=7).map(sorted),
    reached=st.integers(1, 7),
    streamed=st.booleans(),
    timings=TIMINGS,
    tokens=st.builds(Tokens, prompt=COUNTS, cached=COUNTS, completion=COUNTS),
    choices=st.integers(1, 4),
    early_head=st.booleans(),
    slept=st.booleans(),
)
def test_nothing_is_negative_and_the_sum_is_at_most_the_total(
    times: list[int],
    reached: int,
    streamed: bool,
    timings: EngineTimings | None,
    tokens: Tokens,
    choices: int,
    early_head: bool,
    slept: bool,
) -> None:
    """Cut short anywhere, with any timings: also those that cannot be."""
    known = [*(ms / 1000 for ms in times[:reached]), *[None] * (7 - reached)]
    changes: dict[str, Any] = dict(zip(TIMES, known, strict=True))
    if not streamed:
        changes |= {"first_token_at_s": None, "last_token_at_s": None}
    if early_head and timings is not None:  # llama-server: its timings have neither
        timings = replace(timings, queue_s=None, load_s=None)
    timeline = stream(**changes, stream=streamed, tokens=tokens, engine=timings)

    assert_sound(
        split(timeline, choices=choices, early_head=early_head, was_unloaded=slept), timeline
    )


@pytest.mark.parametrize(
    ("completion", "choices", "engine_said", "known"),
    [
        pytest.param(40, 1, None, False, id="a tool call that the engine had collected"),
        pytest.param(40, 3, None, True, id="three answers"),
        pytest.param(4, 1, None, True, id="a burst of speculation"),
        pytest.param(None, 1, None, True, id="no count"),
        pytest.param(40, 1, BUSY, True, id="the engine tells its times"),
    ],
)
def test_tokens_that_come_all_at_once_do_not_tell_prefill_from_decode(
    completion: int | None, choices: int, engine_said: EngineTimings | None, known: bool
) -> None:
    tokens = Tokens(prompt=300, cached=100, completion=completion)
    timeline = stream(first_token_at_s=7.0, tokens=tokens, engine=engine_said)
    phases = split(timeline, choices=choices)

    assert (phases.prefill_s is not None, phases.decode_s is not None) == (known, known)
    assert phases.ttft_s == 7.0
    assert phases.decode_tps is None or engine_said


@pytest.mark.parametrize(
    ("prefill_tps", "queue_s"),
    [
        pytest.param(None, 2.0, id="nothing is known of the prompt: the least"),
        pytest.param(200.0, 3.0, id="what the prompt does not explain"),
        pytest.param(20_000.0, 3.5, id="at most until it was seen to be let in"),
        pytest.param(10.0, 2.0, id="at least as long as it was seen to wait"),
    ],
)
def test_a_wait_that_only_gauges_tell_of(prefill_tps: float | None, queue_s: float) -> None:
    waited = stream(first_token_at_s=4.5, tokens=Tokens(prompt=200, completion=41))
    found = with_queue(split(waited), waited, 2.0, 3.5, prefill_tps=prefill_tps)

    assert found.queue_s == pytest.approx(queue_s)
    assert found.queue_estimated
    assert (found.prefill_s, found.prefill_from_at_s) == (None, None)


def test_an_engine_may_claim_more_time_than_passed() -> None:
    """Its timings are taken as reported: the sum of the phases may exceed the total."""
    phases = split(stream(engine=engine(prefill_s=20.0, decode_s=40.0)))

    assert (phases.prefill_s, phases.decode_s, phases.total_s) == (20.0, 40.0, 7.5)


def test_a_wait_without_a_first_token_is_not_split() -> None:
    waited = stream(first_token_at_s=None, tokens=Tokens(prompt=200))
    phases = split(waited)

    assert with_queue(phases, waited, 2.0, 3.5, prefill_tps=200.0) == phases
