"""AMD GPUs on a tree of files as the kernel shows it."""

import time
from pathlib import Path
from typing import Any

import pytest

from fakes.amdgpu import APU, APU_SENSORS, GIB, SWITCHED, XTX, XTX_SENSORS, Tree, fdinfo
from slowtok.detectors.case.machine import GpuFacts, GpuSample
from slowtok.proxy.sampling.amd import amdgpu
from slowtok.proxy.sampling.amd.amdgpu import AmdDevices, open_amd
from slowtok.proxy.sampling.amd.files import SysFiles
from slowtok.proxy.sampling.protocol import parse_line

APU_PATH = "devices/pci0000:00/0000:00:08.1/0000:c5:00.0"


def cards_on(root: Path, *, private_pids: bool = False) -> AmdDevices:
    return AmdDevices(lambda pid: f"p{pid}", root=str(root), private_pids=private_pids)


def one(lines: list[dict[str, Any]]) -> dict[str, Any]:
    (line,) = lines
    return line


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every file of a GPU that is read."""
    names: list[str] = []
    text = SysFiles.text

    def listed(self: SysFiles, name: str) -> bytes | None:
        names.append(name)
        return text(self, name)

    monkeypatch.setattr(SysFiles, "text", listed)
    return names


def test_no_amd_card_is_no_reader(tmp_path: Path) -> None:
    assert open_amd(lambda _: None, root=str(tmp_path), private_pids=False) is None


def test_the_reader_gives_what_the_cards_do(tree: Tree) -> None:
    tree.switched_card()
    gpus = open_amd(lambda _: None, root=str(tree.root), private_pids=False)
    assert gpus is not None
    lines: list[dict[str, Any]] = []
    while not lines:  # the thread may be slow to start
        lines = gpus.sample(slow_tier=True, servers=set())
    changes = gpus.changes()

    assert one(lines)["busy_ratio"] == 0.97
    assert changes is not None
    assert one(changes["gpus"])["max_sm_clock_mhz"] == 2482
    assert gpus.counts() == {"gpu_errors": 0, "gpu_samples_stalled": 0, "gpu_hung": 0}


def test_every_field_has_its_value_and_unit(tree: Tree) -> None:
    tree.switched_card()
    tree.descriptor(7, 3, "/dev/dri/renderD128", fdinfo(vram_kib=19 << 20))
    cards = cards_on(tree.root)
    line = one(cards.sample(slow_tier=True, servers={7}))
    process = line.pop("processes")[0]
    del line["kind"], line["at_s"]

    assert line == {
        "index": 0,
        "busy_ratio": 0.97,
        "memory_busy_ratio": 0.63,
        "power_w": 312.0,
        "power_limit_w": 303.0,
        "sm_clock_mhz": 2371,
        "memory_clock_mhz": 1249,
        "temperature_c": 61,
        "memory_temperature_c": 76,
        "temperature_margin_c": 26,
        "free_bytes": 4 * GIB,
        "total_bytes": 24 * GIB,
        "pcie_generation": 3,
        "pcie_width": 8,
        "pcie_replays": 3,
    }
    assert (process["pid"], process["memory_bytes"]) == (7, 19 * GIB)


def test_between_the_dear_ones_a_sample_has_the_cheap_fields_and_the_limit(tree: Tree) -> None:
    tree.switched_card()
    cards = cards_on(tree.root)
    cards.sample(slow_tier=True, servers=set())
    line = one(cards.sample(slow_tier=False, servers=set()))

    assert line["busy_ratio"] == 0.97
    assert line["power_limit_w"] == 303.0
    assert "pcie_width" not in line
    assert "processes" not in line


def test_lines_are_what_the_proxy_reads(tree: Tree) -> None:
    tree.switched_card()
    cards = cards_on(tree.root)
    line = one(cards.sample(slow_tier=True, servers=set())) | {"kind": "gpu"}
    facts = one(cards.facts)

    assert isinstance(GpuFacts(**facts), GpuFacts)
    assert set(facts["absent"]) <= set(GpuSample.__dataclass_fields__)
    assert not set(facts["absent"]) & set(line)
    assert isinstance(parse_line(str(line).replace("'", '"').encode()), GpuSample)


def test_a_gpu_that_sleeps_is_left_asleep(tree: Tree, reads: list[str]) -> None:
    folder = tree.switched_card()
    tree.write(f"{folder}/power/runtime_status", "suspended\n")
    cards = cards_on(tree.root)
    asked_at_start = set(reads)
    reads.clear()
    lines = cards.sample(slow_tier=True, servers=set()) + cards.sample_idle(set())

    assert lines == []
    assert set(reads) == {"power/runtime_status"}
    assert not asked_at_start & {"gpu_busy_percent", "pp_dpm_sclk", "temp1_input", "power1_cap"}
    assert one(cards.facts)["total_bytes"] == 24 * GIB
    assert "max_sm_clock_mhz" not in one(cards.facts)

    tree.write(f"{folder}/power/runtime_status", "active\n")
    one(cards.sample(slow_tier=False, servers=set()))

    assert one(cards.facts)["max_sm_clock_mhz"] == 2482


def test_an_idle_machine_reads_what_the_driver_keeps_in_memory(
    tree: Tree, reads: list[str]
) -> None:
    tree.switched_card()
    cards = cards_on(tree.root)
    reads.clear()
    line = one(cards.sample_idle(set()))

    assert set(reads) == {"power/runtime_status", "mem_info_vram_total", "mem_info_vram_used"}
    assert line["free_bytes"] == 4 * GIB
    assert line["processes"] == []
    assert "busy_ratio" not in line


def test_the_counter_that_takes_a_second_is_never_read(tree: Tree, reads: list[str]) -> None:
    folder = tree.switched_card()
    tree.write(f"{folder}/pcie_bw", "1 1 1\n")
    cards = cards_on(tree.root)
    cards.sample(slow_tier=True, servers=set())
    cards.sample_idle(set())

    assert "pcie_bw" not in reads


def test_a_processors_gpu(tree: Tree) -> None:
    tree.card("card0", APU_PATH, APU, APU_SENSORS)
    text = fdinfo(vram_kib=100, gtt_kib=4000, evicted_kib=50, pdev="0000:c5:00.0")
    tree.descriptor(7, 3, "/dev/dri/renderD128", text)
    cards = cards_on(tree.root)
    line = one(cards.sample(slow_tier=True, servers={7}))
    absent = one(cards.facts)["absent"]

    assert (line["power_w"], line["temperature_c"]) == (48.123, 55)
    assert line["temperature_margin_c"] is None
    assert not {"free_bytes", "total_bytes", "pcie_generation"} & set(line)
    assert "part of the processor" in absent["free_bytes"]
    assert "part of the processor" in absent["pcie_width"]
    assert absent["temperature_margin_c"] == amdgpu.NOT_TOLD
    # its memory clock is switched off at this moment, which does not mean that there is none
    assert line["memory_clock_mhz"] is None
    assert "memory_clock_mhz" not in absent
    assert line["processes"][0]["memory_bytes"] == 4100 * 1024
    assert line["processes"][0]["evicted_bytes"] is None
    assert "free_bytes" not in one(cards.sample_idle(set()))


def test_a_gpu_that_tells_little_says_so(tree: Tree) -> None:
    files = {name: XTX[name] for name in ("vendor", "device", "revision", "mem_info_vram_total")}
    tree.card("card0", SWITCHED, files, None)
    cards = cards_on(tree.root)
    line = one(cards.sample(slow_tier=True, servers=set()))
    absent = one(cards.facts)["absent"]

    assert {line[name] for name in ("busy_ratio", "power_w", "sm_clock_mhz", "free_bytes")} == {
        None
    }
    assert {"busy_ratio", "power_w", "sm_clock_mhz", "free_bytes", "pcie_width"} <= set(absent)


@pytest.mark.parametrize(
    ("cost_s", "in_cheap", "in_dear"),
    [(0.0, True, True), (0.002, False, True), (0.03, False, False)],
)
def test_slow_readings_are_moved_or_left_out(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, cost_s: float, in_cheap: bool, in_dear: bool
) -> None:
    tree.switched_card()
    monkeypatch.setattr(time, "perf_counter", _clock(SysFiles.watts, cost_s, monkeypatch))
    cards = cards_on(tree.root)
    slow_tier = one(cards.sample(slow_tier=True, servers=set()))
    cheap = one(cards.sample(slow_tier=False, servers=set()))

    assert ("power_w" in cheap) is in_cheap
    assert ("power_w" in slow_tier) is in_dear
    assert ("power_w" in one(cards.facts)["absent"]) is not in_dear
    assert "busy_ratio" in cheap


def _clock(watts: Any, cost_s: float, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that stands still but for the reading of power."""
    now = [0.0]

    def slow(self: SysFiles, name: str) -> Any:
        now[0] += cost_s if name == "power1_input" else 0.0
        return watts(self, name)

    monkeypatch.setattr(SysFiles, "watts", slow)
    return lambda: now[0]


