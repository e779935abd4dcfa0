"""NVML's reasons for reduced clocks: one bit each in `GpuSample.reasons`.

Source: nvml.h of CUDA 13.4, nvmlClocksEventReason*.
"""

from collections.abc import Mapping
from enum import IntFlag


class ClocksEvent(IntFlag):
    """The bits; records and the API use the names in lower case with dashes."""

    GPU_IDLE = 0x1
    APPLICATION_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCKS = 0x100
    BOARD_LIMIT = 0x200
    RELIABILITY = 0x400


NAMES: Mapping[int, str] = {
    int(bit): (bit.name or "").lower().replace("_", "-") for bit in ClocksEvent
}
"""By bit, as in records and in the API."""

LABELS: Mapping[int, str] = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat, by software",
    0x40: "heat, by hardware",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "voltage",
}
"""By bit, for people."""

# Plain numbers: a sample's mask is held against them thousands of times for one request, and an
# enum's own `&` makes a new member each time.
IDLE_BIT = int(ClocksEvent.GPU_IDLE)
POWER_BITS = int(ClocksEvent.SW_POWER_CAP | ClocksEvent.BOARD_LIMIT)
HOT_BIT = int(ClocksEvent.HW_THERMAL)
THERMAL_BITS = int(ClocksEvent.SW_THERMAL | ClocksEvent.HW_THERMAL)
BRAKE_BITS = int(ClocksEvent.HW_POWER_BRAKE)
SLOWDOWN_BIT = int(ClocksEvent.HW_SLOWDOWN)
"""Comes with each change of performance state, too."""

HARMLESS_BITS = int(
    ClocksEvent.GPU_IDLE
    | ClocksEvent.APPLICATION_CLOCKS
    | ClocksEvent.SW_POWER_CAP
    | ClocksEvent.SYNC_BOOST
    | ClocksEvent.DISPLAY_CLOCKS
)
"""A counter of heat or brake does not count in samples that show nothing else."""
