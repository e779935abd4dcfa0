"""A record's GPUs for human eyes. Pure: entries in, text out; names are stripped by the caller."""

from collections.abc import Iterator, Mapping
from typing import Any

Entry = Mapping[str, Any]

_GIB = 2**30
_PERCENT = 100


def gpu_line(entry: Entry) -> str:
    """Return one GPU of a record in a line: how it fared, why its clocks were lower, its memory."""
    name = f"GPU {entry['index']}" + (f" {entry['name']}" if "name" in entry else "")
    return f"{name}: {'; '.join(_parts(entry)) or 'it told nothing'}"


def _parts(entry: Entry) -> Iterator[str]:
    parts = (_load(entry), _heat(entry), _reasons(entry), _energy(entry), _memory(entry))
    return (part for part in parts if part)


def _load(entry: Entry) -> str:
    words = []
    if "busy_ratio" in entry:
        words.append(f"{_PERCENT * _median(entry, 'busy_ratio'):.0f} % busy")
    if "dram_busy_ratio" in entry:
        words.append(f"{_PERCENT * _median(entry, 'dram_busy_ratio'):.0f} % of its bandwidth")
    if "power_w" in entry:
        limit = f" of {_median(entry, 'power_limit_w'):.0f}" if "power_limit_w" in entry else ""
        words.append(f"{_median(entry, 'power_w'):.0f}{limit} W")
    if "sm_clock_mhz" in entry:
        words.append(f"{_median(entry, 'sm_clock_mhz'):.0f} MHz")
    return ", ".join(words)


def _heat(entry: Entry) -> str:
    if "temperature_c" not in entry:
        return ""
    margin = (
        f" ({_median(entry, 'temperature_margin_c'):.0f} below its limit)"
        if "temperature_margin_c" in entry
        else ""
    )
    return f"{_median(entry, 'temperature_c'):.0f} C{margin}"


def _reasons(entry: Entry) -> str:
    """Say for how much of the time each reason held the clocks down; idleness is none."""
    shares = {name: share for name, share in entry.get("reasons", {}).items() if name != "gpu-idle"}
    said = ", ".join(f"{name} {_PERCENT * share:.0f} %" for name, share in shares.items())
    return f"clocks held by {said}" if said else ""


def _energy(entry: Entry) -> str:
    if "energy_j_per_token" not in entry:
        return ""
    return f"{entry['energy_j_per_token']:.2g} J per token"


def _memory(entry: Entry) -> str:
    vram = entry.get("vram")
    if not vram:
        return ""
    others = vram.get("others", ())
    held = [
        ("server", vram.get("server_bytes")),
        *((str(other.get("name") or other["pid"]), other.get("bytes")) for other in others),
        ("hidden", vram.get("hidden_bytes")),
        ("free", vram.get("free_bytes")),
    ]
    said = ", ".join(f"{name} {count / _GIB:.1f}" for name, count in held if count is not None)
    return f"memory (GiB): {said} of {vram['total_bytes'] / _GIB:.1f}"


def _median(entry: Entry, name: str) -> float:
    return float(entry[name]["median"])
