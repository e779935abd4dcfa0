"""A real llama-server's `/metrics`: what it gained around a request is what the reply says."""

import time
from collections.abc import Iterator

import httpx
import pytest

from fakes.engine import RunningEngine, real_engine
from slowtok.proxy.engines.counters.activity import ActivityLog
from slowtok.proxy.engines.counters.scraper import Scraper
from slowtok.proxy.upstream.client import make_session

pytestmark = pytest.mark.engine

PATIENCE_S = 10.0


@pytest.fixture
def engine() -> Iterator[RunningEngine]:
    with real_engine() as running:
        yield running


async def test_gains_are_the_engines_own_counts(engine: RunningEngine) -> None:
    log = ActivityLog()
    async with make_session(1.0) as session, httpx.AsyncClient(timeout=120) as client:
        scraper = Scraper(session, engine.url, log)
        scraper.begin()
        begin_s = time.monotonic()
        assert await scraper.wait_for_answers(PATIENCE_S)
        question = {"prompt": "One, two, three", "max_tokens": 8}
        said = (await client.post(f"{engine.url}/v1/completions", json=question)).json()
        end_s = time.monotonic()
        scraper.want()
        assert await scraper.wait_for_answers(PATIENCE_S)
        await scraper.stop()
    gained = log.between(begin_s, end_s)

    assert gained is not None
    assert gained.prompt_tokens == said["usage"]["prompt_tokens"]
    assert gained.decode_s == pytest.approx(said["timings"]["predicted_ms"] / 1000, abs=0.01)


def test_asking_wakes_no_model() -> None:
    with real_engine(sleep_idle_s=1) as engine:
        engine.wait_until_asleep()
        assert httpx.get(f"{engine.url}/metrics", timeout=10).status_code == 200

        assert httpx.get(f"{engine.url}/props", timeout=10).json()["is_sleeping"] is True
