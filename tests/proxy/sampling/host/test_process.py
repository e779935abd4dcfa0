import os
import sys
import time
from pathlib import Path

import pytest

from fakes.listening_process import Server, open_descriptors, running
from slowtok.proxy.sampling.host import process
from slowtok.proxy.sampling.host.process import (
    ProcessStat,
    ThreadUse,
    TreeReader,
    find_tree,
    parse_read_bytes,
    parse_schedstat,
    parse_stat,
    read_stat,
    thread_use,
    tree_by_parents,
)
from slowtok.proxy.sampling.host.procfs import ProcFiles

# Recorded on Linux 6.18; the name is made nasty, as a program may choose any.
STAT = (
    b"5021 (a) R (b c) S 4990 5021 4990 34816 5021 4194304 1463 0 12 0 250 130 7 8 20 0 9 0 "
    b"182451 241664000 4470 18446744073709551615 94 95 14 0 0 0 0 4096 0 0 0 0 17 1 0 0 0 0 0\n"
)
IO = b"rchar: 6976\nwchar: 0\nsyscr: 10\nsyscw: 0\nread_bytes: 4096\nwrite_bytes: 0\n"

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc here")


def test_stat_with_blanks_and_brackets_in_the_name() -> None:
    assert parse_stat(STAT) == ProcessStat(
        name="a) R (b c",
        parent=4990,
        major_faults=12,
        cpu_s=380 / os.sysconf("SC_CLK_TCK"),
        threads=9,
        started_ticks=182451,
    )


@pytest.mark.parametrize("text", [b"", b"5021 (cut", b"5021 (cut) S 1 2 3"])
def test_stat_that_is_cut_is_none(text: bytes) -> None:
    assert parse_stat(text) is None


def test_read_bytes_are_what_storage_gave() -> None:
    assert parse_read_bytes(IO) == 4096
    assert parse_read_bytes(b"") is None


def test_schedstat() -> None:
    assert parse_schedstat(b"1021136957 5988331 259\n") == (1021136957, 5988331)
    assert parse_schedstat(b"") is None


def test_thread_use_counts_threads_that_ran_half_of_the_time() -> None:
    before = {"1": (0, 0), "2": (0, 0), "3": (10**9, 0)}
    now = {"1": (125 * 10**6, 0), "2": (124 * 10**6, 125 * 10**6), "3": (10**9, 0)}

    assert thread_use(before, now, elapsed_s=0.25) == ThreadUse(
        busy=1, run_delay_cores=0.5, worst_delay_ratio=0.5
    )


def test_the_worst_wait_is_that_of_a_thread_that_works() -> None:
    before = {"worker": (0, 0), "held up": (0, 0), "helper": (0, 0), "seldom": (0, 0)}
    ms = 10**6
    now = {
        "worker": (190 * ms, 10 * ms),
        "held up": (120 * ms, 80 * ms),
        "helper": (2 * ms, 198 * ms),
        "seldom": (30 * ms, 20 * ms),
    }

    use = thread_use(before, now, elapsed_s=0.2)

    assert use is not None
    assert use.worst_delay_ratio == pytest.approx(0.4)


def test_a_thread_that_ended_takes_nothing_away_and_a_new_one_began_at_zero() -> None:
    before = {"1": (5 * 10**9, 5 * 10**9)}
    now = {"2": (15 * 10**7, 10**7)}

    use = thread_use(before, now, elapsed_s=0.2)

    assert use is not None
    assert use.busy == 1
    assert use.run_delay_cores == pytest.approx(0.05)


def tree_of(server: Server) -> TreeReader:
    stat = read_stat(server.pid)
    assert stat is not None
    return TreeReader(ProcFiles(), server.pid, stat.started_ticks)


@needs_proc
def test_the_first_reading_knows_sizes_but_no_rates(quiet_server: Server) -> None:
    fields = tree_of(quiet_server).read(slow_tier=True)

    assert fields is not None
    assert fields["server_cpu_cores"] is None
    assert "server_busy_threads" not in fields
    assert fields["server_threads"] == 1
    assert (fields["server_anon_bytes"] or 0) > 1 << 20
    assert (fields["server_file_bytes"] or 0) > 1 << 20
    assert fields["server_allowed_cores"] == len(os.sched_getaffinity(0))


@needs_proc
def test_a_quiet_server_uses_nothing(quiet_server: Server) -> None:
    tree = tree_of(quiet_server)
    tree.read(slow_tier=True)
    time.sleep(0.2)  # rates are measured over real time
    fields = tree.read(slow_tier=False)

    assert fields is not None
    assert fields["server_cpu_cores"] == pytest.approx(0.0, abs=0.1)
    assert fields["server_busy_threads"] == 0


