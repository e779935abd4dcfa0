"""Makes the pictures of the documentation: `make pictures`, on a quiet machine with Chromium.

docs/run.png is a real agent run on a real engine, whose system prompt begins with the time.
"""

import tempfile
from pathlib import Path

from fakes.agent import run_of
from fakes.browser import Browser, window
from fakes.engine import real_engine
from fakes.running import running_proxy

DOCS = Path(__file__).parent.parent / "docs"
WIDTH = 1000


def picture(browser: Browser, name: str) -> None:
    """Keep what the page shows, from its header to the end of its last table."""
    height = browser.run(
        "return Math.ceil([...document.querySelectorAll('main table')].at(-1)"
        ".getBoundingClientRect().bottom + scrollY) + 16"
    )
    browser.size(WIDTH, height)
    browser.driver.save_screenshot(str(DOCS / name))


def main() -> None:
    """Make the run, and its picture."""
    with (
        tempfile.TemporaryDirectory() as folder,
        real_engine(threads=1, slots=1, context=8192, alias="smollm2-135m") as engine,
        running_proxy(Path(folder), engine.url) as proxy,
        window() as browser,
    ):
        run = run_of(proxy, "tidy-up", clock=True)
        browser.size(WIDTH, 900)
        browser.open(f"{proxy.url}/slowtok/#runs/{run['id']}")
        browser.says("main", "Fix first")
        picture(browser, "run.png")


if __name__ == "__main__":
    main()
