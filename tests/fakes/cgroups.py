"""Real limits for a real process: a control group of its own, version 1 or 2."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000


@contextlib.contextmanager
def cpu_quota(pid: int, cores: float) -> Iterator[None]:
    """Hold a process to `cores` of CPU time until the block ends."""
    quota_us = int(cores * PERIOD_US)
    if (ROOT / "cpu" / "cpu.cfs_quota_us").exists():
        limits = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
        with _group(ROOT / "cpu", pid, limits):
            yield
    elif "cpu" in _controllers():
        with _group(ROOT, pid, {"cpu.max": f"{quota_us} {PERIOD_US}"}):
            yield
    else:
        pytest.skip("no cpu controller that this user may use")


@contextlib.contextmanager
def memory_limit(pid: int, limit_bytes: int) -> Iterator[None]:
    """Hold a process to `limit_bytes` of memory, its page cache included."""
    if (ROOT / "memory" / "memory.limit_in_bytes").exists():
        limits = {
            "memory.move_charge_at_immigrate": "3",
            "memory.limit_in_bytes": str(limit_bytes),
        }
        with _group(ROOT / "memory", pid, limits):
            yield
    elif "memory" in _controllers():
        with _group(ROOT, pid, {"memory.max": str(limit_bytes)}):
            yield
    else:
        pytest.skip("no memory controller that this user may use")


def _controllers() -> list[str]:
    with contextlib.suppress(OSError):
        return (ROOT / "cgroup.subtree_control").read_text().split()
    return []


@contextlib.contextmanager
def _group(parent: Path, pid: int, limits: dict[str, str]) -> Iterator[None]:
    group = parent / f"slowtok-test-{pid}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group may be made here: {error.strerror}")
    try:
        for name, value in limits.items():
            with contextlib.suppress(OSError):  # not every kernel moves charges
                (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with contextlib.suppress(OSError):
            (parent / "cgroup.procs").write_text(str(pid))
        _remove(group)


def _remove(group: Path) -> None:
    for _ in range(50):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.02)  # the kernel lets go of a group a moment after its last process
