"""A tree of /sys and /proc as the amdgpu driver shows it, for machines without an AMD GPU.

File contents follow the kernel's sources: amdgpu_pm.c (hwmon and pp_dpm_*), amdgpu_vram_mgr.c,
pci-sysfs.c, amdgpu_fdinfo.c and kfd_topology.c; the clocks of an RX 7900 XTX are those that its
users posted (radeon-profile issue 294).
"""

from pathlib import Path

GIB = 1 << 30

XTX = {
    "vendor": "0x1002\n",
    "device": "0x744c\n",
    "revision": "0xc8\n",
    "class": "0x030000\n",
    "unique_id": "7c2f1d9a5b3e4c60\n",
    "product_name": "\n",
    "power/runtime_status": "active\n",
    "gpu_busy_percent": "97\n",
    "mem_busy_percent": "63\n",
    "mem_info_vram_total": f"{24 * GIB}\n",
    "mem_info_vram_used": f"{20 * GIB}\n",
    "mem_info_gtt_used": f"{1 * GIB}\n",
    "pp_dpm_sclk": "0: 500Mhz \n1: 2371Mhz *\n2: 2482Mhz \n",
    "pp_dpm_mclk": "0: 96Mhz \n1: 456Mhz \n2: 772Mhz \n3: 1249Mhz *\n",
    "pcie_replay_count": "3\n",
    "current_link_speed": "16.0 GT/s PCIe\n",
    "current_link_width": "16\n",
    "max_link_speed": "16.0 GT/s PCIe\n",
    "max_link_width": "16\n",
}
XTX_SENSORS = {
    "temp1_label": "edge\n",
    "temp1_input": "61000\n",
    "temp1_crit": "100000\n",
    "temp2_label": "junction\n",
    "temp2_input": "84000\n",
    "temp2_crit": "110000\n",
    "temp3_label": "mem\n",
    "temp3_input": "76000\n",
    "temp3_crit": "108000\n",
    "power1_average": "312000000\n",
    "power1_cap": "303000000\n",
    "power1_cap_default": "339000000\n",
    "power1_cap_min": "0\n",
    "power1_cap_max": "389000000\n",
}

# A processor with a GPU: no board, no critical temperature, no limits, but the sensor vddnb.
APU = XTX | {
    "device": "0x1586\n",
    "revision": "0xc1\n",
    "unique_id": "",
    "mem_info_vram_total": f"{GIB // 2}\n",
    "mem_info_vram_used": f"{GIB // 4}\n",
    "pp_dpm_sclk": "0: 600Mhz \n1: 700Mhz *\n2: 2900Mhz \n",
    "pp_dpm_mclk": "0: 400Mhz \n1: 800Mhz \n2: 1000Mhz \n",  # switched off: none is in force
}
APU_SENSORS = {
    "in1_label": "vddnb\n",
    "temp1_label": "edge\n",
    "temp1_input": "55000\n",
    "power1_input": "48123000\n",
}

SLOT = "devices/pci0000:00/0000:00:01.1"
SWITCHED = f"{SLOT}/0000:01:00.0/0000:02:00.0/0000:03:00.0"
"""A board with a switch: the slot, the switch's two ports, the GPU."""

IDS = (
    "# List of AMDGPU IDs\n#\n# Syntax:\n# device_id,\trevision_id,\tproduct_name\n\n1.0.0\n"
    "744C,\tC8,\tAMD Radeon RX 7900 XTX\n744C,\tCC,\tAMD Radeon RX 7900 XT\n"
    "1586,\tC1,\tRadeon 8060S Graphics\n"
)


