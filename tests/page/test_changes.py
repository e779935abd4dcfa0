"""What changed where the rate stepped: the page's own judgement, on data alone."""

from collections.abc import Sequence
from typing import Any

from fakes.browser import Browser
from fakes.page_stage import Stage

KIND = "{title: 'Power', least: 10, format: v => `${v} W`, lanes: [['power_w', 'draw']]}"
DECODE = [{"phase": "decode", "from_s": 0.0, "to_s": 10.0}]


def changes(
    browser: Browser,
    power_w: Sequence[float | None],
    *,
    brakes: list[dict[str, Any]] | None = None,
    phases: list[dict[str, Any]] = DECODE,
) -> Any:
    """What is said to have changed after 5 s; a sample each second."""
    at_s = [float(i) + 0.5 for i in range(len(power_w))]
    holder = {"at_s": at_s, "lanes": {"power_w": power_w}, "brakes": brakes or []}
    use = f"it.changesAt(5, [{KIND}], given[0], {{phases: given[1]}})"
    return browser.module("changes", use, holder, phases)


def test_another_level_is_a_change_and_scatter_is_none(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)

    assert changes(browser, [200.0] * 5 + [100.0] * 5) == ["Power, draw: from 200 W to 100 W"]
    assert changes(browser, [200.0] * 10) == []
    assert changes(browser, [200.0, 100.0] * 5) == []
    assert changes(browser, [200.0] * 5 + [190.0] * 5) == []  # a twentieth
    assert changes(browser, [9.0] * 5 + [4.0] * 5) == []  # half, of next to nothing


def test_what_was_not_seen_did_not_change(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)

    assert changes(browser, []) == []
    assert changes(browser, [None] * 5 + [100.0] * 5) == []
    assert changes(browser, [None] * 4 + [200.0] + [100.0] * 5) == []
    prefill_before = [{"phase": "decode", "from_s": 4.0, "to_s": 10.0}]
    assert changes(browser, [200.0] * 5 + [100.0] * 5, phases=prefill_before) == []


def test_a_brake_that_begins_or_ends_there_is_named(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)

    def brake(from_s: float, to_s: float) -> list[dict[str, Any]]:
        return [{"reason": "hw-thermal", "from_s": from_s, "to_s": to_s}]

    begun = ["clocks held down by hw-thermal, from there on"]
    over = ["clocks held down by hw-thermal, until there"]
    assert changes(browser, [], brakes=brake(4.5, 10.0)) == begun
    assert changes(browser, [], brakes=brake(0.0, 5.5)) == over
    assert changes(browser, [], brakes=brake(0.0, 10.0)) == []