def test_two_cards_keep_their_order_and_their_processes_apart(tree: Tree) -> None:
    tree.switched_card("card1")
    tree.card("card0", "devices/pci0000:00/0000:00:02.1/0000:0a:00.0", XTX, XTX_SENSORS)
    tree.descriptor(7, 3, "/dev/dri/renderD128", fdinfo(1, vram_kib=500))
    tree.descriptor(7, 4, "/dev/dri/renderD129", fdinfo(2, vram_kib=20, pdev="0000:0a:00.0"))
    cards = cards_on(tree.root)
    lines = cards.sample(slow_tier=True, servers={7})

    assert [facts["pci_bus_id"] for facts in cards.facts] == ["0000:03:00.0", "0000:0a:00.0"]
    assert [line["index"] for line in lines] == [0, 1]
    memory = [line["processes"][0]["memory_bytes"] for line in lines]
    assert memory == [500 * 1024, 20 * 1024]


@pytest.mark.parametrize(("private_pids", "seen"), [(False, [7, 4711]), (True, [7])])
def test_other_users_processes_through_the_compute_driver(
    tree: Tree, private_pids: bool, seen: list[int]
) -> None:
    tree.switched_card()
    tree.kfd_node(1, location_id=0x0300, version=110000, width=384)
    tree.descriptor(7, 3, "/dev/dri/renderD128", fdinfo(1, vram_kib=500))
    for pid in (7, 4711):
        tree.write(f"sys/class/kfd/kfd/proc/{pid}/vram_1001", "1048576\n")
    line = one(
        cards_on(tree.root, private_pids=private_pids).sample(slow_tier=True, servers={4711})
    )
    processes = {process["pid"]: process for process in line["processes"]}

    assert list(processes) == seen
    assert processes[7]["memory_bytes"] == 500 * 1024
    if not private_pids:
        assert processes[4711]["is_server"]
        assert "evicted_bytes" not in processes[4711]


def test_a_reading_that_stops_working_is_counted(tree: Tree, monkeypatch: Any) -> None:
    tree.switched_card()
    cards = cards_on(tree.root)
    cards.sample(slow_tier=True, servers=set())
    assert cards.counts() == {"gpu_errors": 0, "gpu_samples_stalled": 0}
    monkeypatch.setattr("os.pread", _raise)

    line = one(cards.sample(slow_tier=False, servers=set()))

    assert line["busy_ratio"] is None
    assert cards.counts()["gpu_errors"] > 0


def _raise(*_: object) -> bytes:
    raise PermissionError  # what the driver says while it resets the GPU


def test_a_sample_of_no_one_moment_is_dropped(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.switched_card()
    cards = cards_on(tree.root)
    cards.sample(slow_tier=True, servers=set())
    times = iter([10.0, 10.2])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))

    assert cards.sample(slow_tier=False, servers=set()) == []
    assert cards.counts()["gpu_samples_stalled"] == 1
