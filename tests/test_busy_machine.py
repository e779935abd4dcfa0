"""A test of an engine's speed beside other programs: it is skipped with a number, not failed."""

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from fakes.others_cpu import OthersCpu

pytest_plugins = ["pytester"]

SPEED_TEST = """
import pytest

@pytest.mark.engine_speed
def test_speed():
    assert 1 > 2, "slow"

def test_else():
    assert 1 > 2
"""


@pytest.fixture
def cpu_times(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The CPU time of the whole machine, and a clock."""
    machine = SimpleNamespace(user=1000.0, nice=10.0, system=100.0, steal=0.0, now_s=50.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda: machine)
    monkeypatch.setattr("fakes.others_cpu.time.monotonic", lambda: machine.now_s)
    return machine


def test_what_others_used_counts_and_what_the_host_kept(cpu_times: SimpleNamespace) -> None:
    meter = OthersCpu()
    cpu_times.now_s += 10.0
    cpu_times.user += 12.0
    cpu_times.steal += 8.0

    assert meter.cores() == pytest.approx(2.0, abs=0.1)


def test_what_a_child_used_does_not_count(cpu_times: SimpleNamespace) -> None:
    meter = OthersCpu()
    before = os.times()
    subprocess.run([sys.executable, "-c", "sum(range(30_000_000))"], check=True)
    after = os.times()
    used_s = after.children_user + after.children_system
    used_s -= before.children_user + before.children_system
    assert used_s > 0
    cpu_times.now_s += used_s
    cpu_times.user += used_s

    assert meter.cores() == pytest.approx(0.0, abs=0.3)


@pytest.mark.parametrize(("cores", "failed", "skipped"), [(1.9, 1, 1), (0.2, 2, 0)])
def test_a_test_of_speed_that_fails_is_skipped_beside_others(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    cores: float,
    failed: int,
    skipped: int,
) -> None:
    monkeypatch.setattr(OthersCpu, "cores", lambda _: cores)
    pytester.makeconftest(
        "from fakes.speed_tests import pytest_runtest_call, pytest_runtest_makereport"
    )
    pytester.makepyfile(SPEED_TEST)

    result = pytester.runpytest_inprocess(
        *["-rs", "-o", "asyncio_default_fixture_loop_scope=function"]
    )

    result.assert_outcomes(failed=failed, skipped=skipped)
    if skipped:
        result.stdout.fnmatch_lines(
            ["*other programs used 1.9 cores meanwhile (failed with: slow*"]
        )
