"""The server's process tree: its CPU, memory, faults, reads and threads.

Strategy: every counter is differenced per process and then summed, so a child that ends takes
nothing away and one that is found late does not bring its past with it. /proc/<pid>/schedstat is
the main thread alone; the threads' own files are read instead.
"""

import os
import time
from typing import NamedTuple

from slowtok.proxy.sampling.host.host import Fields, parse_kib
from slowtok.proxy.sampling.host.procfs import CounterRate, ProcFiles, read_whole, total

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

BUSY_RATIO = 0.5
"""A thread that ran for half of the time counts as busy. Heuristic."""

WORKING_RATIO = 0.1
"""A thread that wants a core for half of the time and has one for so much takes part in the work; a
helper that hardly runs holds nobody up, however long it waits. Heuristic."""

MANY_THREADS = 64
"""Above this the threads are looked at once a second only: reading one costs about 2 us, and
vLLM has some hundreds."""

LOOK_AT_ALL_S = 2.0
LOOK_AGAIN_S = 5.0
"""How often all processes are asked for their parents, about 10 us each: where the kernel keeps no
lists of children, and where they are empty, as those of a server without any, but also of some
kernels that only have the files (gVisor)."""

MEMORY_LINES = {"anon": b"RssAnon", "file": b"RssFile"}


class ProcessStat(NamedTuple):
    """What /proc/<pid>/stat says; `started_ticks` is counted from boot and identifies the pid."""

    name: str
    parent: int
    major_faults: int
    cpu_s: float
    threads: int
    started_ticks: int


