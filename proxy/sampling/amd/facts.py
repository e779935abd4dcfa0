"""Constant facts of one AMD GPU, as `GpuFacts`.

Strategy: what the driver keeps in memory is always asked; what it must ask the GPU for only while
that is awake. The name is in a table that comes with Mesa and ROCm (libdrm's `amdgpu.ids`).
"""

import os
from pathlib import Path
from typing import Any

from slowtok.proxy.sampling.amd.files import AmdCard, SysFiles, parse_clock, parse_generation
from slowtok.proxy.sampling.host.host import parse_field
from slowtok.proxy.sampling.host.procfs import ProcFiles, read_whole

Values = dict[str, Any]

NAME_TABLES = ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids")
KFD_NODES = "sys/class/kfd/kfd/topology/nodes"

NO_COUNTER = "the amdgpu driver does not count it"
ABSENT = {
    "pstate": "AMD GPUs have no such states",
    "reasons": "the amdgpu driver does not report it through sysfs",
    "reserved_bytes": "the amdgpu driver does not report it through sysfs",
    "dram_busy_ratio": "the amdgpu driver tells only how active the memory is",
    "pcie_rx_bytes_per_s": "the amdgpu driver needs a second for each reading of it",
    "pcie_tx_bytes_per_s": "the amdgpu driver needs a second for each reading of it",
    "energy_j": NO_COUNTER,
    "throttled_power_ns": NO_COUNTER,
    "throttled_sw_thermal_ns": NO_COUNTER,
    "throttled_hw_thermal_ns": NO_COUNTER,
    "throttled_power_brake_ns": NO_COUNTER,
    "power_source": NO_COUNTER,
    "vgpu_licensed": "AMD GPUs need no licence",
    "ecc_errors": "not read on AMD GPUs",
    "remapped_rows": "not read on AMD GPUs",
    "xid": "the amdgpu driver reports errors to the kernel log alone",
    "xids": "the amdgpu driver reports errors to the kernel log alone",
}
"""Fields of a `GpuSample` that no AMD GPU has, with the reason."""


def read_facts(card: AmdCard, files: ProcFiles, root: str) -> Values:
    """Return the facts that can be had without waking the GPU, by the names of their fields."""
    device, unified = card.device, is_unified(card)
    node = find_kfd_node(files, card, root)
    unique_id = device.text("unique_id")
    return {
        "uuid": f"GPU-{unique_id.decode()}" if unique_id else None,
        "name": read_name(device, root),
        "vendor": "amd",
        "architecture": None if node is None else _architecture(node),
        "pci_bus_id": card.pci_bus_id,
        "total_bytes": None if unified else device.number("mem_info_vram_total") or None,
        "bus_width_bits": None if node is None else _bus_width_bits(files, node),
        "driver": _driver(root),
        "unified_memory": unified,
        "mig": False,
        "absent": dict(ABSENT),
    }


def read_limits(card: AmdCard) -> Values:
    """Return the facts that only a GPU that is awake can tell."""
    clocks = [parse_clock(card.device.text(f"pp_dpm_{kind}clk") or b"") for kind in ("s", "m")]
    facts = {"max_sm_clock_mhz": clocks[0].most_mhz, "max_memory_clock_mhz": clocks[1].most_mhz}
    if card.sensors is not None:
        facts["slowdown_temperature_c"] = card.sensors.celsius("temp1_crit")
    return facts | _power_limits(card.sensors) | ({} if is_unified(card) else _link_limits(card))


def _power_limits(sensors: SysFiles | None) -> Values:
    if sensors is None:
        return {}
    return {
        "default_power_limit_w": sensors.watts("power1_cap_default"),
        "min_power_limit_w": sensors.watts("power1_cap_min"),
        "max_power_limit_w": sensors.watts("power1_cap_max"),
    }


def _link_limits(card: AmdCard) -> Values:
    generations = [parse_generation(end.text("max_link_speed") or b"") for end in card[2:]]
    widths = [end.number("max_link_width") for end in card[2:]]
    return {
        "gpu_max_pcie_generation": generations[0],
        "max_pcie_generation": _least(generations),
        "max_pcie_width": _least(widths),
    }


def _least(values: list[int | None]) -> int | None:
    # a port of another maker, or a virtual one, may not say: then the GPU's own end counts
    return None if values[0] is None else min(value for value in values if value)


def is_unified(card: AmdCard) -> bool | None:
    """Return True if the GPU is part of a processor and uses its memory.

    Only those have the sensor `vddnb`, the voltage of the processor's north bridge (amdgpu_pm.c).
    MI300A is the exception: it has neither that nor memory of its own.
    """
    if card.device.number("mem_info_vram_total") == 0:
        return True
    return None if card.sensors is None else card.sensors.text("in1_label") == b"vddnb"


def read_name(device: SysFiles, root: str) -> str:
    """Return the name from the board, from libdrm's table, or else the PCI ids."""
    product = device.text("product_name")
    if product:
        return product.decode(errors="replace")
    ids = (device.hexadecimal("device") or 0, device.hexadecimal("revision") or 0)
    tables = (read_whole(str(Path(root, table))) for table in NAME_TABLES)
    found = (_look_up(table, ids) for table in tables if table)
    return next((name for name in found if name), f"AMD GPU 1002:{ids[0]:04x} rev {ids[1]:02x}")


def _look_up(table: bytes, ids: tuple[int, int]) -> str | None:
    for line in table.decode(errors="replace").splitlines():
        device, _, rest = line.partition(",")
        revision, _, name = rest.partition(",")
        try:
            if (int(device, 16), int(revision, 16)) == ids:
                return name.strip()
        except ValueError:  # a comment, or the table's version
            continue
    return None


def find_kfd_node(files: ProcFiles, card: AmdCard, root: str) -> SysFiles | None:
    """Return where the compute driver describes this GPU, matched by its PCI address."""
    domain, bus, slot = card.pci_bus_id.split(":")
    device, _, function = slot.partition(".")
    location = int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)
    for folder in sorted(Path(root, KFD_NODES).glob("*")):
        node = SysFiles(files, str(folder))
        properties = node.text("properties") or b""
        if (
            parse_field(properties, b"location_id ") == location
            and parse_field(properties, b"domain ") == int(domain, 16)
            and parse_field(properties, b"simd_count ")
        ):
            return node
    return None


def _architecture(node: SysFiles) -> str | None:
    version = parse_field(node.text("properties") or b"", b"gfx_target_version ")
    if not version:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _bus_width_bits(files: ProcFiles, node: SysFiles) -> int | None:
    bank = files.read(f"{node.folder}/mem_banks/0/properties") or b""
    return parse_field(bank, b"width ") or None


def _driver(root: str) -> str:
    own = read_whole(f"{root}/sys/module/amdgpu/version")  # a driver from outside of the kernel
    return f"amdgpu {own.decode().strip()}" if own else f"amdgpu of Linux {os.uname().release}"
