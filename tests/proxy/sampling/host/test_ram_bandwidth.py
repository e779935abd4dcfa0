import json
import subprocess
import sys
from pathlib import Path

import pytest

from slowtok.proxy.sampling.host.ram_bandwidth import (
    BUFFER_BYTES,
    WINDOWS,
    Plan,
    available_bytes,
    cache_bytes,
    make_plan,
    measure,
)

MIB = 1 << 20
GIB = 1 << 30


def test_too_little_free_memory_is_not_touched() -> None:
    assert make_plan(8, 500 * MIB, cache_bytes=32 * MIB * 4) is None


def test_a_gibibyte_free_is_enough_for_usual_caches() -> None:
    plan = make_plan(8, GIB, None)

    assert plan == Plan(threads=8, buffer_bytes=32 * MIB)


def test_plan_takes_at_most_a_quarter_of_the_free_memory() -> None:
    plan = make_plan(4, 640 * MIB, cache_bytes=16 * MIB)

    assert plan == Plan(threads=4, buffer_bytes=40 * MIB)


def test_plan_is_bounded_on_a_large_machine() -> None:
    assert make_plan(96, 1024 * GIB, 64 * MIB) == Plan(threads=16, buffer_bytes=BUFFER_BYTES)


def test_buffers_exceed_large_caches() -> None:
    plan = make_plan(96, 1024 * GIB, cache_bytes=1152 * MIB)

    assert plan is not None
    assert plan.threads * plan.buffer_bytes >= 2 * 1152 * MIB


def test_unknown_cores_are_one() -> None:
    assert make_plan(None, 64 * GIB, 8 * MIB) == Plan(threads=1, buffer_bytes=BUFFER_BYTES)


def test_each_last_level_cache_counts_once(tmp_path: Path) -> None:
    for cpu, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        for level, size, whose in ((1, "32K", str(cpu)), (3, "32768K", shared)):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{level}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n")
            (folder / "size").write_text(f"{size}\n")
            (folder / "shared_cpu_list").write_text(f"{whose}\n")

    assert cache_bytes(tmp_path) == 64 * MIB


def test_caches_that_nothing_tells_of_are_not_known(tmp_path: Path) -> None:
    assert cache_bytes(tmp_path) is None


def test_a_container_has_what_its_limit_leaves(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("104857600\n")
    (tmp_path / "memory.current").write_text("94371840\n")

    assert available_bytes(tmp_path) == 10 * MIB


def test_without_a_limit_the_machine_has_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")

    assert available_bytes(tmp_path) > 10 * MIB


def test_this_machine_has_a_plausible_bandwidth() -> None:
    rates = list(measure(windows=2))

    assert len(rates) == 2
    # one channel of DDR3-1066 at the least, sixteen of fast HBM at the most
    assert 1e9 < max(rates) < 5e12


def test_it_runs_as_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "slowtok.proxy.sampling.host.ram_bandwidth"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rates = [json.loads(line)["bytes_per_s"] for line in done.stdout.splitlines()]

    assert len(rates) == WINDOWS
    assert max(rates) > 1e9


@pytest.mark.parametrize("cores", [1, 3, 16, 256])
def test_a_buffer_is_whole_strides(cores: int) -> None:
    plan = make_plan(cores, 64 * GIB, 37 * MIB)

    assert plan is not None
    assert plan.buffer_bytes % (4 * MIB) == 0
