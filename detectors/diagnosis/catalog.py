"""The catalogue: all detectors in the order of the documentation, and their traits by cause."""

from collections.abc import Callable, Mapping

from slowtok.detectors.case.finding import Detector, Traits
from slowtok.detectors.causes.client import proxy_lag, retried_request, slow_network, slow_reader
from slowtok.detectors.causes.gpu import (
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
from slowtok.detectors.causes.host import cpu_quota, host_contention, low_power_mode
from slowtok.detectors.causes.memory import (
    context_oversized,
    model_too_big,
    partial_offload,
    reload_degradation,
    storage_paging,
    vram_held_by_others,
    vram_spill,
)
from slowtok.detectors.causes.prompt import (
    cache_evicted,
    cache_not_rewindable,
    long_context,
    long_thinking,
    oversized_prompt,
    prompt_cache_miss,
    template_rewrite,
)
from slowtok.detectors.causes.server import (
    abandoned_request,
    batch_shared,
    cpu_fallback,
    draft_rejected,
    engine_regression,
    flash_attention_off,
    host_bound,
    kernel_compile,
    kv_preemption,
    model_load,
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
    cache_not_rewindable,
    template_rewrite,
    cache_evicted,
    slow_prefill,
    draft_rejected,
    kernel_compile,
    engine_regression,
    abandoned_request,
    long_context,
    oversized_prompt,
    long_thinking,
    cpu_quota,
    host_contention,
    low_power_mode,
    slow_reader,
    slow_network,
    proxy_lag,
    retried_request,
)


def cause_of(detector: Detector) -> str:
    """Return the public name of a detector's cause: its module's name with dashes."""
    return detector.__name__.rpartition(".")[2].replace("_", "-")


BY_CAUSE: Mapping[str, Detector] = {cause_of(detector): detector for detector in CATALOG}
TRAITS: Mapping[str, Traits] = {cause: detector.TRAITS for cause, detector in BY_CAUSE.items()}


def causes_with(is_so: Callable[[Traits], bool]) -> frozenset[str]:
    """Return the causes with a given trait."""
    return frozenset(cause for cause, traits in TRAITS.items() if is_so(traits))
