"""GPUs to simulate, with the limits that their makers publish.

Memory clocks are those that NVML reports, so that 2 x clock x width / 8 is the bandwidth; in P2,
where CUDA runs on GeForce cards, the memory is a little slower. `efficiency` is the share of the
peak that decode reaches on such memory, drawn around the published medians of its class.
"""

from dataclasses import dataclass

from slowtok.detectors.machine import GpuFacts

GIB = 2**30
MIB = 2**20


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

    @property
    def bytes(self) -> int:
        """Memory of the card."""
        return int(self.memory_gib * GIB)

    @property
    def has_margin(self) -> bool:
        """Ada and newer cards tell how far the next slowdown is."""
        return self.architecture in ("Ada", "Hopper", "Blackwell") and not self.unified

    def facts(self, index: int, *, width: int | None = None) -> GpuFacts:
        """Return what the product knows of the card in slot `index`."""
        nvidia = self.vendor == "nvidia"
        measured = nvidia and not self.unified
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
            default_power_limit_w=None if self.laptop or self.unified else self.power_w,
            min_power_limit_w=None if self.laptop or self.unified else round(self.power_w * 0.3),
            max_power_limit_w=None if self.laptop or self.unified else round(self.power_w * 1.1),
            max_pcie_generation=1 if self.unified else self.generation,
            max_pcie_width=1 if self.unified else width or self.width,
            gpu_max_pcie_generation=1 if self.unified else self.generation,
            unified_memory=self.unified,
            mig=False if nvidia else None,
            virtual=False if nvidia else None,
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
            names += ["memory_temperature_c", "ecc_errors", "remapped_rows", "dram_busy_ratio"]
        return dict.fromkeys(names, "not supported")


def _card(
    row: tuple[str, str, float, int, int, int, int, float, int, int, float, float, int],
) -> Card:
    """Return an NVIDIA card; the factor of 2 is that of all of its memories (nvbench's rule)."""
    name, architecture, gib, bits, mhz, busy_mhz, sm, power, generation, width, tflops, eff, hot = (
        row
    )
    return Card(
        name=f"NVIDIA {name}".replace("NVIDIA Tesla", "Tesla"),
        architecture=architecture,
        memory_gib=gib,
        bandwidth_gb_s=round(2 * mhz * bits / 8 / 1000, 1),
        bus_bits=bits,
        memory_mhz=mhz,
        busy_memory_mhz=busy_mhz,
        sm_mhz=sm,
        power_w=power,
        generation=generation,
        width=width,
        tflops=tflops,
        efficiency=eff,
        slowdown_c=hot,
        laptop="Laptop" in name,
        datacenter=name.startswith(("A100", "H100", "L40S")),
        windowed_power=architecture not in ("Turing", "Pascal") and not name.startswith("A100"),
    )


# name, architecture, GiB, bits, memory MHz at most and busy, SM MHz, watts, PCIe, TFLOPS fp16,
# share of the bandwidth that decode reaches, slowdown temperature
GEFORCE = tuple(
    _card(row)
    for row in (
        ("GeForce RTX 3060", "Ampere", 12, 192, 7501, 7301, 2100, 170, 4, 16, 51, 0.86, 93),
        ("GeForce RTX 3090", "Ampere", 24, 384, 9751, 9501, 2100, 350, 4, 16, 142, 0.86, 93),
        ("GeForce RTX 4060", "Ada", 8, 128, 8501, 8251, 3105, 115, 4, 8, 60, 0.9, 90),
        ("GeForce RTX 4070", "Ada", 12, 192, 10501, 10251, 3105, 200, 4, 16, 116, 0.9, 90),
        ("GeForce RTX 4090", "Ada", 24, 384, 10501, 10251, 3120, 450, 4, 16, 330, 0.9, 90),
        (
            "GeForce RTX 5070 Ti",
            "Blackwell",
            16,
            256,
            14001,
            13801,
            3090,
            300,
            5,
            16,
            176,
            0.88,
            88,
        ),
        ("GeForce RTX 5090", "Blackwell", 32, 512, 14001, 13801, 3090, 575, 5, 16, 419, 0.88, 90),
        ("GeForce RTX 2080 Ti", "Turing", 11, 352, 7001, 6801, 2100, 250, 3, 16, 107, 0.72, 89),
        ("Tesla P40", "Pascal", 24, 384, 3615, 3615, 1531, 250, 3, 16, 12, 0.68, 92),
    )
)
LAPTOPS = tuple(
    _card(row)
    for row in (
        ("GeForce RTX 4060 Laptop GPU", "Ada", 8, 128, 8001, 8001, 3105, 115, 4, 8, 58, 0.88, 87),
        (
            "GeForce RTX 4090 Laptop GPU",
            "Ada",
            16,
            256,
            9001,
            9001,
            3105,
            150,
            4,
            16,
            190,
            0.88,
            87,
        ),
    )
)
DATACENTER = tuple(
    _card(row)
    for row in (
        ("A100-SXM4-80GB", "Ampere", 80, 5120, 1593, 1593, 1410, 400, 4, 16, 312, 0.57, 90),
        ("H100 80GB HBM3", "Hopper", 80, 5120, 2619, 2619, 1980, 700, 5, 16, 989, 0.57, 87),
        ("L40S", "Ada", 48, 384, 9001, 9001, 2520, 350, 4, 16, 362, 0.88, 92),
    )
)
RADEON = Card(
    name="AMD Radeon RX 7900 XTX",
    architecture="RDNA3",
    memory_gib=24,
    bandwidth_gb_s=960,
    bus_bits=None,
    memory_mhz=1249,
    busy_memory_mhz=1249,
    sm_mhz=2900,
    power_w=355,
    generation=4,
    width=16,
    tflops=123,
    efficiency=0.72,
    vendor="amd",
)
SPARK = Card(
    name="NVIDIA GB10",
    architecture="Blackwell",
    memory_gib=120,
    bandwidth_gb_s=273,
    bus_bits=None,
    memory_mhz=4266,
    busy_memory_mhz=4266,
    sm_mhz=2418,
    power_w=140,
    generation=1,
    width=1,
    tflops=125,
    efficiency=0.86,
    unified=True,
)
CARDS = {card.name: card for card in (*GEFORCE, *LAPTOPS, *DATACENTER, RADEON, SPARK)}
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938}
"""Usable bytes per second of one PCIe lane, by generation."""
