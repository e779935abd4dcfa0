from dataclasses import replace

from fakes.cases import healthy
from slowtok.detectors.case.case import EngineTimings, Timeline
from slowtok.proxy.observe.case_builder import without_loading_lines

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


SAID = EngineTimings(prefill_s=0.5, decode_s=1.0)


def test_lines_before_the_engine_can_have_begun_are_no_tokens() -> None:
    seen = without_loading_lines(streamed(*LINES_S, *TOKENS_S, engine=SAID))
    assert seen.token_at_s == TOKENS_S
    assert (seen.first_token_at_s, seen.last_token_at_s) == (14.0, 15.0)
    assert (seen.itl_p50_s, seen.itl_p99_s) == (None, None)


def test_where_no_single_arrival_was_kept_the_engines_decode_tells_the_first_token() -> None:
    seen = without_loading_lines(replace(streamed(*LINES_S, *TOKENS_S, engine=SAID), token_at_s=()))
    assert seen.first_token_at_s == 14.0


def test_a_stream_of_tokens_alone_stays_as_it_is() -> None:
    plain = streamed(*TOKENS_S, engine=SAID)
    assert without_loading_lines(plain) is plain


def test_without_the_engines_word_nothing_can_be_told_apart() -> None:
    silent = streamed(*LINES_S, *TOKENS_S, engine=None)
    assert without_loading_lines(silent) is silent
