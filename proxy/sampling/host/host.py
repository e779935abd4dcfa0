"""The machine as a whole: cores, memory, swap, pressure, clock, power, process numbers.

Strategy: parsers take the bytes of one file and return numbers; `HostReader` reads the files and
keeps what is needed to form rates. A file that is not there leaves its fields None. Facts of the
operating system that may change in use, power above all, are read apart.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slowtok.proxy.sampling.host.procfs import CounterRate, ProcFiles, read_whole

Fields = dict[str, float | int | None]
"""Values by the name of their field in `HostSample`."""

CPU_FOLDER = "/sys/devices/system/cpu"
PERFORMANCE_CORES = "/sys/devices/cpu_core/cpus"
"""Intel's hybrid processors: the logical cores that are no efficiency cores."""

FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The pid namespace that a machine starts with (Linux: PROC_PID_INIT_INO)."""

BATTERY_FOLDER = "sys/class/power_supply"
PROFILE = "sys/firmware/acpi/platform_profile"
GOVERNOR = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"

Conditions = dict[str, bool | str | None]
"""By the names of their fields in `DeviceFacts`."""


class CoreTicks(NamedTuple):
    """One core's clock ticks since boot; `busy` includes `steal`, `total` is everything."""

    busy: int
    steal: int
    total: int


class CpuUsage(NamedTuple):
    """Cores busy and stolen between two readings, and the busiest core with its share of time."""

    busy_cores: float
    steal_cores: float
    busiest_core: int
    busiest_ratio: float


def parse_cpu_ticks(stat: bytes) -> dict[int, CoreTicks]:
    """Read the per-core lines of /proc/stat.

    Guest time is inside user time already, so only the first eight columns count.
    """
    cores: dict[int, CoreTicks] = {}
    for line in stat.split(b"\n")[1:]:
        if not line.startswith(b"cpu"):
            break  # the per-core lines come first and together
        name, *columns = line.split()
        ticks = [int(column) for column in columns[:8]]
        idle = ticks[3] + ticks[4]
        steal = ticks[7] if len(ticks) > 7 else 0
        cores[int(name[3:])] = CoreTicks(sum(ticks) - idle, steal, sum(ticks))
    return cores


def cpu_usage(before: dict[int, CoreTicks], after: dict[int, CoreTicks]) -> CpuUsage | None:
    """Compare two readings; a core that came, went or did not tick is left out."""
    busy_cores = steal_cores = 0.0
    busiest: tuple[float, int] | None = None
    for core, now in after.items():
        then = before.get(core)
        if then is None or now.total <= then.total:
            continue
        elapsed = now.total - then.total
        # idle and iowait may step back a little, so a ratio can leave 0..1 without this
        ratio = min(max((now.busy - then.busy) / elapsed, 0.0), 1.0)
        busy_cores += ratio
        steal_cores += min(max((now.steal - then.steal) / elapsed, 0.0), 1.0)
        busiest = max(busiest or (ratio, core), (ratio, core))
    if busiest is None:
        return None
    return CpuUsage(busy_cores, steal_cores, busiest[1], busiest[0])


def parse_field(text: bytes, name: bytes) -> int | None:
    """Return the number behind `name`, given with its separator, that begins a line."""
    rest = (b"\n" + text).partition(b"\n" + name)[2]
    words = rest[:40].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else None


def parse_kib(text: bytes, name: bytes) -> int | None:
    """Return bytes from a line such as `MemAvailable:  123 kB`."""
    value = parse_field(text, name + b":")
    return None if value is None else value * 1024


def parse_stall_us(pressure: bytes, kind: bytes) -> int | None:
    """Return the total stall time in microseconds of the `some` or `full` line of a PSI file."""
    for line in pressure.split(b"\n"):
        if line.startswith(kind + b" "):
            return int(line.rpartition(b"total=")[2])
    return None


def count_physical_cores(sibling_lists: list[bytes]) -> int | None:
    """Count cores from each logical one's list of siblings; None when no list was readable."""
    return len({siblings.strip() for siblings in sibling_lists}) or None


EFFICIENCY_RATIO = 0.8
"""A core whose capacity or highest clock is below this share of the best core's is an efficiency
core: those of Intel reach 0.73 to 0.78, those of ARM 0.3 to 0.72; favoured cores lie within 0.9.
Heuristic: the limit."""


def parse_cpu_list(text: bytes) -> set[int]:
    """Read a list of cores such as `0-7,16`."""
    cores: set[int] = set()
    for part in text.strip().split(b","):
        first, _, last = part.partition(b"-")
        if first.isdigit():
            cores.update(range(int(first), int(last if last.isdigit() else first) + 1))
    return cores


def count_performance_cores(
    siblings: Mapping[int, bytes], told: set[int] | None, strengths: Mapping[int, int]
) -> int | None:
    """Count the physical cores that are no efficiency cores; None where all are alike.

    `siblings` has each logical core's list of siblings, `told` the logical cores that the kernel
    calls performance cores, `strengths` each one's capacity or highest clock.
    """
    if told is None and len(strengths) == len(siblings):
        most = max(strengths.values(), default=0)
        told = {core for core, value in strengths.items() if value >= EFFICIENCY_RATIO * most}
    chosen = [text for core, text in siblings.items() if told is None or core in told]
    count, all_cores = (count_physical_cores(some) for some in (chosen, list(siblings.values())))
    return None if count == all_cores else count


