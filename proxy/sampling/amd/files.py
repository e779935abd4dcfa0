"""Reads the numbers that the amdgpu driver writes into sysfs.

Sources: the kernel's amdgpu documentation (thermal.rst, driver-misc.rst) and amdgpu_pm.c. Of the
files there, `pcie_bw` is never read: it sleeps a second in the kernel (nvtop issue 208).
"""

import re
from pathlib import Path
from typing import NamedTuple

from slowtok.proxy.sampling.host.procfs import ProcFiles

AMD = 0x1002
"""PCI vendor of AMD's GPUs and of the switches on their boards; AMD's CPUs have another."""

GENERATION_BY_GT_PER_S = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}

_LEVEL = re.compile(rb"^(\w+): *(\d+) *Mhz *(\*?)", re.IGNORECASE | re.MULTILINE)


class Clock(NamedTuple):
    """A clock now and at most, in MHz; now is None where the driver has switched it off."""

    now_mhz: int | None
    most_mhz: int | None


def parse_clock(levels: bytes) -> Clock:
    """Read a `pp_dpm_*` file: a line for each level, `*` behind the one in force.

    Newer GPUs put the clock as it is between the lowest and the highest level, and a deep sleep
    into a level `S`. The last level is not always the highest.
    """
    found = _LEVEL.findall(levels)
    now = next((int(mhz) for _, mhz, mark in found if mark), None)
    return Clock(now, max((int(mhz) for name, mhz, _ in found if name != b"S"), default=None))


def parse_generation(speed: bytes) -> int | None:
    """Return the PCIe generation of a link speed such as `16.0 GT/s PCIe`."""
    number = speed.split(b" ", 1)[0]
    try:
        return GENERATION_BY_GT_PER_S.get(float(number))
    except ValueError:  # `Unknown`
        return None


class SysFiles:
    """Reads small files below one folder, through descriptors that stay open."""

    def __init__(self, files: ProcFiles, folder: str) -> None:
        self._files = files
        self.folder = folder

    def text(self, name: str) -> bytes | None:
        """Return a file without its line end; None where it is missing, refused or empty."""
        data = self._files.read(f"{self.folder}/{name}")
        return data.strip() or None if data else None

    def number(self, name: str) -> int | None:
        """Return a file's one number, or None."""
        text = self.text(name)
        return int(text) if text is not None and text.lstrip(b"-").isdigit() else None

    def hexadecimal(self, name: str) -> int | None:
        """Return a file's one number such as `0x1002`, or None."""
        try:
            return int(self.text(name) or b"", 16)
        except ValueError:
            return None

    def watts(self, name: str) -> float | None:
        """Return a file in microwatts as watts."""
        microwatts = self.number(name)
        return None if microwatts is None else microwatts / 1e6

    def celsius(self, name: str) -> int | None:
        """Return a file in thousandths of a degree as degrees."""
        millidegrees = self.number(name)
        return None if millidegrees is None else round(millidegrees / 1000)


class AmdCard(NamedTuple):
    """The files of one GPU: its PCI function, its sensors, and where its link to the host is.

    Behind `link` is what sits in the slot: since Navi 10 a board has a PCIe switch, and the GPU's
    own link is that to the switch, always at its best. `port` is what `link` is plugged into.
    """

    device: SysFiles
    sensors: SysFiles | None
    link: SysFiles
    port: SysFiles

    @property
    def pci_bus_id(self) -> str:
        """Return the address that the driver names the GPU by, such as `0000:03:00.0`."""
        return Path(self.device.folder).name

    def is_asleep(self) -> bool:
        """Return True if the GPU is powered down; any sensor that is read wakes it up."""
        return self.device.text("power/runtime_status") in (b"suspended", b"suspending")


def find_cards(files: ProcFiles, root: str) -> list[AmdCard]:
    """Return AMD's GPUs in the order of their PCI addresses."""
    entries = Path(root, "sys/class/drm").glob("card*")
    devices = {(entry / "device").resolve() for entry in entries if entry.name[4:].isdigit()}
    return [_card(files, device) for device in sorted(devices) if _vendor(files, device) == AMD]


def _vendor(files: ProcFiles, device: Path) -> int | None:
    return SysFiles(files, str(device)).hexadecimal("vendor")


def _card(files: ProcFiles, device: Path) -> AmdCard:
    link = device
    while _vendor(files, link.parent) == AMD:
        link = link.parent
    sensors = min(device.glob("hwmon/hwmon*"), default=None)
    return AmdCard(
        device=SysFiles(files, str(device)),
        sensors=None if sensors is None else SysFiles(files, str(sensors)),
        link=SysFiles(files, str(link)),
        port=SysFiles(files, str(link.parent)),
    )
