import sys
from pathlib import Path

import pytest

from slowtok.detectors.case.machine import DeviceFacts
from slowtok.proxy.sampling.host.host import (
    FIRST_PID_NAMESPACE,
    CoreTicks,
    HostReader,
    count_performance_cores,
    count_physical_cores,
    cpu_usage,
    has_private_pids,
    is_on_battery,
    parse_cpu_list,
    parse_cpu_ticks,
    parse_field,
    parse_kib,
    parse_stall_us,
    read_conditions,
    read_host_facts,
)
from slowtok.proxy.sampling.host.machine import Machine
from slowtok.proxy.sampling.host.procfs import ProcFiles

# Recorded on a virtual machine with two cores, Linux 6.18; long lines are cut.
STAT = b"""\
cpu  7711 0 3530 164068 103 0 24 16 0 0
cpu0 2755 0 1413 83561 4 0 9 1 0 0
cpu1 4956 0 2117 80506 98 0 15 15 0 0
intr 608014 0 0 0 0 0 0 0 0 0 0 0 0 0
ctxt 1174217
btime 1795157449
"""
MEMINFO = b"""\
MemTotal:       24684092 kB
MemFree:        22966284 kB
MemAvailable:   24166264 kB
Buffers:           17196 kB
"""
VMSTAT = b"nr_free_pages 5741571\npgpgin 1189645\npswpin 17\npswpout 3\npgmajfault 963\n"
PRESSURE_CPU = b"some avg10=0.72 avg60=0.52 avg300=2.21 total=22185233\n"
PRESSURE_IO = b"""\
some avg10=0.12 avg60=0.02 avg300=0.00 total=893026
full avg10=0.12 avg60=0.02 avg300=0.00 total=811246
"""


class RecordedFiles(ProcFiles):
    """Files with a chosen content."""

    def __init__(self, texts: dict[str, bytes]) -> None:
        super().__init__()
        self.texts = texts

    def read(self, path: str) -> bytes | None:
        return self.texts.get(path)


def core(busy: int, total: int, steal: int = 0) -> CoreTicks:
    return CoreTicks(busy=busy, steal=steal, total=total)


def test_machine_without_any_file_gives_no_values() -> None:
    reader = HostReader(RecordedFiles({}))

    assert set(reader.read(slow_tier=True).values()) == {None}
    assert set(reader.read(slow_tier=True).values()) == {None}


def test_cpu_ticks_of_a_recorded_file() -> None:
    cores = parse_cpu_ticks(STAT)

    assert cores[0] == core(busy=2755 + 1413 + 9 + 1, steal=1, total=87743)
    assert cores[1] == core(busy=4956 + 2117 + 15 + 15, steal=15, total=87707)


def test_guest_time_is_not_counted_twice() -> None:
    cores = parse_cpu_ticks(b"cpu  1\ncpu0 100 0 0 100 0 0 0 0 60 0\n")

    assert cores[0] == core(busy=100, total=200)


def test_old_kernels_have_fewer_columns() -> None:
    assert parse_cpu_ticks(b"cpu 1\ncpu0 10 0 10 80 5\n")[0] == core(busy=20, total=105)


def test_usage_between_two_readings() -> None:
    usage = cpu_usage(
        {0: core(100, 1000), 1: core(0, 1000)}, {0: core(110, 1020), 1: core(20, 1020)}
    )

    assert usage is not None
    assert usage.busy_cores == 1.5
    assert (usage.busiest_core, usage.busiest_ratio) == (1, 1.0)


def test_steal_is_counted_and_is_busy_too() -> None:
    usage = cpu_usage({0: core(0, 0)}, {0: core(busy=30, total=100, steal=10)})

    assert usage is not None
    assert (usage.busy_cores, usage.steal_cores) == (0.3, 0.1)


