"""What the case of a relayed request holds beside the request."""

from dataclasses import replace
from pathlib import Path

from fakes.cases import healthy
from fakes.client import Client
from fakes.proxy import Served, serving
from fakes.upstream import Upstream
from fakes.wire import LAST_CHUNK, SSE, chunk, chunked_head, until
from slowtok.detectors.case.case import EngineTimings, Timeline
from slowtok.proxy.app import Proxy
from slowtok.proxy.observe.case_builder import without_loading_lines
from slowtok.proxy.runtime.loop_lag import LoopLag

SAID = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'

LINES_S = (10.0, 10.1, 11.0)  # llama-swap's own, from the moment the request came
TOKENS_S = (14.0, 14.5, 15.0)


class LateLoop(LoopLag):
    """A loop that woke 0.7 s late since any request came."""

    def most_since(self, from_s: float) -> float | None:
        return 0.7 if from_s > 0 else None


async def ask(served: Served, client: Client, engine: Upstream) -> None:
    engine.reply = chunked_head(SSE) + chunk(SAID) + LAST_CHUNK
    await client.chat()
    await client.reply()
    await until(lambda: served.cases)


async def test_lateness_of_the_loop_is_in_the_case(tmp_path: Path, engine: Upstream) -> None:
    def late(proxy: Proxy) -> None:
        proxy.lag = LateLoop()

    async with serving(tmp_path, engine.url, change=late) as served:
        await ask(served, await served.connect(), engine)

        assert served.cases[-1].timeline.loop_lag_s == 0.7


async def test_a_loop_that_was_not_measured_meanwhile_is_not_known(
    proxy: Served, client: Client, engine: Upstream
) -> None:
    await ask(proxy, client, engine)

    assert proxy.cases[-1].timeline.loop_lag_s is None


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
