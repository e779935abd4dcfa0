"""Makes the pictures of the documentation: `make pictures`, on a quiet machine with Chromium.

docs/run.png is a real agent run on a real engine, whose system prompt begins with the time;
docs/page.png is a request in the middle of which other programs begin to use the cores.
"""

import os
import tempfile
import threading
from pathlib import Path

from fakes.agent import run_of
from fakes.browser import Browser, window
from fakes.engine import real_engine
from fakes.load import busy_processes
from fakes.running import Answer, RunningProxy, chat, running_proxy

DOCS = Path(__file__).parent.parent / "docs"
WIDTH = 1000
MODEL = "smollm2-135m"
CORES = os.cpu_count() or 1
USUAL = 4  # requests from which slowtok learns what is usual here
BEFORE_S, BUSY_S = 2.0, 8.0


def picture(browser: Browser, name: str, last: str) -> None:
    """Keep what the page shows, from its header to the end of the last element of this kind."""
    browser.says("#link-state", "live")
    height = browser.run(
        f"return Math.ceil([...document.querySelectorAll('main {last}')].at(-1)"
        ".getBoundingClientRect().bottom + scrollY) + 16"
    )
    browser.size(WIDTH, height)
    browser.driver.save_screenshot(str(DOCS / name))


def disturbed(proxy: RunningProxy) -> Answer:
    """Return an answer in the middle of which other programs used all cores for a while."""

    def disturb() -> None:
        with busy_processes(3 * CORES):
            threading.Event().wait(BUSY_S)

    later = threading.Timer(BEFORE_S, disturb)
    later.start()
    answer = proxy.ask(chat(tokens=900, stream=True, model=MODEL))
    later.join()
    return answer


def main() -> None:
    """Make the run and the request, and their pictures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        real_engine(threads=1, slots=1, context=8192, alias=MODEL) as engine,
        running_proxy(Path(folder), engine.url) as proxy,
        window() as browser,
    ):
        run = run_of(proxy, "tidy-up", clock=True)
        browser.size(WIDTH, 900)
        browser.open(f"{proxy.url}/slowtok/#runs/{run['id']}")
        browser.says("main", "Fix first")
        picture(browser, "run.png", "table")
        for _ in range(USUAL):
            proxy.ask(chat(tokens=300, stream=True, model=MODEL))
        answer = disturbed(proxy)
        browser.size(WIDTH, 900)
        browser.open(f"{proxy.url}/slowtok/#request/{answer.record['id']}")
        browser.says("main", "Over time")
        browser.until(lambda: browser.all("main canvas"))
        picture(browser, "page.png", "canvas")


if __name__ == "__main__":
    main()