def test_cores_that_came_or_did_not_tick_are_left_out() -> None:
    usage = cpu_usage(
        {0: core(0, 0), 1: core(5, 5)}, {0: core(50, 100), 1: core(5, 5), 2: core(9, 9)}
    )

    assert usage is not None
    assert usage.busy_cores == 0.5


def test_no_time_between_readings_is_unknown_and_not_idle() -> None:
    assert cpu_usage({0: core(5, 10)}, {0: core(5, 10)}) is None
    assert cpu_usage({}, {0: core(5, 10)}) is None


def test_idle_that_steps_back_keeps_the_ratio_in_range() -> None:
    usage = cpu_usage({0: core(100, 200)}, {0: core(115, 210)})

    assert usage is not None
    assert usage.busy_cores == 1.0


def test_fields_are_found_by_their_whole_name() -> None:
    assert parse_field(VMSTAT, b"pswpin ") == 17
    assert parse_field(VMSTAT, b"nr_free_pages ") == 5741571
    assert parse_field(VMSTAT, b"pswp ") is None
    assert parse_field(VMSTAT, b"free_pages ") is None
    assert parse_field(b"pswpin \n", b"pswpin ") is None


def test_memory_is_in_bytes() -> None:
    assert parse_kib(MEMINFO, b"MemAvailable") == 24166264 * 1024
    assert parse_kib(MEMINFO, b"SwapFree") is None


def test_stall_totals() -> None:
    assert parse_stall_us(PRESSURE_CPU, b"some") == 22185233
    assert parse_stall_us(PRESSURE_IO, b"full") == 811246
    assert parse_stall_us(PRESSURE_CPU, b"full") is None  # before Linux 5.13
    assert parse_stall_us(b"", b"some") is None


def test_physical_cores_are_distinct_sibling_lists() -> None:
    assert count_physical_cores([b"0,4\n", b"1,5\n", b"0,4\n", b"1,5\n"]) == 2
    assert count_physical_cores([]) is None


