"""Fields that a GPU cannot give, with the reason in words for people."""

import sys
from collections.abc import Mapping

from slowtok.proxy.sampling.nvidia import counters, events, gpm, processes, readings
from slowtok.proxy.sampling.nvidia.calls import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    UNKNOWN,
    UNSUPPORTED,
    Device,
    Values,
)

WORDS = {
    NO_PERMISSION: "no permission: run as root",
    UNKNOWN: "the driver answers with an unknown error",
    UNSUPPORTED[0]: "not supported by this GPU or driver",
    INVALID_ARGUMENT: "not known to this version of the driver",
    FUNCTION_NOT_FOUND: "not known to this version of the driver or of nvidia-ml-py",
}
"""By NVML's error, in the order in which they count where several calls failed."""

OTHER = "the driver answers with error {}"
NOT_ON_VGPU = "not available on vGPU guests"
NOT_ON_WSL = "not available under WSL2: the GPU's processes run on Windows"
NOT_A_VGPU = "not a vGPU: needs no licence"
NOT_FOR_SLICE = "not available for a MIG slice"
WHOLE_GPU_ONLY = "counted for the whole GPU only, not for a MIG slice"
NO_MEMORY_OF_ITS_OWN = "the GPU shares the machine's memory: its driver gives no size"
NO_LINK = "the GPU is part of the chip: it has no PCIe link"

OF_GPU = {
    **readings.FEEDS,
    **readings.LIMIT_FEEDS,
    **readings.LINK_FEEDS,
    **counters.FEEDS,
    **counters.PCIE_FEEDS,
    **readings.HEALTH_FEEDS,
    **events.FEEDS,
}
OF_PART = {**readings.MEMORY_FEEDS, **processes.FEEDS, **gpm.FEEDS}


def explain(
    failed: Mapping[str, int], feeds: Mapping[str, tuple[str, ...]], *, virtual: bool | None
) -> dict[str, str]:
    """Return the fields none of whose calls will ever answer, with the reason.

    `failed` is `Device.absent`, `feeds` the calls that give each field, by the same names.
    """
    return {
        field: _words([failed[call] for call in calls], virtual=virtual)
        for field, calls in feeds.items()
        if calls and all(call in failed for call in calls)
    }


def _words(codes: list[int], *, virtual: bool | None) -> str:
    ranked = {code: rank for rank, code in enumerate(WORDS)}
    code = min(codes, key=lambda code: ranked.get(code, len(ranked)))
    if virtual and code in UNSUPPORTED:
        return NOT_ON_VGPU
    return WORDS.get(code, OTHER.format(code))


def rule_out(facts: Values, *, is_wsl: bool) -> dict[str, str]:
    """Return the fields that a GPU or slice of this kind never gives, whatever is asked."""
    found = dict(_rule_out_throttled(facts["driver"]))
    if facts["unified_memory"]:
        found |= dict.fromkeys(readings.MEMORY_FEEDS, NO_MEMORY_OF_ITS_OWN)
        found |= dict.fromkeys([*readings.LINK_FEEDS, *counters.PCIE_FEEDS], NO_LINK)
    if facts.get("partition_of"):
        found |= dict.fromkeys(["busy_ratio", "memory_busy_ratio"], NOT_FOR_SLICE)
        found |= dict.fromkeys(counters.PCIE_FEEDS, WHOLE_GPU_ONLY)
    if not facts["virtual"]:
        found["vgpu_licensed"] = NOT_A_VGPU
    if is_wsl:
        found["processes"] = NOT_ON_WSL
    if not sys.platform.startswith("linux"):
        found |= dict.fromkeys(events.FEEDS, events.LINUX_ONLY)
    return found


def _rule_out_throttled(driver: str | None) -> dict[str, str]:
    feeds = counters.throttled_feeds(driver)
    return {name: counters.IDS_UNCERTAIN for name, calls in feeds.items() if not calls}


def absent_fields(gpu: Device, part: Device, facts: Values) -> dict[str, str]:
    """Return the fields that the calls which failed so far leave without a value."""
    feeds = OF_GPU | counters.throttled_feeds(facts["driver"])
    virtual = facts["virtual"]
    found = explain(gpu.absent, feeds, virtual=virtual)
    return found | explain(part.absent, OF_PART, virtual=virtual)
