"""What engines tell wrong or not at all: a hidden load, lines that are no tokens."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import healthy, with_envelope, with_phases, with_timeline, with_tokens
from fakes.loads import holding, request
from slowtok.detectors.case.case import Case, EngineTimings, Timeline
from slowtok.detectors.case.machine import GpuSample
from slowtok.proxy.observe.corrections import with_inferred_load, without_loading_lines

TAKING = (
    holding(0.0, 0.0, 9.0),  # of the process that is not the engine's any more
    holding(0.2, 0.0),
    holding(1.0, 3.0),
    holding(2.0, 6.0),
    holding(3.0, 9.0),
    holding(5.0, 9.3),
)


def waiting(samples: Iterable[GpuSample], *, first_token_at_s: float = 4.0, **phases: Any) -> Case:
    """A request that came at 0 s to an engine without timings, alone."""
    case = with_timeline(request(0.0, samples), first_token_at_s=first_token_at_s)
    unsaid: dict[str, Any] = {"source": "stream", "queue_s": None, "load_s": None}
    return with_phases(case, **{**unsaid, "prefill_s": first_token_at_s, **phases})


QUIET = [
    pytest.param(waiting([holding(0.0, 9.0), holding(3.0, 9.0)]), id="the model was there"),
    pytest.param(waiting([holding(0.0, 9.0), holding(3.0, 9.4)]), id="buffers for a longer prompt"),
    pytest.param(
        waiting([holding(0.0, 1.0), holding(1.0, 1.8), holding(3.0, 4.0)]),
        id="a cache that grows with a long prompt",
    ),
    pytest.param(waiting([holding(0.0, 0.0), holding(5.0, 9.0)]), id="taken after the first token"),
    pytest.param(
        waiting([holding(0.0, 0.0), holding(0.4, 9.0)]), id="so short that nobody feels it"
    ),
    pytest.param(waiting(()), id="no samples"),
    pytest.param(waiting(TAKING, source="engine"), id="the engine told, and of no load"),
    pytest.param(waiting(TAKING, queue_s=1.0), id="it was seen to wait for others"),
    pytest.param(
        replace(
            waiting(TAKING),
            neighbours=replace(waiting(TAKING).neighbours, in_flight_at_send=1),
        ),
        id="the load may be another request's",
    ),
    pytest.param(waiting(TAKING, load_s=0.05), id="a load that was told"),
]


@pytest.mark.parametrize("case", QUIET)
def test_nothing_is_taken_for_a_load(case: Case) -> None:
    assert with_inferred_load(case) is case.phases


@pytest.mark.parametrize(
    ("prefill_tps", "load_s"),
    [
        pytest.param(1000.0, 3.5, id="what the prompt does not explain"),
        pytest.param(100.0, 3.0, id="at least until the memory was taken"),
        pytest.param(None, 3.0, id="nothing is known of the prompt: the least"),
    ],
)
def test_memory_that_was_taken_during_the_wait_is_a_load(
    prefill_tps: float | None, load_s: float
) -> None:
    case = with_tokens(waiting(TAKING), prompt=500, cached=None)
    found = with_inferred_load(with_envelope(case, expected_prefill_tps=prefill_tps))

    assert found.load_s == pytest.approx(load_s)
    assert (found.prefill_s, found.prefill_from_at_s) == (None, None)


def test_an_engine_that_starts_anew_for_the_load_is_another_process() -> None:
    anew = [holding(0.0, 9.0, pid=7), *(holding(s, 2.0 * s) for s in (1.0, 2.0, 3.0))]

    found = with_inferred_load(with_envelope(waiting(anew), expected_prefill_tps=None))

    assert found.load_s == pytest.approx(3.0)


def test_the_first_look_may_find_a_part_of_the_model_there() -> None:
    """The driver lists processes once a second."""
    looks = (holding(s, held) for s, held in ((0.9, 2.0), (1.9, 5.0), (2.9, 9.0), (3.9, 9.0)))
    case = waiting(looks)
    case = replace(case, model=replace(case.model, file_bytes=8 * 2**30))

    found = with_inferred_load(with_envelope(case, expected_prefill_tps=None))

    assert found.load_s == pytest.approx(2.9)


def test_of_a_whole_reply_it_is_known_only_until_when_memory_was_taken() -> None:
    case = waiting(TAKING, source="estimate", prefill_s=None)
    found = with_inferred_load(with_timeline(case, first_token_at_s=None))

    assert found.load_s == pytest.approx(3.0)


LINES_S = (10.0, 10.1, 11.0)  # llama-swap's own, from the moment the request came
TOKENS_S = (14.0, 14.5, 15.0)


def streamed(*at_s: float, engine: EngineTimings | None) -> Timeline:
    return replace(
        healthy().timeline,
        engine=engine,
        token_at_s=at_s,
        first_token_at_s=at_s[0],
        last_token_at_s=at_s[-1],
        itl_p50_s=0.1,
        itl_p99_s=3.0,
    )


TOLD = EngineTimings(prefill_s=0.5, decode_s=1.0)


def test_lines_before_the_engine_can_have_begun_are_no_tokens() -> None:
    seen = without_loading_lines(streamed(*LINES_S, *TOKENS_S, engine=TOLD))
    assert seen.token_at_s == TOKENS_S
    assert (seen.first_token_at_s, seen.last_token_at_s) == (14.0, 15.0)
    assert (seen.itl_p50_s, seen.itl_p99_s) == (None, None)


def test_where_no_single_arrival_was_kept_the_engines_decode_tells_the_first_token() -> None:
    seen = without_loading_lines(replace(streamed(*LINES_S, *TOKENS_S, engine=TOLD), token_at_s=()))
    assert seen.first_token_at_s == 14.0


def test_a_stream_of_tokens_alone_stays_as_it_is() -> None:
    plain = streamed(*TOKENS_S, engine=TOLD)
    assert without_loading_lines(plain) is plain


def test_without_the_engines_word_nothing_can_be_told_apart() -> None:
    silent = streamed(*LINES_S, *TOKENS_S, engine=None)
    assert without_loading_lines(silent) is silent
