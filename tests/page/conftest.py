"""One window for all tests of the page; each has a proxy of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.browser import Browser, window
from fakes.page_cases import simulated
from fakes.page_stage import MachineOf, Stage, page_stage


@pytest.fixture(scope="session")
def opened() -> Iterator[Browser]:
    with window() as browser:
        yield browser


@pytest.fixture
def browser(opened: Browser) -> Iterator[Browser]:
    """The window, wide and light; a test in which the browser complains fails."""
    opened.size(1280, 900)
    opened.scheme("light")
    opened.complaints()
    yield opened
    complaints = opened.complaints()
    opened.driver.get("about:blank")
    assert complaints == []


@pytest.fixture
def stage(opened: Browser, tmp_path: Path) -> Iterator[Stage]:
    """A proxy on a machine with a GPU that gets hot."""
    machine = MachineOf(simulated("thermal-throttle"))
    with page_stage(tmp_path, change=lambda proxy: setattr(proxy, "sampler", machine)) as running:
        yield running
        opened.driver.get("about:blank")  # else the page asks on while the proxy goes
