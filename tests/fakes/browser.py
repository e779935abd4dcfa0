"""A real Chromium without a window, where one is installed with its driver."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

WAIT_S = 20.0
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


class Browser:
    """One window on the page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get("about:blank")  # else a change behind the # alone loads nothing
        self.driver.get(url)

    def size(self, width: int, height: int) -> None:
        """Give the page itself this size: a window cannot be as narrow as a telephone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, css: str) -> Any:
        """The first element, once it is there."""
        return self.until(lambda: next(iter(self.all(css)), None))

    def all(self, css: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", css))

    def text(self, css: str) -> str:
        """What a reader sees of it."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", css))

    def until(self, found: Callable[[], Any]) -> Any:
        """Wait for what the page does by itself."""
        from selenium.common import StaleElementReferenceException  # noqa: PLC0415 - see window
        from selenium.webdriver.support.ui import WebDriverWait  # noqa: PLC0415

        wait = WebDriverWait(
            self.driver, WAIT_S, 0.02, ignored_exceptions=[StaleElementReferenceException]
        )
        return wait.until(lambda _: found())

    def says(self, css: str, words: str) -> None:
        """Wait until an element says this."""
        from selenium.common import TimeoutException  # noqa: PLC0415 - see window

        try:
            self.until(lambda: words in self.text(css))
        except TimeoutException:
            raise AssertionError(f"{css} does not say {words!r}: {self.text(css)!r}") from None

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains  # noqa: PLC0415

        ActionChains(self.driver).send_keys(*keys).perform()

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def module(self, name: str, use: str, *arguments: Any) -> Any:
        """Import one of the page's modules as `it`, and return what the expression `use` gives."""
        script = (
            "const done = arguments[arguments.length - 1], given = [...arguments].slice(0, -1);"
            f"import('/slowtok/page/js/{name}.js').then(it => {use})"
            ".then(done, error => done(`failed: ${error}`));"
        )
        return self.driver.execute_async_script(script, *arguments)

    def complaints(self) -> list[str]:
        """What the browser complained of since it was asked last: refused by policy, broken."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def overflow(self) -> list[str]:
        """Visible elements that stick out of the page at its right."""
        return list(
            self.run(
                "const w = document.documentElement.clientWidth;"
                "return [...document.querySelectorAll('main *, header *')].filter(e =>"
                " e.getBoundingClientRect().right > w + 1 && !e.closest('.plot, .unseen'))"
                ".map(e => e.tagName + '.' + e.className)"
            )
        )


@contextlib.contextmanager
def window() -> Iterator[Browser]:
    """Open a window; the test is skipped where that cannot be."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no chromium with chromedriver here (Debian: chromium, chromium-driver)")
    from selenium import webdriver  # noqa: PLC0415 - it may be absent

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "headless=new",
        "no-sandbox",  # it cannot be had as root or in a container
        "disable-gpu",
        "disable-dev-shm-usage",
        "hide-scrollbars",
        "force-device-scale-factor=1",
    ):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(WAIT_S)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
