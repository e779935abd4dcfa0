"""Real limits for a real process: a control group of its own, version 1 or 2."""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A memory group for a process that is started with `within` in front of its command."""

    path: Path
    limit_file: str

    @property
    def within(self) -> tuple[str, ...]:
        return "sh", "-c", f'echo $$ > {self.path}/cgroup.procs; exec "$@"', "sh"

    def limit(self, limit_bytes: int) -> None:
        """Hold the group to `limit_bytes`, its page cache included: the kernel takes pages back."""
        (self.path / self.limit_file).write_text(str(limit_bytes))


@contextlib.contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """Make a memory group; its processes must have ended when the block ends."""
    if (ROOT / "memory" / "memory.limit_in_bytes").exists():
        parent, limit_file = ROOT / "memory", "memory.limit_in_bytes"
    elif "memory" in _controllers():
        parent, limit_file = ROOT, "memory.max"
    else:
        pytest.skip("no memory controller that this user may use")
    with _made(parent / f"slowtok-test-memory-{os.getpid()}") as path:
        yield MemoryGroup(path, limit_file)


def _controllers() -> list[str]:
    with contextlib.suppress(OSError):
        return (ROOT / "cgroup.subtree_control").read_text().split()
    return []


@contextlib.contextmanager
def _group(parent: Path, pid: int, limits: dict[str, str]) -> Iterator[None]:
    with _made(parent / f"slowtok-test-{pid}") as group:
        try:
            for name, value in limits.items():
                (group / name).write_text(value)
            (group / "cgroup.procs").write_text(str(pid))
            yield
        finally:
            with contextlib.suppress(OSError):
                (parent / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def _made(group: Path) -> Iterator[Path]:
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group may be made here: {error.strerror}")
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    for _ in range(50):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.02)  # the kernel lets go of a group a moment after its last process
