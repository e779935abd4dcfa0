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


def _card(name: str, architecture: str | None, memory_gib: float, bits: int, **more: float) -> Card:
    mhz, factor = int(more.pop("mhz")), 2 * bits / 8 / 1000
    return Card(
        name=name,
        architecture=architecture,
        memory_gib=memory_gib,
        bandwidth_gb_s=round(mhz * factor, 1),
        bus_bits=bits,
        memory_mhz=mhz,
        **more,  # type: ignore[arg-type]
    )


# fmt: off
GEFORCE = (
    _card("NVIDIA GeForce RTX 3060", "Ampere", 12, 192, mhz=7501, busy_memory_mhz=7301, sm_mhz=2100, power_w=170, generation=4, width=16, tflops=51, efficiency=.86),
    _card("NVIDIA GeForce RTX 3090", "Ampere", 24, 384, mhz=9751, busy_memory_mhz=9501, sm_mhz=2100, power_w=350, generation=4, width=16, tflops=142, efficiency=.86),
    _card("NVIDIA GeForce RTX 4060", "Ada", 8, 128, mhz=8501, busy_memory_mhz=8251, sm_mhz=3105, power_w=115, generation=4, width=8, tflops=60, efficiency=.9),
    _card("NVIDIA GeForce RTX 4070", "Ada", 12, 192, mhz=10501, busy_memory_mhz=10251, sm_mhz=3105, power_w=200, generation=4, width=16, tflops=116, efficiency=.9),
    _card("NVIDIA GeForce RTX 4090", "Ada", 24, 384, mhz=10501, busy_memory_mhz=10251, sm_mhz=3120, power_w=450, generation=4, width=16, tflops=330, efficiency=.9),
    _card("NVIDIA GeForce RTX 5070 Ti", "Blackwell", 16, 256, mhz=14001, busy_memory_mhz=13801, sm_mhz=3090, power_w=300, generation=5, width=16, tflops=176, efficiency=.88, slowdown_c=88),
    _card("NVIDIA GeForce RTX 5090", "Blackwell", 32, 512, mhz=14001, busy_memory_mhz=13801, sm_mhz=3090, power_w=575, generation=5, width=16, tflops=419, efficiency=.88, slowdown_c=90),
    _card("NVIDIA GeForce RTX 2080 Ti", "Turing", 11, 352, mhz=7001, busy_memory_mhz=6801, sm_mhz=2100, power_w=250, generation=3, width=16, tflops=107, efficiency=.72, slowdown_c=89, windowed_power=False),
    _card("Tesla P40", "Pascal", 24, 384, mhz=3615, busy_memory_mhz=3615, sm_mhz=1531, power_w=250, generation=3, width=16, tflops=12, efficiency=.68, windowed_power=False),
)
LAPTOPS = (
    _card("NVIDIA GeForce RTX 4060 Laptop GPU", "Ada", 8, 128, mhz=8001, busy_memory_mhz=8001, sm_mhz=3105, power_w=115, generation=4, width=8, tflops=58, efficiency=.88, slowdown_c=87, laptop=True),
    _card("NVIDIA GeForce RTX 4090 Laptop GPU", "Ada", 16, 256, mhz=9001, busy_memory_mhz=9001, sm_mhz=3105, power_w=150, generation=4, width=16, tflops=190, efficiency=.88, slowdown_c=87, laptop=True),
)
DATACENTER = (
    _card("NVIDIA A100-SXM4-80GB", "Ampere", 80, 5120, mhz=1593, busy_memory_mhz=1593, sm_mhz=1410, power_w=400, generation=4, width=16, tflops=312, efficiency=.57, slowdown_c=90, datacenter=True, windowed_power=False),
    _card("NVIDIA H100 80GB HBM3", "Hopper", 80, 5120, mhz=2619, busy_memory_mhz=2619, sm_mhz=1980, power_w=700, generation=5, width=16, tflops=989, efficiency=.57, slowdown_c=87, datacenter=True),
    _card("NVIDIA L40S", "Ada", 48, 384, mhz=9001, busy_memory_mhz=9001, sm_mhz=2520, power_w=350, generation=4, width=16, tflops=362, efficiency=.88, slowdown_c=92, datacenter=True),
)
# fmt: on
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
