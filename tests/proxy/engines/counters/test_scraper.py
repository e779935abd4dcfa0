"""Scraping a server of bytes: when it asks, and what it makes of answers and silence."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from fakes import recordings
from fakes.upstream import Upstream, listening
from fakes.wire import reply
from slowtok.proxy.engines.counters import scraper as module
from slowtok.proxy.engines.counters.activity import ActivityLog, Scrape
from slowtok.proxy.engines.counters.scraper import Scraper
from slowtok.proxy.engines.probing.reply import ProbeReply
from slowtok.proxy.upstream.client import make_session

PAGE = recordings.unframe(recordings.load("vllm-0.32.metrics")).body
TEXT = "Content-Type: text/plain; version=1.0.0; charset=utf-8"
PATIENCE_S = 10.0


class Kept(ActivityLog):
    """A log whose scrapes a test can count."""

    def __init__(self) -> None:
        super().__init__()
        self.scrapes: list[Scrape] = []

    def note(self, scrape: Scrape) -> None:
        super().note(scrape)
        self.scrapes.append(scrape)


@pytest.fixture
async def vllm() -> AsyncIterator[Upstream]:
    async with listening("vllm") as upstream:
        upstream.looks["/metrics"] = reply(PAGE, TEXT, "Connection: close")
        yield upstream


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
async def scraper(vllm: Upstream, kept: Kept) -> AsyncIterator[Scraper]:
    async with make_session(1.0) as session:
        scraper = Scraper(session, vllm.url, kept)
        yield scraper
        await scraper.stop()


async def test_nothing_is_asked_before_a_request(scraper: Scraper, kept: Kept) -> None:
    assert await scraper.wait_for_answers(0.0)
    assert kept.scrapes == []


async def test_scrape_of_a_recorded_page(scraper: Scraper, kept: Kept) -> None:
    scraper.want()

    assert await scraper.wait_for_answers(PATIENCE_S)
    [scrape] = kept.scrapes
    assert scrape.counters.prompt_tokens == 987
    assert scrape.asked_at_s <= scrape.answered_at_s


async def test_large_page_is_read_too(
    scraper: Scraper, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE_PAGE_BYTES", 0)
    scraper.want()

    assert await scraper.wait_for_answers(PATIENCE_S)
    assert kept.scrapes[0].counters.prompt_tokens == 987


async def test_what_is_wanted_meanwhile_is_asked_afterwards_and_once(
    scraper: Scraper, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = 0, asyncio.Event()

    async def get(*_: object, **__: object) -> ProbeReply:
        nonlocal asked
        asked += 1
        await answer.wait()
        return ProbeReply(status=200, body=PAGE)

    monkeypatch.setattr(module, "get", get)
    scraper.want()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(5):
        scraper.want()
    assert asked == 1, "never two at a time"
    answer.set()

    assert await scraper.wait_for_answers(PATIENCE_S)
    assert len(kept.scrapes) == 2


async def test_end_that_comes_while_a_scrape_sets_out_gets_its_own(
    scraper: Scraper, kept: Kept
) -> None:
    scraper.want()
    end_s = time.monotonic()
    scraper.want()

    assert await scraper.wait_for_answers(PATIENCE_S)
    assert kept.scrapes[0].asked_at_s <= end_s <= kept.scrapes[1].asked_at_s


async def test_request_soon_after_a_scrape_needs_no_other(scraper: Scraper, kept: Kept) -> None:
    scraper.begin()
    scraper.begin()
    scraper.poll()
    assert await scraper.wait_for_answers(PATIENCE_S)
    scraper.poll()

    assert await scraper.wait_for_answers(PATIENCE_S)
    assert len(kept.scrapes) == 1


@pytest.mark.parametrize(("tick_s", "most"), [(0.1, module.LEAST_PER_S), (0.001, module.MAX_PER_S)])
async def test_requests_in_plenty_are_not_scraped_each(
    scraper: Scraper, kept: Kept, monkeypatch: pytest.MonkeyPatch, tick_s: float, most: int
) -> None:
    now_s = itertools.count(0, tick_s / 10)  # an answer takes a few looks at the clock
    clock = SimpleNamespace(monotonic=lambda: next(now_s))
    monkeypatch.setattr(module, "time", clock)
    for _ in range(most):
        scraper.want()
        assert await scraper.wait_for_answers(PATIENCE_S)
    scraper.want()

    assert not await scraper.wait_for_answers(0.02), "its time has not come"
    assert len(kept.scrapes) == most


@pytest.mark.parametrize("status", ["404 Not Found", "501 Not Implemented", "401 Unauthorized"])
async def test_engine_without_metrics_is_asked_once(
    scraper: Scraper, kept: Kept, vllm: Upstream, status: str
) -> None:
    vllm.looks["/metrics"] = reply(b"{}", TEXT, "Connection: close", status=status)
    scraper.want()
    assert await scraper.wait_for_answers(PATIENCE_S)
    connections = vllm.connections
    scraper.want()

    assert await scraper.wait_for_answers(PATIENCE_S)
    assert (scraper.refused, vllm.connections, kept.scrapes) == (True, connections, [])
    assert scraper.failures == 0, "it has none to show"


async def test_page_of_another_program_is_asked_for_once(scraper: Scraper, vllm: Upstream) -> None:
    vllm.looks["/metrics"] = reply(b"python_info 1\n", TEXT, "Connection: close")
    scraper.want()

    assert await scraper.wait_for_answers(PATIENCE_S)
    assert (scraper.refused, scraper.failures) == (True, 0)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"loading", "503 Service Unavailable"), (b'vllm:num_requests_running{engine="0', "200 OK")],
)
async def test_failure_is_counted_and_asked_again(
    scraper: Scraper, kept: Kept, vllm: Upstream, body: bytes, status: str
) -> None:
    good, vllm.looks["/metrics"] = (
        vllm.looks["/metrics"],
        reply(body, TEXT, "Connection: close", status=status),
    )
    scraper.want()
    assert await scraper.wait_for_answers(PATIENCE_S)
    assert (scraper.failures, scraper.refused, kept.scrapes) == (1, False, [])
    vllm.looks["/metrics"] = good
    scraper.want()

    assert await scraper.wait_for_answers(PATIENCE_S)
    assert len(kept.scrapes) == 1


async def test_engine_that_hangs_costs_the_wait_alone(
    scraper: Scraper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def get(*_: object, **__: object) -> ProbeReply | None:
        await asyncio.sleep(600)
        return None

    monkeypatch.setattr(module, "get", get)
    scraper.want()

    assert not await scraper.wait_for_answers(0.01)
