"""What a sample of GPUs may hold beside its tiers: readings so dear that each has its own rate."""

from typing import Literal, NamedTuple


class Extras(NamedTuple):
    """Which of them are due.

    `traffic` is the PCIe counters: `steady` compares each sample with the one before, `burst`
    counts for 0.05 s from now and tells it with the next sample. The others come with samples of
    the 1 Hz tier alone.
    """

    energy: bool = True
    lists: bool = True
    shares: bool = True
    traffic: Literal["steady", "burst"] | None = "steady"


ALL = Extras()
