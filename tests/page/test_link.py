"""The page where something stands between it and the proxy: no events, no proxy, a key."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.browser import Browser
from fakes.page_cases import simulated
from fakes.page_stage import Stage, page_stage
from slowtok.proxy.app import Proxy
from slowtok.proxy.outputs.events import Events


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator[Stage]:
    """A proxy that lets nobody listen."""

    def change(proxy: Proxy) -> None:
        proxy.events = Events(dict, max_listeners=0)

    with page_stage(tmp_path, change=change) as stage:
        yield stage


def test_it_polls_where_there_are_no_events(opened: Browser, deaf: Stage) -> None:
    opened.open(deaf.page)
    opened.says("#link-state", "asking each second")

    deaf.put(simulated("queued"))

    opened.says("#recent", "queued")
    [refused] = opened.complaints()
    assert "/slowtok/events" in refused
    assert "503" in refused


def test_it_says_when_the_proxy_has_gone(opened: Browser, tmp_path: Path) -> None:
    with page_stage(tmp_path) as stage:
        opened.open(stage.page)
        opened.says("#link-state", "live")

    opened.says("#link-state", "no answer")
    opened.complaints()


def test_it_works_with_an_api_key_in_its_address(opened: Browser, tmp_path: Path) -> None:
    key = "k" * 20
    with page_stage(tmp_path, api_key=key) as stage:
        stage.put(simulated("queued"))
        opened.open(stage.page.replace("://", f"://me:{key}@"))
        opened.says("#link-state", "live")
        opened.says("#recent", "queued")
    opened.complaints()
