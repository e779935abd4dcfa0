import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slowtok.proxy.sampling.host.cgroup import (
    CgroupReader,
    Quota,
    Throttling,
    find_folders,
    find_tightest,
    parse_mounts,
    parse_quota_v1,
    parse_quota_v2,
    parse_throttling,
)
from slowtok.proxy.sampling.host.procfs import ProcFiles

# Recorded on a machine with v1 controllers and an empty v2 hierarchy beside them.
MOUNTS_HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
MEMBERSHIP_HYBRID = "4:memory:/process_api/b016\n3:cpuset:/\n2:cpuacct:/\n1:cpu:/server\n0::/\n"

# The layout of systemd: optional fields before the dash, one v2 mount.
MOUNTS_V2 = (
    "35 25 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 "
    "rw,nsdelegate,memory_recursiveprot\n"
)
MEMBERSHIP_V2 = "0::/system.slice/ollama.service\n"

CPU_STAT_V1 = b"nr_periods 40\nnr_throttled 30\nthrottled_time 2500000000\nnr_bursts 0\n"
CPU_STAT_V2 = b"usage_usec 10\nuser_usec 6\nsystem_usec 4\nnr_periods 40\nnr_throttled 30\n"


def test_the_v1_cpu_hierarchy_has_the_say_where_there_is_one() -> None:
    found = find_folders(MEMBERSHIP_HYBRID, parse_mounts(MOUNTS_HYBRID))

    assert found == (1, ["/sys/fs/cgroup/cpu/server", "/sys/fs/cgroup/cpu"])


def test_v1_with_two_controllers_in_one_mount() -> None:
    mounts = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    found = find_folders("3:cpu,cpuacct:/a/b\n0::/\n", parse_mounts(mounts))

    top = "/sys/fs/cgroup/cpu,cpuacct"
    assert found == (1, [f"{top}/a/b", f"{top}/a", top])


def test_v2_goes_up_to_the_mount() -> None:
    found = find_folders(MEMBERSHIP_V2, parse_mounts(MOUNTS_V2))

    top = "/sys/fs/cgroup"
    slice_ = f"{top}/system.slice"
    assert found == (2, [f"{slice_}/ollama.service", slice_, top])


def test_a_container_sees_its_own_group_as_the_mount() -> None:
    mounts = "40 31 0:29 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"

    assert find_folders("1:cpu:/docker/abc\n", parse_mounts(mounts)) == (
        1,
        ["/sys/fs/cgroup/cpu"],
    )


def test_a_group_outside_of_the_namespace_is_not_guessed_at() -> None:
    """The mount is slowtok's own container then, whose quota says nothing of another one's."""
    assert find_folders("0::/../../other\n", parse_mounts(MOUNTS_V2)) is None


def test_no_cgroup_at_all_is_unknown() -> None:
    assert find_folders("", []) is None
    assert find_folders(MEMBERSHIP_V2, parse_mounts(MOUNTS_HYBRID)[:1]) is None


def test_quotas() -> None:
    assert parse_quota_v2(b"max 100000\n") is None
    assert parse_quota_v2(b"") is None
    assert parse_quota_v2(b"150000 100000\n") == 1.5
    assert parse_quota_v1(b"-1\n", b"100000\n") is None
    assert parse_quota_v1(b"", b"") is None
    assert parse_quota_v1(b"20000\n", b"100000\n") == 0.2


def test_throttling_counts_nanoseconds_in_v1_and_microseconds_in_v2() -> None:
    expected = Throttling(periods=40, throttled_periods=30, throttled_s=2.5)

    assert parse_throttling(CPU_STAT_V1) == expected
    assert parse_throttling(CPU_STAT_V2 + b"throttled_usec 2500000\n") == expected
    assert parse_throttling(b"usage_usec 10\n") is None  # the cpu controller is off in this group


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    leaf = tmp_path / "slice" / "service"
    leaf.mkdir(parents=True)
    (leaf / "cpu.max").write_text("400000 100000\n")
    (leaf.parent / "cpu.max").write_text("150000 100000\n")
    folders = [str(leaf), str(leaf.parent), str(tmp_path)]

    assert find_tightest(2, folders) == (True, Quota(1.5, str(leaf.parent)))
    assert find_tightest(2, folders[:1]) == (True, Quota(4.0, str(leaf)))
    assert find_tightest(2, folders[2:]) == (True, None)


def test_a_group_that_cannot_be_looked_at_is_not_without_a_quota(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").mkdir()  # to read it fails, whoever reads
    gone = tmp_path / "gone"

    assert find_tightest(2, [str(tmp_path)]) == (False, None)
    assert find_tightest(2, [str(gone)]) == (False, None)


def test_a_quota_that_is_found_counts_though_not_all_groups_were_seen(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")

    found = find_tightest(2, [str(tmp_path / "gone"), str(tmp_path)])

    assert found == (False, Quota(0.5, str(tmp_path)))


@pytest.mark.skipif(sys.platform != "linux", reason="there are no cgroups here")
def test_without_a_quota_throttling_is_a_measured_zero() -> None:
    reader = CgroupReader(ProcFiles(), os.getpid())
    fields = reader.read(slow_tier=True)
    if "server_quota_cores" in fields:
        pytest.skip("this very process runs under a quota")

    assert fields["server_throttled_ratio"] == 0.0


def test_an_ended_process_is_unknown_and_not_zero() -> None:
    fields = CgroupReader(ProcFiles(), 2**22 + 1).read(slow_tier=True)

    assert fields == {"server_throttled_ratio": None, "server_throttled_s_per_s": None}


@pytest.fixture
def fifth_of_a_core() -> Iterator[Path]:
    """Make a group with a quota of 0.2 cores, v1 or v2, whichever this machine lets us write."""
    name = f"slowtok-test-{os.getpid()}"
    for folder, quota_file, quota in (
        (Path("/sys/fs/cgroup/cpu") / name, "cpu.cfs_quota_us", "20000"),
        (Path("/sys/fs/cgroup") / name, "cpu.max", "20000 100000"),
    ):
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / quota_file).write_text(quota)
            yield folder
            return
        except OSError:
            continue
        finally:
            folder.rmdir()
    pytest.skip("no cgroup with a cpu controller can be made here (not root, or read-only)")


def test_a_quota_that_begins_is_seen_and_throttles(fifth_of_a_core: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            reader = CgroupReader(ProcFiles(), child.pid)
            free = reader.read(slow_tier=True)
            (fifth_of_a_core / "cgroup.procs").write_text(str(child.pid))
            first = reader.read(slow_tier=True)
            time.sleep(0.7)  # real throttling takes real time: seven periods
            second = reader.read(slow_tier=False)
        finally:
            child.kill()
            child.wait()

    assert free.get("server_quota_cores") != 0.2
    assert first["server_quota_cores"] == 0.2
    assert second["server_quota_cores"] == 0.2
    assert (second["server_throttled_ratio"] or 0) > 0.3
    assert (second["server_throttled_s_per_s"] or 0) > 0.2