INTEL = {core: b"%d,%d\n" % (core // 2 * 2, core // 2 * 2 + 1) for core in range(4)} | {
    core: b"%d\n" % core for core in range(4, 8)
}
"""Two performance cores of two hardware threads each, four efficiency cores."""


@pytest.mark.parametrize(
    ("siblings", "told", "strengths", "count"),
    [
        pytest.param(INTEL, {0, 1, 2, 3}, {}, 2, id="the kernel says which"),
        pytest.param(
            INTEL, None, {c: 5_000_000 if c < 4 else 3_800_000 for c in range(8)}, 2, id="by clock"
        ),
        pytest.param(
            {c: b"%d\n" % c for c in range(6)},
            None,
            {0: 1024, 1: 1010, 2: 700, 3: 700, 4: 300, 5: 300},
            2,
            id="by capacity",
        ),
        pytest.param(
            INTEL, None, {c: 5_700_000 if c else 6_000_000 for c in range(8)}, None, id="favoured"
        ),
        pytest.param(INTEL, None, {}, None, id="nothing tells"),
        pytest.param(INTEL, None, {0: 5_000_000, 4: 3_000_000}, None, id="told of some alone"),
        pytest.param({}, None, {}, None, id="no topology"),
    ],
)
def test_performance_cores(
    siblings: dict[int, bytes], told: set[int] | None, strengths: dict[int, int], count: int | None
) -> None:
    assert count_performance_cores(siblings, told, strengths) == count


def test_a_list_of_cores() -> None:
    assert parse_cpu_list(b"0-2,5\n") == {0, 1, 2, 5}
    assert parse_cpu_list(b"\n") == set()


def test_clock_is_that_of_the_busiest_core() -> None:
    clock = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
    texts = {clock.format(0): b"800000\n", clock.format(1): b"4712000\n"}
    files = RecordedFiles(texts | {"/proc/stat": STAT})
    reader = HostReader(files)
    reader.read(slow_tier=True)
    files.texts["/proc/stat"] = STAT.replace(b"cpu1 4956", b"cpu1 4976")

    assert reader.read(slow_tier=True)["cpu_mhz"] == 4712.0


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc here")
def test_this_machine_has_plausible_facts() -> None:
    facts = read_host_facts(ProcFiles())

    assert facts["os"] in ("linux", "wsl")
    assert (facts["cpu_logical_cores"] or 0) >= (facts["cpu_physical_cores"] or 1) >= 1
    assert (facts["ram_bytes"] or 0) > 1 << 28


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def supply(root: Path, name: str, **files: str) -> None:
    for file, text in files.items():
        write(root, f"sys/class/power_supply/{name}/{file}", text + "\n")


def test_a_machine_that_says_nothing_is_unknown(tmp_path: Path) -> None:
    assert set(read_conditions(str(tmp_path)).values()) == {None}


def test_fields_are_those_of_the_contract(tmp_path: Path) -> None:
    DeviceFacts(**read_conditions(str(tmp_path)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("supplies", "on_battery"),
    [
        ({"ADP1": {"type": "Mains", "online": "1"}}, None),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Charging"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Full"}}, False),
        # a mouse runs on its own
        ({"hidpp_0": {"type": "Battery", "scope": "Device", "status": "Discharging"}}, None),
        # an adapter that gives too little is still an adapter
        (
            {
                "ADP1": {"type": "Mains", "online": "1"},
                "BAT0": {"type": "Battery", "status": "Discharging"},
            },
            False,
        ),
        (
            {
                "AC": {"type": "Mains", "online": "0"},
                "ucsi": {"type": "USB", "scope": "System", "online": "0"},
                "BAT0": {"type": "Battery", "status": "Discharging"},
            },
            True,
        ),
        (
            {
                "AC": {"type": "Mains", "online": "0"},
                "ucsi": {"type": "USB", "scope": "System", "online": "1"},
                "BAT0": {"type": "Battery", "status": "Not charging"},
            },
            False,
        ),
    ],
)
def test_battery(
    tmp_path: Path, supplies: dict[str, dict[str, str]], on_battery: bool | None
) -> None:
    for name, files in supplies.items():
        supply(tmp_path, name, **files)

    assert is_on_battery(str(tmp_path)) is on_battery


def test_profile_and_governor(tmp_path: Path) -> None:
    write(tmp_path, "sys/firmware/acpi/platform_profile", "low-power\n")
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    conditions = read_conditions(str(tmp_path))

    assert conditions["power_profile"] == "low-power"
    assert conditions["cpu_governor"] == "powersave"


@pytest.mark.parametrize(
    ("namespace", "private"), [(FIRST_PID_NAMESPACE, False), ("pid:[4026532281]", True)]
)
def test_pid_namespaces(tmp_path: Path, namespace: str, private: bool) -> None:
    assert has_private_pids(str(tmp_path)) is None
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(namespace)

    assert has_private_pids(str(tmp_path)) is private


def test_facts_are_told_again_when_a_condition_changes() -> None:
    conditions: dict[str, bool | str | None] = {"on_battery": False}
    machine = Machine(
        NoHost(), NoHost, facts={"ram_bytes": 1024}, read_conditions=lambda: dict(conditions)
    )
    told = [machine.changes(), machine.changes()]
    conditions["on_battery"] = True

    assert told == [{"kind": "host_facts", "ram_bytes": 1024, "on_battery": False}, None]
    assert machine.changes() == {"kind": "host_facts", "ram_bytes": 1024, "on_battery": True}


class NoHost:
    """Nothing is read of the host or of a port."""

    pids: list[int] = []  # noqa: RUF012
    is_known = True

    def __init__(self, port: int = 0) -> None:
        self.port = port

    def read(self, *, slow_tier: bool) -> dict[str, float | int | None]:
        return {"available_bytes": int(slow_tier)}

    def changes(self) -> None:
        return None