@needs_proc
def test_a_spinning_thread_is_seen_as_one_busy_thread(busy_server: Server) -> None:
    tree = tree_of(busy_server)
    tree.read(slow_tier=True)
    time.sleep(0.5)  # rates are measured over real time
    fields = tree.read(slow_tier=False)

    assert fields is not None
    ran_and_waited = (fields["server_cpu_cores"] or 0) + (fields["server_run_delay_cores"] or 0)
    assert ran_and_waited == pytest.approx(1.0, abs=0.2)
    assert fields["server_threads"] == 2


@needs_proc
def test_the_end_of_the_server_is_none_and_closes_its_files(busy_server: Server) -> None:
    tree = tree_of(busy_server)
    before = open_descriptors()
    tree.read(slow_tier=True)
    assert open_descriptors() > before
    os.kill(busy_server.pid, 9)
    os.waitid(os.P_PID, busy_server.pid, os.WEXITED | os.WNOWAIT)  # a zombie is left, not reaped

    assert tree.read(slow_tier=True) is None
    assert open_descriptors() == before


@needs_proc
def test_children_belong_to_the_server() -> None:
    with running("0", "parent") as server:
        tree = tree_of(server)
        fields = tree.read(slow_tier=True)
        members = list(tree.members)

    assert fields is not None
    assert members[0] == server.pid
    assert len(members) == 2
    assert fields["server_threads"] == 2


@needs_proc
def test_children_are_found_by_their_parents_where_the_kernel_keeps_no_lists(
    tmp_path: Path,
) -> None:
    with running("0", "parent") as server:
        by_lists = find_tree(ProcFiles(), server.pid)
        by_parents = tree_by_parents(server.pid)
    for pid, parent in ((700, 1), (701, 700), (702, 701), (800, 1)):
        (tmp_path / str(pid) / "task" / str(pid)).mkdir(parents=True)
        fields = f"S {parent} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 5 0 0"
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (vllm) {fields}\n")
    listed = find_tree(ProcFiles(), 700, str(tmp_path))

    assert by_lists == by_parents
    assert len(by_parents) == 2
    assert listed is None
    assert tree_by_parents(700, str(tmp_path)) == [700, 701, 702]


@needs_proc
def test_a_child_that_comes_later_belongs_to_the_server_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "find_tree", lambda *_: None)  # as without CONFIG_PROC_CHILDREN
    monkeypatch.setattr(process, "LOOK_AT_ALL_S", 0.0)
    own = read_stat(os.getpid())
    assert own is not None
    tree = TreeReader(ProcFiles(), os.getpid(), own.started_ticks)
    tree.read(slow_tier=True)
    before = set(tree.members)
    with running("0", "parent") as server:
        cheap = tree.read(slow_tier=False)
        tree.read(slow_tier=True)
        during = set(tree.members)
    after = tree.read(slow_tier=True)

    assert cheap is not None
    assert cheap["server_processes"] == len(before)
    assert server.pid in during - before
    assert len(during - before) == 2  # and its own child
    assert after is not None
    assert server.pid not in tree.members


@needs_proc
def test_the_cpu_of_the_listening_process_and_of_the_busiest_one(busy_server: Server) -> None:
    own = read_stat(os.getpid())
    assert own is not None
    tree = TreeReader(ProcFiles(), os.getpid(), own.started_ticks)
    first = tree.read(slow_tier=True)
    time.sleep(0.5)  # rates are measured over real time
    fields = tree.read(slow_tier=False)

    assert first is not None
    assert first["server_busiest_process_cores"] is None
    cores = {pid: member.rates["cpu"] or 0.0 for pid, member in tree.members.items()}
    assert fields is not None
    assert fields["server_processes"] == len(cores) >= 2
    assert fields["server_main_process_cores"] == cores[os.getpid()]
    assert fields["server_busiest_process_cores"] == max(cores.values()) > 0
    assert fields["server_cpu_cores"] == pytest.approx(sum(cores.values()))


@needs_proc
def test_a_pid_that_is_used_again_is_another_process(quiet_server: Server) -> None:
    stat = read_stat(quiet_server.pid)
    assert stat is not None
    tree = TreeReader(ProcFiles(), quiet_server.pid, stat.started_ticks - 1)

    assert tree.read(slow_tier=True) is None
