"""The CPU quota that a process runs under, and how often it ran into it; cgroup v1 and v2.

Strategy: the kernel enforces the quota of every group from the process's own up to the root, so
the tightest one on that way counts, and its throttling counters are the ones to read. Where no
group on the way has a quota, nothing can throttle: that is a measured zero, not an unknown. What
cannot be looked at is unknown: a file that may not be read, and a group outside of what is mounted
here, such as another container's; slowtok's own quota says nothing of the server's.
"""

import os
import time
from typing import NamedTuple

from slowtok.proxy.sampling.host.host import Fields, parse_field
from slowtok.proxy.sampling.host.procfs import CounterRate, ProcFiles, read_whole


class Mount(NamedTuple):
    """One cgroup file system: `root` of the hierarchy is seen at `point`."""

    version: int
    root: str
    point: str
    controllers: frozenset[str]


class Throttling(NamedTuple):
    """Counters since the group was made."""

    periods: int
    throttled_periods: int
    throttled_s: float


class Quota(NamedTuple):
    """The tightest quota on the way up; `folder` is the group that sets it."""

    cores: float
    folder: str


def parse_mounts(mountinfo: str) -> list[Mount]:
    """Read the cgroup mounts of /proc/<pid>/mountinfo (fields: proc_pid_mountinfo(5))."""
    mounts = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or not kind or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        options = frozenset(kind[-1].split(","))
        mounts.append(Mount(version, fields[3], fields[4], options))
    return mounts


def find_folders(membership: str, mounts: list[Mount]) -> tuple[int, list[str]] | None:
    """Return the cgroup version and the groups from the process's own up to the mount's top.

    `membership` is /proc/<pid>/cgroup. A v1 hierarchy with the cpu controller has the say where
    there is one: a controller is in one hierarchy only.
    """
    paths: dict[int, str] = {}
    for line in membership.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "cpu" in controllers.split(","):
            paths[1] = path
        elif not controllers:
            paths[2] = path
    version = min(paths, default=0)
    if ".." in paths.get(version, "").split("/"):
        return None  # outside of this cgroup namespace: nothing of it can be seen
    for mount in mounts:
        if mount.version == version and (version == 2 or "cpu" in mount.controllers):
            return version, _folders_up(paths[version], mount)
    return None


def _folders_up(path: str, mount: Mount) -> list[str]:
    root = mount.root.rstrip("/")
    if path == root or path.startswith(root + "/"):
        path = path[len(root) :]
    parts = [part for part in path.split("/") if part]
    return ["/".join([mount.point, *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def parse_quota_v2(cpu_max: bytes) -> float | None:
    """Return cores from `cpu.max`, such as `400000 100000`; None for `max`, no limit."""
    words = cpu_max.split()
    if len(words) != 2 or words[0] == b"max":
        return None
    return int(words[0]) / int(words[1])


def parse_quota_v1(quota_us: bytes, period_us: bytes) -> float | None:
    """Return cores from `cpu.cfs_quota_us` and `cpu.cfs_period_us`; -1 is no limit."""
    quota, period = int(quota_us or -1), int(period_us or 0)
    return quota / period if quota > 0 and period > 0 else None


def parse_throttling(cpu_stat: bytes) -> Throttling | None:
    """Read `cpu.stat`: v2 counts microseconds in `throttled_usec`, v1 nanoseconds."""
    periods = parse_field(cpu_stat, b"nr_periods ")
    throttled = parse_field(cpu_stat, b"nr_throttled ")
    if periods is None or throttled is None:
        return None
    usec = parse_field(cpu_stat, b"throttled_usec ")
    if usec is not None:
        return Throttling(periods, throttled, usec / 1e6)
    return Throttling(periods, throttled, (parse_field(cpu_stat, b"throttled_time ") or 0) / 1e9)


def read_quota(version: int, folder: str) -> float | None:
    """Return the quota in cores that one group sets itself, or None where it sets none.

    Raises:
        OSError: it cannot be looked at.
    """
    if version == 2:
        return parse_quota_v2(_setting(folder, "cpu.max"))
    quota_us = _setting(folder, "cpu.cfs_quota_us")
    return parse_quota_v1(quota_us, _setting(folder, "cpu.cfs_period_us"))


def _setting(folder: str, name: str) -> bytes:
    """Return a group's file; empty where the group has none of that name, as the uppermost one."""
    try:
        with open(f"{folder}/{name}", "rb") as file:
            return file.read()
    except FileNotFoundError:
        os.listdir(folder)  # a group that is not there is another thing than one without a quota
        return b""


def find_groups(membership: bytes | None) -> tuple[int, list[str]] | None:
    """Return the groups of a process, as `find_folders`; None where they cannot be found."""
    mounts = read_whole("/proc/self/mountinfo")
    if membership is None or mounts is None:
        return None
    return find_folders(membership.decode(), parse_mounts(mounts.decode(errors="replace")))


def find_tightest(version: int, folders: list[str]) -> tuple[bool, Quota | None]:
    """Return whether all groups could be looked at, and the smallest quota that any of them sets.

    One that is found counts, whatever the others set: it is the most that the process has.
    """
    quotas, is_whole = [], True
    for folder in folders:
        try:
            cores = read_quota(version, folder)
        except OSError:
            is_whole = False
            continue
        if cores is not None:
            quotas.append(Quota(cores, folder))
    return is_whole, min(quotas, default=None)


class CgroupReader:
    """Reads the quota and the throttling of one process.

    The groups are looked for when the process was moved, their quotas at each reading of the slow
    tier: a limit that begins while a request is on its way must be seen in its samples.
    """

    def __init__(self, files: ProcFiles, pid: int) -> None:
        self._files = files
        self._pid = pid
        self._membership: bytes | None = None
        self._groups: tuple[int, list[str]] | None = None
        self._known = False
        self._quota: Quota | None = None
        self._periods, self._throttled, self._throttled_s = (
            CounterRate(),
            CounterRate(),
            CounterRate(),
        )

    def read(self, *, slow_tier: bool) -> Fields:
        """Return the fields as they are now; `slow_tier` also looks for a changed quota."""
        if slow_tier:
            self._look()
        if self._quota is None:
            nothing = 0.0 if self._known else None
            return {"server_throttled_ratio": nothing, "server_throttled_s_per_s": nothing}
        return {"server_quota_cores": self._quota.cores} | self._read_throttling(self._quota)

    def _look(self) -> None:
        membership = read_whole(f"/proc/{self._pid}/cgroup")
        if membership != self._membership:
            self._membership, self._groups = membership, find_groups(membership)
        before, self._quota = self._quota, None
        self._known = False
        if self._groups is not None:
            self._known, self._quota = find_tightest(*self._groups)
        if before is None or self._quota is None or before.folder != self._quota.folder:
            self._periods, self._throttled, self._throttled_s = (
                CounterRate(),
                CounterRate(),
                CounterRate(),
            )

    def _read_throttling(self, quota: Quota) -> Fields:
        counters = parse_throttling(self._files.read(f"{quota.folder}/cpu.stat") or b"")
        if counters is None:
            return {}
        at_s = time.monotonic()
        periods = self._periods.per_s(counters.periods, at_s)
        throttled = self._throttled.per_s(counters.throttled_periods, at_s)
        ratio = None
        if periods is not None and throttled is not None:
            # no period passes while the group has nothing to run, and then nothing waits either
            ratio = min(throttled / periods, 1.0) if periods else 0.0
        seconds = self._throttled_s.per_s(counters.throttled_s, at_s)
        return {"server_throttled_ratio": ratio, "server_throttled_s_per_s": seconds}