def parse_stat(text: bytes) -> ProcessStat | None:
    """Read /proc/<pid>/stat (fields: proc_pid_stat(5)); None for one that has ended.

    The name may hold blanks and brackets; a zombie has ended, whoever has not noticed yet.
    """
    head, bracket, tail = text.rpartition(b")")
    fields = tail.split()
    if not bracket or len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return ProcessStat(
        name=head.partition(b"(")[2].decode(errors="replace"),
        parent=int(fields[1]),
        major_faults=int(fields[9]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
        threads=int(fields[17]),
        started_ticks=int(fields[19]),
    )


def read_stat(pid: int, proc: str = "/proc") -> ProcessStat | None:
    """Return a process's stat, or None when there is no such process."""
    return parse_stat(read_whole(f"{proc}/{pid}/stat") or b"")


def parse_read_bytes(io: bytes) -> int | None:
    """Return what was fetched from storage, from /proc/<pid>/io; page-ins are counted too."""
    rest = io.partition(b"\nread_bytes: ")[2]
    return int(rest.split(None, 1)[0]) if rest else None


def parse_schedstat(text: bytes) -> tuple[int, int] | None:
    """Return nanoseconds on a core and nanoseconds waiting for one."""
    fields = text.split()
    return (int(fields[0]), int(fields[1])) if len(fields) == 3 else None


class ThreadUse(NamedTuple):
    """The threads of one process since the last look."""

    busy: int
    run_delay_cores: float
    worst_delay_ratio: float


class ThreadReader:
    """Reads every thread's time on a core and its wait for one."""

    def __init__(self, files: ProcFiles, pid: int) -> None:
        self._files = files
        self._folder = f"/proc/{pid}/task"
        self._last: dict[str, tuple[int, int]] = {}
        self._last_at_s: float | None = None

    def read(self) -> ThreadUse | None:
        """Return the use since the last call; None at first and where the kernel does not say."""
        now = self._read_threads()
        before, self._last = self._last, now
        before_at_s, self._last_at_s = self._last_at_s, time.monotonic()
        for ended in before.keys() - now.keys():
            self._files.drop(self._path(ended))
        if before_at_s is None or not any(ran_ns for ran_ns, _ in now.values()):
            return None
        return thread_use(before, now, self._last_at_s - before_at_s)

    def _read_threads(self) -> dict[str, tuple[int, int]]:
        now = {}
        for thread in self._list_threads():
            text = self._files.read(self._path(thread))
            values = parse_schedstat(text) if text else None
            if values is not None:
                now[thread] = values
        return now

    def _list_threads(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except OSError:
            return []

    def _path(self, thread: str) -> str:
        return f"{self._folder}/{thread}/schedstat"


def thread_use(
    before: dict[str, tuple[int, int]], now: dict[str, tuple[int, int]], elapsed_s: float
) -> ThreadUse | None:
    """Compare two looks at (nanoseconds on a core, nanoseconds waiting) of each thread."""
    if elapsed_s <= 0:
        return None
    busy = waited_ns = worst_ns = 0
    for thread, (ran_ns, delay_ns) in now.items():
        # a thread that was not there at the last look began after it, at zero
        ran_before_ns, delay_before_ns = before.get(thread, (0, 0))
        own_ran_ns, own_waited_ns = ran_ns - ran_before_ns, max(delay_ns - delay_before_ns, 0)
        busy += own_ran_ns >= BUSY_RATIO * elapsed_s * 1e9
        waited_ns += own_waited_ns
        if own_ran_ns >= WORKING_RATIO * elapsed_s * 1e9 and (
            own_ran_ns + own_waited_ns >= BUSY_RATIO * elapsed_s * 1e9
        ):
            worst_ns = max(worst_ns, own_waited_ns)
    worst_ratio = min(worst_ns / 1e9 / elapsed_s, 1.0)
    return ThreadUse(busy, waited_ns / 1e9 / elapsed_s, worst_ratio)


class ProcessReader:
    """Reads one process; `stat` is None from the moment it is gone."""

    def __init__(self, files: ProcFiles, pid: int, started_ticks: int) -> None:
        self._files = files
        self._folder = f"/proc/{pid}"
        self._started_ticks = started_ticks
        self._cpu, self._faults, self._reads = CounterRate(), CounterRate(), CounterRate()
        self.threads = ThreadReader(files, pid)
        self.stat: ProcessStat | None = None
        self.rates: Fields = {}
        self._memory: Fields = {}

    def read(self, *, slow_tier: bool) -> bool:
        """Take a reading; False when the process has ended (its pid may be another's now).

        `slow_tier` also looks at its memory, and whether it is still listed: an open file of a
        /proc that is not the kernel's own (lxcfs, gVisor) may outlive its process.
        """
        is_listed = not slow_tier or os.path.isdir(self._folder)
        stat = parse_stat(self._files.read(f"{self._folder}/stat") or b"") if is_listed else None
        at_s = time.monotonic()
        if stat is None or stat.started_ticks != self._started_ticks:
            self._files.drop_below(self._folder)
            self.stat = None
            return False
        read_bytes = parse_read_bytes(self._files.read(f"{self._folder}/io") or b"")
        self.stat = stat
        if slow_tier or not self._memory:
            status = self._files.read(f"{self._folder}/status") or b""
            self._memory = {f: parse_kib(status, n) for f, n in MEMORY_LINES.items()}
        self.rates = self._memory | {
            "cpu": self._cpu.per_s(stat.cpu_s, at_s),
            "faults": self._faults.per_s(stat.major_faults, at_s),
            "reads": self._reads.per_s(read_bytes, time.monotonic()),
        }
        return True


def find_tree(files: ProcFiles, root: int, proc: str = "/proc") -> list[int] | None:
    """Return a process and all that descend from it, parents first.

    None where the kernel does not list children by their parents (CONFIG_PROC_CHILDREN).
    """
    tree, seen = [root], {root}
    for pid in tree:  # grows while it is walked
        children = _children(files, pid, proc)
        if children is None:
            return None
        for child in children:
            if child not in seen:
                seen.add(child)
                tree.append(child)
    return tree


def _children(files: ProcFiles, pid: int, proc: str) -> list[int] | None:
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return []  # it has ended
    # the kernel lists a child under the thread that made it
    lists = [files.read(f"{proc}/{pid}/task/{thread}/children") for thread in threads]
    known = [text for text in lists if text is not None]
    return [int(child) for text in known for child in text.split()] if known else None


def tree_by_parents(root: int, proc: str = "/proc") -> list[int]:
    """Return the same from what each process of the machine says of its parent: that is dearer."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(proc):
        stat = read_stat(int(name), proc) if name.isdigit() else None
        if stat is not None:
            children.setdefault(stat.parent, []).append(int(name))
    tree = [root]
    for pid in tree:  # grows while it is walked
        tree += [child for child in children.get(pid, ()) if child not in tree]
    return tree


class TreeReader:
    """Reads the tree below one process as one server."""

    def __init__(self, files: ProcFiles, root: int, started_ticks: int) -> None:
        self._files = files
        self._root = root
        self._allowed_cores: int | None = None
        self._looked_at_all_s = -LOOK_AGAIN_S
        self.members = {root: ProcessReader(files, root, started_ticks)}

    def read(self, *, slow_tier: bool) -> Fields | None:
        """Return the server's fields, or None when its root process has ended."""
        if slow_tier:
            self._find_members()
        self.members = {
            pid: member for pid, member in self.members.items() if member.read(slow_tier=slow_tier)
        }
        if self._root not in self.members:
            return None
        stats = [member.stat for member in self.members.values() if member.stat]
        threads = sum(stat.threads for stat in stats)
        return self._sums() | {"server_threads": threads} | self._thread_fields(threads, slow_tier)

    def _find_members(self) -> None:
        for pid in self._tree():
            stat = None if pid in self.members else read_stat(pid)
            if stat is not None:
                self.members[pid] = ProcessReader(self._files, pid, stat.started_ticks)
        try:
            self._allowed_cores = len(os.sched_getaffinity(self._root))
        except OSError:
            self._allowed_cores = None

    def _tree(self) -> list[int]:
        """Return the pids of the tree; those known by now where it is not time to look at all."""
        listed = find_tree(self._files, self._root)
        if listed is not None and len(listed) > 1:
            return listed
        now_s = time.monotonic()
        if now_s - self._looked_at_all_s < (LOOK_AT_ALL_S if listed is None else LOOK_AGAIN_S):
            return list(self.members)
        self._looked_at_all_s = now_s
        return tree_by_parents(self._root)

    def _sums(self) -> Fields:
        def column(name: str) -> list[float | None]:
            return [member.rates[name] for member in self.members.values()]

        # processes of one tree map the same files: summing would count those pages twice
        file_bytes = [value for value in column("file") if value is not None]
        busy_cores = [value for value in column("cpu") if value is not None]
        return {
            "server_cpu_cores": total(column("cpu")),
            "server_processes": len(self.members),
            "server_busiest_process_cores": max(busy_cores, default=None),
            "server_main_process_cores": self.members[self._root].rates["cpu"],
            "server_anon_bytes": total(column("anon")),
            "server_file_bytes": max(file_bytes, default=None),
            "server_major_faults_per_s": total(column("faults")),
            "server_read_bytes_per_s": total(column("reads")),
            "server_allowed_cores": self._allowed_cores,
        }

    def _thread_fields(self, threads: int, slow_tier: bool) -> Fields:
        if threads > MANY_THREADS and not slow_tier:
            return {}
        uses = [member.threads.read() for member in self.members.values()]
        known = [use for use in uses if use is not None]
        if not known:
            return {}
        return {
            "server_busy_threads": sum(use.busy for use in known),
            "server_run_delay_cores": sum(use.run_delay_cores for use in known),
            "server_worst_delay_ratio": max(use.worst_delay_ratio for use in known),
        }
