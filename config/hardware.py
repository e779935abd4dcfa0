"""What is known of a GPU by its name alone: the class of its efficiency, sometimes its bandwidth.

A name must match whole. There is no nearest match: the nearest name to "RTX 4090 Laptop GPU" is
a card with twice the bandwidth.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_TABLE = Path(__file__).with_name("hardware.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """What `hardware.toml` says about one device name.

    `efficiency_ratio` is the share of peak bandwidth that decode reaches; `low_ratio` is where the
    band begins, as a share of the predicted rate. Bandwidth is None where NVML tells it exactly.
    """

    name: str
    kind: str
    efficiency_ratio: float
    low_ratio: float
    bandwidth_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    kind: str
    efficiency_ratio: float
    low_ratio: float
    names: tuple[re.Pattern[str], ...]

    def holds(self, name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    classes: tuple[_Class, ...]
    bandwidth_bytes_per_s: dict[str, float]


def find_gpu(name: str | None) -> GpuSpec | None:
    """Return what is known of the device with exactly this name, or None.

    A MIG slice is not known: its share of the card's bandwidth is not in its name's class.
    """
    if name is None or " MIG " in name:
        return None
    table = _table()
    found = next((c for c in table.classes if c.holds(name.strip())), None)
    if found is None:
        return None
    return GpuSpec(
        name=name,
        kind=found.kind,
        efficiency_ratio=found.efficiency_ratio,
        low_ratio=found.low_ratio,
        bandwidth_bytes_per_s=table.bandwidth_bytes_per_s.get(name.strip().casefold()),
    )


@cache
def _table() -> _Table:
    raw = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return _Table(
        classes=tuple(
            _Class(
                kind=entry["name"],
                efficiency_ratio=entry["efficiency"],
                low_ratio=entry["low"],
                names=tuple(re.compile(pattern, re.IGNORECASE) for pattern in entry["names"]),
            )
            for entry in raw["class"]
        ),
        bandwidth_bytes_per_s={
            name.casefold(): gb_s * 1e9 for name, gb_s in raw["bandwidth_gb_s"].items()
        },
    )
