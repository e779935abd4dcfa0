"""Tests whose subject is how fast a real engine is here, and others' load, which spoils them.

Such a test (marked `engine_speed`) is tried again when it fails, as load comes and goes. It fails
for good only where its engine had this machine to itself: where other programs were measured to
have a good part of the cores meanwhile, it is skipped, and the summary gives the number.
"""

from collections.abc import Generator

import pytest

from fakes.others_cpu import OthersCpu

AGAIN = pytest.mark.flaky(reruns=3, reruns_delay=5)
BUSY_CORES = 0.5  # heuristic: what the system does by itself stays far below
METER = pytest.StashKey[OthersCpu]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each of them be tried again. All other tests have one try: their time is data."""
    for item in items:
        if item.get_closest_marker("engine_speed"):
            item.add_marker(AGAIN)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Begin to measure what other programs use."""
    if item.get_closest_marker("engine_speed"):
        item.stash[METER] = OthersCpu()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a failure beside busy programs into a skip that says how busy they were."""
    report = yield
    meter = item.stash.get(METER, None)
    if call.when == "call" and report.failed and meter is not None:
        cores = meter.cores()
        if cores > BUSY_CORES:
            path, line, _ = item.location
            report.outcome = "skipped"
            report.longrepr = (path, line or 0, _not_judged(cores, call))
    return report


def _not_judged(cores: float, call: pytest.CallInfo[None]) -> str:
    failure = str(call.excinfo.value).splitlines() if call.excinfo else []
    said = failure[0] if failure else "no message"
    return f"not judged: other programs used {cores:.1f} cores meanwhile (failed with: {said})"
