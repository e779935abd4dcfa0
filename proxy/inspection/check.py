"""One thing that was looked at, and how numbers are said in its sentence."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Area = Literal["engine", "memory", "flags", "gpu", "host", "hidden"]
State = Literal["ok", "note", "warn", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was found about one thing.

    `warn` costs speed or soon will; `note` is worth knowing and may be meant so; `unknown` could
    not be seen, and `advice` then says how to make it visible. `about` is the engine or the GPU.
    `basis` says what an estimate rests on. `numbers` are in the unit that each name ends with.
    """

    area: Area
    name: str
    state: State
    said: str
    about: str | None = None
    advice: str | None = None
    basis: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)


def gib(count: float | None) -> str:
    """Return bytes as people say them."""
    if count is None:
        return "?"
    return f"{count / 2**30:.1f} GiB" if count >= 0.1 * 2**30 else f"{count / 2**20:.0f} MiB"


def measured(**values: float | None) -> dict[str, float]:
    """Return the numbers that are known."""
    return {name: value for name, value in values.items() if value is not None}