class Tree:
    """Files below `root`; contents may be changed at any time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def card(
        self,
        name: str,
        path: str,
        files: dict[str, str] = XTX,
        sensors: dict[str, str] | None = XTX_SENSORS,
    ) -> str:
        """Add a GPU and return its folder, relative to the root."""
        folder = f"sys/{path}"
        for file, text in files.items():
            self.write(f"{folder}/{file}", text)
        for file, text in (sensors or {}).items():
            self.write(f"{folder}/hwmon/hwmon4/{file}", text)
        link = self.root / f"sys/class/drm/{name}"
        link.mkdir(parents=True)
        (link / "device").symlink_to(self.root / folder)
        (self.root / f"sys/class/drm/{name}-DP-1").mkdir()
        return folder

    def bridge(self, path: str, *, vendor: str, speed: str, width: int, most: str) -> None:
        """Add a PCIe port on the way to a GPU."""
        files = {
            "vendor": f"{vendor}\n",
            "current_link_speed": f"{speed} GT/s PCIe\n",
            "current_link_width": f"{width}\n",
            "max_link_speed": f"{most} GT/s PCIe\n",
            "max_link_width": "16\n",
        }
        for file, text in files.items():
            self.write(f"sys/{path}/{file}", text)

    def switched_card(self, name: str = "card1") -> str:
        """Add a board of the newer kind in a slot that is slower than it."""
        self.bridge(SLOT, vendor="0x1022", speed="8.0", width=8, most="8.0")
        self.bridge(f"{SLOT}/0000:01:00.0", vendor="0x1002", speed="8.0", width=8, most="16.0")
        self.bridge(
            f"{SLOT}/0000:01:00.0/0000:02:00.0",
            vendor="0x1002",
            speed="16.0",
            width=16,
            most="16.0",
        )
        return self.card(name, SWITCHED)

    def kfd_node(self, number: int, *, location_id: int, version: int, width: int) -> None:
        """Add what the compute driver says of a GPU."""
        folder = f"sys/class/kfd/kfd/topology/nodes/{number}"
        self.write(f"{folder}/gpu_id", f"{1000 + number}\n")
        self.write(
            f"{folder}/properties",
            f"cpu_cores_count 0\nsimd_count 192\nlocation_id {location_id}\ndomain 0\n"
            f"gfx_target_version {version}\n",
        )
        bank = f"heap_type 1\nsize_in_bytes {24 * GIB}\nflags 0\nwidth {width}\nmem_clk_max 1249\n"
        self.write(f"{folder}/mem_banks/0/properties", bank)

    def descriptor(self, pid: int, number: int, target: str, fdinfo: str) -> None:
        """Let a process have something open."""
        folder = self.root / f"proc/{pid}/fd"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(number)).symlink_to(target)
        self.write(f"proc/{pid}/fdinfo/{number}", fdinfo)


def fdinfo(
    client: int = 42,
    *,
    vram_kib: int = 0,
    gtt_kib: int = 0,
    evicted_kib: int = 0,
    pdev: str = "0000:03:00.0",
    engines: str = "",
) -> str:
    """What Linux 6.14 and newer write: the standard keys first, then amdgpu's own."""
    requested_kib = vram_kib + evicted_kib
    return (
        f"pos:\t0\nflags:\t02100002\nmnt_id:\t24\nino:\t1062\ndrm-driver:\tamdgpu\n"
        f"drm-client-id:\t{client}\ndrm-pdev:\t{pdev}\npasid:\t32771\n"
        f"drm-total-vram:\t{requested_kib} KiB\ndrm-shared-vram:\t0\n"
        f"drm-resident-vram:\t{vram_kib} KiB\ndrm-purgeable-vram:\t0\n"
        f"drm-memory-vram:\t{vram_kib} KiB\ndrm-memory-gtt: \t{gtt_kib} KiB\n"
        f"drm-memory-cpu: \t0 KiB\namd-evicted-vram:\t{evicted_kib} KiB\n"
        f"amd-requested-vram:\t{requested_kib} KiB\namd-requested-gtt:\t{gtt_kib} KiB\n{engines}"
    )


FDINFO_OF_6_1 = """\
pos:    0
flags:  02104002
mnt_id: 24
ino:    614
pasid:  32784
drm-driver:     amdgpu
drm-pdev:       0000:08:00.0
drm-client-id:  217
drm-memory-vram:        2068 KiB
drm-memory-gtt:         8192 KiB
drm-memory-cpu:         0 KiB
drm-engine-gfx: 107322799 ns
"""
"""Recorded by a user of amdgpu_top (its issue 87)."""
