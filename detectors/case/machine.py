"""The machine: facts about its GPUs and host, and samples of them during a request.

Strategy: one format for all makers of GPUs, so that only the readers depend on the maker.
Invariants as in `slowtok.detectors.case.case`: `None` is not known, zero is a measurement.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from slowtok.detectors.case.value import frozen_dataclass

GpuVendor = Literal["nvidia", "amd", "apple"]
PowerSource = Literal["ac", "battery", "undersized"]
"""What feeds a GPU; `undersized` is an adapter that gives less than the machine may need."""

SAVING_PROFILES = frozenset({"low-power", "power-saver", "powersave", "quiet"})
"""Power profiles that slow a machine, as the firmware (platform_profile) and power-profiles-daemon
call them."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class CpuUser:
    """All processes of one name together; `pid` is that of the busiest one."""

    name: str
    pid: int
    cpu_cores: float
    processes: int = 1


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """The host and the server's process tree over the `span_s` seconds that end at `at_s`.

    CPU is counted in cores (1.0 is one core fully busy); busy cores include those that the
    hypervisor took (steal). `server_main_process_cores` are those of the process that listens
    (vLLM's API server), `server_busiest_process_cores` of that one of the tree's `server_processes`
    that used most (its EngineCore, a worker). `server_run_delay_cores` is the time the server's
    threads were ready but had no core to run on, per second, `server_worst_delay_ratio` that of the
    one busy thread that waited longest. Ratios are 0 to 1. `others` are the programs that used most
    of the CPU since the last look at them, the largest first, neither the server nor slowtok; None
    in most samples: a look comes every few seconds, and only while others use much.
    """

    at_s: float
    span_s: float
    cpu_cores: int | None = None
    cpu_busy_cores: float | None = None
    cpu_steal_cores: float | None = None
    busiest_core_ratio: float | None = None
    cpu_mhz: float | None = None
    available_bytes: int | None = None
    swap_in_bytes_per_s: float | None = None
    psi_cpu_some_ratio: float | None = None
    psi_io_full_ratio: float | None = None
    psi_memory_full_ratio: float | None = None
    server_cpu_cores: float | None = None
    server_busy_threads: int | None = None
    server_threads: int | None = None
    server_processes: int | None = None
    server_main_process_cores: float | None = None
    server_busiest_process_cores: float | None = None
    server_run_delay_cores: float | None = None
    server_worst_delay_ratio: float | None = None
    server_anon_bytes: int | None = None
    server_file_bytes: int | None = None
    server_major_faults_per_s: float | None = None
    server_read_bytes_per_s: float | None = None
    server_allowed_cores: int | None = None
    server_quota_cores: float | None = None
    server_throttled_ratio: float | None = None
    server_throttled_s_per_s: float | None = None
    others: tuple[CpuUser, ...] | None = None

    @property
    def others_cpu_cores(self) -> float | None:
        """Cores that other processes of this machine kept busy; stolen ones are not theirs."""
        if self.cpu_busy_cores is None or self.server_cpu_cores is None:
            return None
        accounted_cores = self.server_cpu_cores + (self.cpu_steal_cores or 0.0)
        return max(self.cpu_busy_cores - accounted_cores, 0.0)

    @property
    def stolen_ratio(self) -> float | None:
        """Share of the time that the machine's cores wanted to run and the hypervisor took."""
        if self.cpu_steal_cores is None or self.cpu_busy_cores is None:
            return None
        return self.cpu_steal_cores / self.cpu_busy_cores if self.cpu_busy_cores else 0.0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """One process that holds memory on a GPU; `memory_bytes` is None where the driver hides it.

    `host_memory_bytes` is memory of the machine that the GPU uses for it, `evicted_bytes` the part
    that was moved there from the GPU. `is_server` is None where it cannot be told: in a container
    the driver gives the pids of the host.
    """

    pid: int
    name: str | None = None
    memory_bytes: int | None = None
    host_memory_bytes: int | None = None
    evicted_bytes: int | None = None
    is_server: bool | None = False
    busy_ratio: float | None = None
    memory_busy_ratio: float | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at `at_s`. Ratios are 0 to 1; `reasons` is NVML's clocks-event mask.

    `dram_busy_ratio` is the share of the memory's peak bandwidth in use, `memory_busy_ratio` only
    the share of time with any memory traffic. PCIe rates are as the GPU sees them: `rx` goes into
    it. `energy_j`, `throttled_*_ns` and the counts of errors only grow: differences alone mean
    something. `xid` is the last critical error that the driver reported since sampling began,
    `xids` how many there were. Links, processes, counters and health come at 1 Hz and at a
    request's edges, the rest at 10 Hz.
    """

    at_s: float
    index: int
    busy_ratio: float | None = None
    memory_busy_ratio: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    pstate: int | None = None
    reasons: int | None = None
    temperature_c: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    temperature_margin_c: int | None = None
    memory_temperature_c: int | None = None
    dram_busy_ratio: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    energy_j: float | None = None
    throttled_power_ns: int | None = None
    throttled_sw_thermal_ns: int | None = None
    throttled_hw_thermal_ns: int | None = None
    throttled_power_brake_ns: int | None = None
    power_source: PowerSource | None = None
    vgpu_licensed: bool | None = None
    ecc_errors: int | None = None
    remapped_rows: int | None = None
    pcie_replays: int | None = None
    xid: int | None = None
    xids: int | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What does not change about a GPU. Bandwidth is the memory's peak, from NVML's clocks.

    `absent` maps a field of `GpuSample` that this GPU cannot give to the reason. `partition_of` is
    the uuid of the GPU that this one is a slice of (MIG). `virtual` says that a hypervisor shares
    the GPU out (vGPU).
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    vendor: GpuVendor | None = None
    architecture: str | None = None
    pci_bus_id: str | None = None
    partition_of: str | None = None
    virtual: bool | None = None
    slowdown_temperature_c: int | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    total_bytes: int | None = None
    bus_width_bits: int | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    bandwidth_bytes_per_s: float | None = None
    driver: str | None = None
    default_power_limit_w: float | None = None
    min_power_limit_w: float | None = None
    max_power_limit_w: float | None = None
    max_pcie_generation: int | None = None
    max_pcie_width: int | None = None
    gpu_max_pcie_generation: int | None = None
    unified_memory: bool | None = None
    mig: bool | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The machine. `gpus` is None where no GPU library answered, empty where it saw no GPU.

    `gpus_reason` says why there are none, or not all. `private_pids` says that this process sees
    only some of the machine's pids, so that those that a GPU's driver gives cannot be matched.
    `wsl` is Linux inside Windows, whose driver it uses. `sampling_failure` is why nothing of the
    machine is read; None where it is. A `measured` bandwidth of RAM is the most that was seen, so
    the RAM may be faster. `cpu_performance_cores` are the physical ones that are not efficiency
    cores; None where all are alike, or nothing tells. `on_battery`, `power_profile` and
    `cpu_governor` are what the operating system says.
    """

    gpus: tuple[GpuFacts, ...] | None = None
    os: Literal["linux", "wsl", "windows", "macos"] | None = None
    gpus_reason: str | None = None
    sampling_failure: str | None = None
    private_pids: bool | None = None
    on_battery: bool | None = None
    power_profile: str | None = None
    cpu_governor: str | None = None
    cpu_physical_cores: int | None = None
    cpu_performance_cores: int | None = None
    cpu_logical_cores: int | None = None
    ram_bytes: int | None = None
    ram_bandwidth_bytes_per_s: float | None = None
    ram_bandwidth_source: Literal["given", "measured"] | None = None