class HostReader:
    """Reads the machine's part of a host sample."""

    def __init__(self, files: ProcFiles) -> None:
        self._files = files
        self._cores: dict[int, CoreTicks] | None = None
        self._swap_in = CounterRate()
        self._stalls = {name: CounterRate() for name in ("cpu", "io", "memory")}
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._mhz: float | None = None
        self._available_bytes: int | None = None

    def read(self, *, slow_tier: bool) -> Fields:
        """Return the fields as they are now; `slow_tier` adds memory, swap and the clock."""
        fields = self._read_cpu(slow_tier)
        if slow_tier:
            memory = self._files.read("/proc/meminfo") or b""
            self._available_bytes = parse_kib(memory, b"MemAvailable")
            fields["swap_in_bytes_per_s"] = self._swapped_per_s()
        return fields | {
            "available_bytes": self._available_bytes,
            "psi_cpu_some_ratio": self._stall_ratio("cpu", b"some"),
            "psi_io_full_ratio": self._stall_ratio("io", b"full"),
            "psi_memory_full_ratio": self._stall_ratio("memory", b"full"),
        }

    def _swapped_per_s(self) -> float | None:
        """Bytes per second since the last look of the slow tier: parsing that file costs 20 us."""
        swapped = parse_field(self._files.read("/proc/vmstat") or b"", b"pswpin ")
        pages_per_s = self._swap_in.per_s(swapped, time.monotonic())
        return None if pages_per_s is None else pages_per_s * self._page_bytes

    def _read_cpu(self, slow_tier: bool) -> Fields:
        cores = parse_cpu_ticks(self._files.read("/proc/stat") or b"")
        before, self._cores = self._cores, cores
        usage = cpu_usage(before, cores) if before else None
        if usage is None:
            return {"cpu_cores": len(cores) or None}
        if slow_tier:
            self._mhz = self._clock_mhz(usage.busiest_core)
        return {
            "cpu_cores": len(cores),
            "cpu_busy_cores": usage.busy_cores,
            "cpu_steal_cores": usage.steal_cores,
            "busiest_core_ratio": usage.busiest_ratio,
            "cpu_mhz": self._mhz,
        }

    def _clock_mhz(self, core: int) -> float | None:
        # the busiest core's clock alone: older kernels sleep up to 20 ms per core read, and an
        # idle core's low clock says nothing
        text = self._files.read(f"{CPU_FOLDER}/cpu{core}/cpufreq/scaling_cur_freq")
        return int(text) / 1000 if text and text.strip().isdigit() else None

    def _stall_ratio(self, what: str, kind: bytes) -> float | None:
        text = self._files.read(f"/proc/pressure/{what}") or b""
        stalled_us = parse_stall_us(text, kind)
        per_s = self._stalls[what].per_s(stalled_us, time.monotonic())
        return None if per_s is None else min(per_s / 1e6, 1.0)


def read_host_facts(files: ProcFiles) -> dict[str, Any]:
    """Return the cores and the RAM of this machine, by the names of their `DeviceFacts` fields."""
    logical = sorted(parse_cpu_ticks(files.read("/proc/stat") or b""))
    siblings = _of_each(logical, "topology/thread_siblings_list")
    strengths = _of_each(logical, "cpu_capacity") or _of_each(logical, "cpufreq/cpuinfo_max_freq")
    told = read_whole(PERFORMANCE_CORES)
    # Microsoft's kernel for WSL says so in its name (microsoft/WSL2-Linux-Kernel)
    in_windows = b"microsoft" in (files.read("/proc/sys/kernel/osrelease") or b"").lower()
    return {
        "os": "wsl" if in_windows else "linux",
        "cpu_physical_cores": count_physical_cores(list(siblings.values())),
        "cpu_performance_cores": count_performance_cores(
            siblings,
            parse_cpu_list(told) if told else None,
            {core: int(text) for core, text in strengths.items() if text.strip().isdigit()},
        ),
        "cpu_logical_cores": len(logical) or None,
        "ram_bytes": parse_kib(files.read("/proc/meminfo") or b"", b"MemTotal"),
    }


def _of_each(cores: list[int], name: str) -> dict[int, bytes]:
    """Return a file of each core that has it."""
    texts = {core: read_whole(f"{CPU_FOLDER}/cpu{core}/{name}") for core in cores}
    return {core: text for core, text in texts.items() if text}


def read_conditions(root: str = "/") -> Conditions:
    """Return the conditions as they are now; about 0.1 ms."""
    return {
        "on_battery": is_on_battery(root),
        "power_profile": _word(Path(root, PROFILE)),
        "cpu_governor": _word(Path(root, GOVERNOR)),
    }


def is_on_battery(root: str = "/") -> bool | None:
    """Return True if a battery feeds the machine; None for one that has none.

    A mouse's battery is not the machine's. Where mains are plugged in, a battery that is drained
    nevertheless is the mains' weakness: that is not running on battery.
    """
    folder = Path(root, BATTERY_FOLDER)
    supplies = sorted(folder.iterdir()) if folder.is_dir() else []
    own = [supply for supply in supplies if _word(supply / "scope") != "Device"]
    batteries = [supply for supply in own if _word(supply / "type") == "Battery"]
    if not batteries:
        return None
    if any(_word(supply / "online") == "1" for supply in own if supply not in batteries):
        return False
    return any(_word(battery / "status") == "Discharging" for battery in batteries)


def _word(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def has_private_pids(root: str = "/") -> bool | None:
    """Return True if this process is in a pid namespace of its own, as in a container.

    A GPU's driver gives the pids of the whole machine: those mean other processes here.
    """
    try:
        return str(Path(root, "proc/self/ns/pid").readlink()) != FIRST_PID_NAMESPACE
    except OSError:
        return None
