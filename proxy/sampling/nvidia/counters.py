"""Counters of a GPU: bytes over PCIe, time throttled, energy.

Field ids and meanings are from nvml.h of CUDA 12.9 and 13.4.
"""

import re
import time
from collections.abc import Callable, Mapping

from slowtok.detectors.analysis.gpu.pcie import LANE_BYTES_PER_S
from slowtok.proxy.sampling.nvidia.calls import Device, Values

PCIE_TX, PCIE_RX = 197, 198
PCIE_NAMES = {PCIE_TX: "pcie_tx_bytes_per_s", PCIE_RX: "pcie_rx_bytes_per_s"}
WRAP_BYTES = 1 << 32
"""The byte counters have 32 bits, though nvml.h only says that they can wrap."""

FAST_TICK_S = 0.12
"""The period of the fast tier, 0.1 s, with what it may come late."""

LOOK_S = 0.05
"""16 lanes of generation 5 can fill 32 bits in 0.068 s."""

SHORTEST_S = 0.02
"""Over less time the driver's own refresh would show. Heuristic."""

THROTTLED_POWER = 74
SLOWDOWN_NAMES = (
    "throttled_sw_thermal_ns",
    "throttled_hw_thermal_ns",
    "throttled_power_brake_ns",
)
SLOWDOWN_IDS = {"new": (269, 270, 271), "old": (251, 252, 253)}
LAST_OLD, FIRST_NEW = (580, 65), (580, 82)
"""Drivers between which the ids changed: nvidia-ml-py 13.580.65 and 13.580.82 differ."""

ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
FEEDS = {"energy_j": (ENERGY,)}
PCIE_FEEDS = {name: (f"field {field}",) for field, name in PCIE_NAMES.items()}

IDS_UNCERTAIN = "this driver may count it under either of two ids: update the driver"
LINK_UNKNOWN = "the speed of its PCIe link is not known, so neither is when its counters wrap"
WRAPS_TOO_FAST = "its PCIe counters wrap faster than they can be read"


class PcieTraffic:
    """Rates from the byte counters of one GPU, where they can be told for certain.

    Certain is what was counted between two looks so close together that the link cannot have
    moved 2^32 bytes. A link that can do that within a period of the fast tier must be looked at
    in between too.
    """

    def __init__(self, generation: int | None, width: int | None) -> None:
        lane = LANE_BYTES_PER_S.get(generation or 0)
        # None: how often the counters may have wrapped cannot be told
        self._wrap_s = WRAP_BYTES / (lane * width) if lane and width else None
        self._last: dict[int, int] = {}
        self._last_at_s = 0.0
        self._gained: dict[int, int] = {}
        self._since_s = 0.0

    def needs_look(self) -> bool:
        """Return True if `look` must be called every `LOOK_S` while rates are wanted."""
        return self._wrap_s is not None and LOOK_S < self._wrap_s < FAST_TICK_S

    def ruled_out(self, period_s: float) -> Mapping[str, str]:
        """Return the rates that can never be told when read this often, with the reason."""
        if self._wrap_s is None:
            return dict.fromkeys(PCIE_FEEDS, LINK_UNKNOWN)
        often_s = LOOK_S if period_s <= FAST_TICK_S else period_s
        return dict.fromkeys(PCIE_FEEDS, WRAPS_TOO_FAST) if self._wrap_s <= often_s else {}

    def look(self, device: Device) -> None:
        """Count what has passed since the last look or reading."""
        now_s = time.monotonic()
        before = self._last if self._wrap_s and now_s - self._last_at_s < self._wrap_s else {}
        self._last, self._last_at_s = device.ask_fields(PCIE_TX, PCIE_RX), now_s
        self._gained = {
            field: gained + (self._last[field] - before[field]) % WRAP_BYTES
            for field, gained in self._gained.items()
            if field in before and field in self._last
        }

    def read(self, device: Device) -> Values:
        """Bytes per second since the reading before; unknown when a counter may wrap twice."""
        if self._wrap_s is None or time.monotonic() - self._since_s < SHORTEST_S:
            return {}
        self.look(device)
        gained, span_s = self._gained, self._last_at_s - self._since_s
        self._gained, self._since_s = dict.fromkeys(self._last, 0), self._last_at_s
        return {
            name: gained[field] / span_s if field in gained else None
            for field, name in PCIE_NAMES.items()
        }

    def tell(self) -> Values:
        """Bytes per second from the reading before to the last look, once; nothing if too short."""
        span_s = self._last_at_s - self._since_s
        if span_s < SHORTEST_S:
            return {}
        gained, self._gained = self._gained, {}
        return {PCIE_NAMES[field]: counted / span_s for field, counted in gained.items()}


def slowdown_ids(driver: str | None) -> tuple[int, ...]:
    """Return the field ids of `SLOWDOWN_NAMES`; none for a driver that may have either set.

    They were given to other quantities once, so the wrong set answers without an error.
    """
    numbers = re.match(r"(\d+)\.(\d+)", driver or "")
    if not numbers:
        return ()
    version = (int(numbers[1]), int(numbers[2]))
    if version >= FIRST_NEW:
        return SLOWDOWN_IDS["new"]
    return SLOWDOWN_IDS["old"] if version <= LAST_OLD else ()


def throttled_names(driver: str | None) -> dict[int, str]:
    """Return the throttle counters that this driver has, by field id."""
    slowdowns = zip(slowdown_ids(driver), SLOWDOWN_NAMES, strict=False)
    return {THROTTLED_POWER: "throttled_power_ns", **dict(slowdowns)}


def throttled_feeds(driver: str | None) -> dict[str, tuple[str, ...]]:
    """Return which fields of the driver give the throttle counters; `()` is none for certain."""
    feeds: dict[str, tuple[str, ...]] = dict.fromkeys(SLOWDOWN_NAMES, ())
    return feeds | {name: (f"field {field}",) for field, name in throttled_names(driver).items()}


def make_read_throttled(driver: str | None) -> Callable[[Device], Values]:
    """Return the reading of the throttle counters, in ns since some start, for this driver."""
    names = throttled_names(driver)

    def read_throttled(device: Device) -> Values:
        return {names[field]: ns for field, ns in device.ask_fields(*names).items()}

    return read_throttled


def read_energy(device: Device) -> Values:
    """Energy since the driver was loaded; NVML counts mJ."""
    millijoules = device.ask(ENERGY)
    return {"energy_j": None if millijoules is None else millijoules / 1000}
