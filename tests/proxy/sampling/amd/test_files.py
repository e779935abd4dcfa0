from pathlib import Path

import pytest

from fakes.amdgpu import SLOT, SWITCHED, Tree
from slowtok.proxy.sampling.amd.files import (
    Clock,
    SysFiles,
    find_cards,
    parse_clock,
    parse_generation,
)
from slowtok.proxy.sampling.host.procfs import ProcFiles


@pytest.mark.parametrize(
    ("levels", "clock"),
    [
        (b"0: 96Mhz \n1: 456Mhz \n2: 772Mhz \n3: 1249Mhz *\n", Clock(1249, 1249)),
        (b"0: 500Mhz \n1: 1303Mhz *\n2: 2482Mhz \n", Clock(1303, 2482)),
        (b"0: 500Mhz \n1: 0Mhz *\n2: 2210Mhz \n", Clock(0, 2210)),
        (b"S: 19Mhz *\n0: 615Mhz \n1: 800Mhz \n", Clock(19, 800)),
        (b"0: 400Mhz \n1: 800Mhz \n", Clock(None, 800)),  # switched off
        (b"", Clock(None, None)),
    ],
)
def test_clocks(levels: bytes, clock: Clock) -> None:
    assert parse_clock(levels) == clock


@pytest.mark.parametrize(
    ("speed", "generation"),
    [
        (b"2.5 GT/s PCIe", 1),
        (b"8.0 GT/s PCIe", 3),
        (b"16.0 GT/s PCIe", 4),
        (b"64.0 GT/s PCIe", 6),
        (b"5 GT/s", 2),  # older kernels
        (b"Unknown", None),
        (b"", None),
    ],
)
def test_link_speeds(speed: bytes, generation: int | None) -> None:
    assert parse_generation(speed) == generation


def test_what_cannot_be_read_is_unknown_and_not_zero(tmp_path: Path) -> None:
    files = SysFiles(ProcFiles(), str(tmp_path))
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "text").write_text("n/a\n")
    (tmp_path / "cold").write_text("-5000\n")

    for name in ("missing", "empty", "text"):
        assert files.number(name) is None
        assert files.hexadecimal(name) is None
        assert files.watts(name) is None
        assert files.celsius(name) is None
    assert files.text("empty") is None
    assert files.celsius("cold") == -5


def test_a_machine_without_amd_has_no_cards(tmp_path: Path) -> None:
    assert find_cards(ProcFiles(), str(tmp_path)) == []
    Tree(tmp_path).card("card0", "devices/pci0000:00/0000:00:02.0", {"vendor": "0x8086\n"})

    assert find_cards(ProcFiles(), str(tmp_path)) == []


def test_a_card_without_a_switch_is_its_own_link(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.bridge(SLOT, vendor="0x1022", speed="8.0", width=16, most="8.0")
    folder = tree.card("card0", f"{SLOT}/0000:08:00.0")
    (card,) = find_cards(ProcFiles(), str(tmp_path))

    assert card.pci_bus_id == "0000:08:00.0"
    assert card.link.folder == str(tmp_path / folder)
    assert card.port.folder == str(tmp_path / "sys" / SLOT)


def test_behind_a_switch_the_slots_link_counts(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.switched_card("card1")
    (card,) = find_cards(ProcFiles(), str(tmp_path))

    assert card.device.folder == str(tmp_path / "sys" / SWITCHED)
    assert card.link.folder == str(tmp_path / "sys" / SLOT / "0000:01:00.0")
    assert card.sensors is not None
    assert card.sensors.folder.endswith("0000:03:00.0/hwmon/hwmon4")


@pytest.mark.parametrize(
    ("status", "asleep"),
    [("active\n", False), ("suspended\n", True), ("suspending\n", True), ("unsupported\n", False)],
)
def test_sleep(tmp_path: Path, status: str, asleep: bool) -> None:
    tree = Tree(tmp_path)
    folder = tree.switched_card()
    tree.write(f"{folder}/power/runtime_status", status)

    assert find_cards(ProcFiles(), str(tmp_path))[0].is_asleep() is asleep
