"""All detectors, in the order of the documentation."""

from collections.abc import Mapping

from slowtok.detectors.client import proxy_lag, slow_network, slow_reader
from slowtok.detectors.finding import Detector
from slowtok.detectors.gpu import (
    clocks_stuck,
    gpu_fault,
    gpu_shared,
    hardware_slowdown,
    multi_gpu_split,
    pcie_link,
    power_cap,
    thermal_throttle,
    vgpu_unlicensed,
)
from slowtok.detectors.host import cpu_quota, host_contention, low_power_mode
from slowtok.detectors.memory import (
    context_oversized,
    model_too_big,
    partial_offload,
    reload_degradation,
    storage_paging,
    vram_held_by_others,
    vram_spill,
)
from slowtok.detectors.server import (
    batch_shared,
    cpu_fallback,
    draft_rejected,
    flash_attention_off,
    host_bound,
    kv_preemption,
    long_context,
    model_load,
    prompt_cache_miss,
    queued,
    slow_kernel,
    slow_prefill,
    threads_misconfigured,
)

CATALOG: tuple[Detector, ...] = (
    vram_spill,
    partial_offload,
    context_oversized,
    vram_held_by_others,
    reload_degradation,
    model_too_big,
    storage_paging,
    thermal_throttle,
    power_cap,
    hardware_slowdown,
    clocks_stuck,
    gpu_shared,
    pcie_link,
    multi_gpu_split,
    gpu_fault,
    vgpu_unlicensed,
    cpu_fallback,
    slow_kernel,
    host_bound,
    flash_attention_off,
    threads_misconfigured,
    queued,
    batch_shared,
    kv_preemption,
    model_load,
    prompt_cache_miss,
    slow_prefill,
    draft_rejected,
    long_context,
    cpu_quota,
    host_contention,
    low_power_mode,
    slow_reader,
    slow_network,
    proxy_lag,
)


def cause_of(detector: Detector) -> str:
    """Return the public name of a detector's cause: its module's own name, with dashes."""
    return detector.__name__.rpartition(".")[2].replace("_", "-")


BY_CAUSE: Mapping[str, Detector] = {cause_of(detector): detector for detector in CATALOG}
