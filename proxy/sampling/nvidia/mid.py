"""The readings of the 1 Hz tier that count nothing: limits in force and the link."""

from slowtok.proxy.sampling.nvidia.calls import Device, Values
from slowtok.proxy.sampling.nvidia.fast import watts

FEEDS = {"power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit",)}
LINK_FEEDS = {
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth",),
}


def read_power_limit(device: Device) -> Values:
    """The limit in force, whoever set it."""
    return {"power_limit_w": watts(device.ask("nvmlDeviceGetEnforcedPowerLimit"))}


def read_link(device: Device) -> Values:
    """The PCIe link as it is now: an idle GPU goes down to generation 1, by design."""
    return {
        "pcie_generation": device.ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_width": device.ask("nvmlDeviceGetCurrPcieLinkWidth"),
    }
