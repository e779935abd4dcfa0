import json
import subprocess
import sys

import pytest

from slowtok.proxy.sampling.ram_bandwidth import BUFFER_BYTES, Plan, make_plan, measure

GIB = 1 << 30


def test_too_little_free_memory_is_not_touched() -> None:
    assert make_plan(8, GIB) is None


def test_plan_takes_at_most_a_quarter_of_the_free_memory() -> None:
    plan = make_plan(4, 2 * GIB)

    assert plan == Plan(threads=4, buffer_bytes=GIB // 8)


def test_plan_is_bounded_on_a_large_machine() -> None:
    assert make_plan(96, 1024 * GIB) == Plan(threads=8, buffer_bytes=BUFFER_BYTES)


def test_unknown_cores_are_one() -> None:
    assert make_plan(None, 64 * GIB) == Plan(threads=1, buffer_bytes=BUFFER_BYTES)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no libc to be found by name")
def test_this_machine_has_a_plausible_bandwidth() -> None:
    bytes_per_s = measure(seconds=0.2)

    assert bytes_per_s is not None
    # one channel of DDR3-1066 at the least, sixteen of fast HBM at the most
    assert 1e9 < bytes_per_s < 5e12


@pytest.mark.skipif(sys.platform == "win32", reason="there is no libc to be found by name")
def test_it_runs_as_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "slowtok.proxy.sampling.ram_bandwidth"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert json.loads(done.stdout)["bytes_per_s"] > 1e9
