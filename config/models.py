"""Published models by name and shape: for questions about a model whose file is not there.

A file's own tensor table is exact and always wins; this table answers `slowtok fit` and the fit of
the envelope's constants, where only a name and a size are given.

Source: `models.csv`, the geometry in the models' published config.json, cross-checked with their
parameter counts; the bytes that gpt-oss reads are from its tensor tables, because its experts and
its attention are stored in different types.
"""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

_TABLE = Path(__file__).with_name("models.csv")
_CONTEXTS = Path(__file__).with_name("contexts.csv")
NEAR_RATIO = 0.03  # parameter counts are quoted with and without embeddings, rounded
SAME_NAME_RATIO = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """One row of `models.csv`; KV bytes are per token at 16 bits.

    `read_parameters` are those read for one token: embedding look-ups left out, used experts only.
    `window_bytes_per_token` is what layers with a sliding window of `window_tokens` add;
    `state_bytes` is the size of a recurrent state, read and written for each token.
    `read_bytes_by_type` is exact where the types of a file are mixed unevenly.
    `trained_context_tokens` is `max_position_embeddings`; None where variants of one shape differ,
    which `contexts.csv` tells apart by their names.
    """

    name: str
    parameters: float
    read_parameters: float
    experts: int | None
    experts_used: int | None
    layers: int
    kv_heads: int
    head_dim: int
    kv_bytes_per_token: float
    window_tokens: int | None
    window_bytes_per_token: float | None
    state_bytes: float
    read_bytes_by_type: tuple[tuple[str, float], ...]
    trained_context_tokens: int | None


@lru_cache(maxsize=256)
def find_model(
    name: str | None,
    *,
    parameters: float | None = None,
    layers: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> KnownModel | None:
    """Return the published model that this is, or None.

    Whatever is given must agree: parameters within 3 %, the shape exactly. Without a shape the
    names must share a word. Of several the one whose name has most words in common is taken, then
    the one nearest in size. A name alone must hold every word of the model's own.
    """
    words = _words(name or "")
    shaped = layers is not None
    found = [
        (model, len(words & _words(model.name)))
        for model in known_models()
        if layers in {None, model.layers}
        and kv_heads in {None, model.kv_heads}
        and head_dim in {None, model.head_dim}
        and _near(model, parameters, words, shaped=shaped)
    ]
    if not found:
        return None

    def rank(candidate: tuple[KnownModel, int]) -> tuple[float, float]:
        size = parameters or candidate[0].parameters
        return candidate[1], -abs(candidate[0].parameters / size - 1)

    return max(found, key=rank)[0]


def trained_context_tokens(name: str | None) -> int | None:
    """Return the longest context that a published model was trained for; None where not known.

    A row of `contexts.csv` (from the models' own cards and config.json) is about each name that
    holds its words one after the other; the longest counts. Of versions that share a name it has
    the shortest.
    """
    if found := longest_held(" ".join(name_words(name or "")), _contexts(), between=" "):
        return _contexts()[found]
    model = find_model(name)
    return None if model is None else model.trained_context_tokens


@cache
def _contexts() -> dict[str, int]:
    with _CONTEXTS.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return {row["name"]: int(row["trained_context_tokens"]) for row in rows}


def longest_held(text: str, names: Iterable[str], *, between: str) -> str | None:
    """Return the longest of `names` whose words `text` holds one after the other."""
    whole = f"{between}{text}{between}"
    held = (name for name in names if f"{between}{name}{between}" in whole)
    return max(held, key=len, default=None)


def name_words(name: str) -> tuple[str, ...]:
    """Return the words and the numbers of a model's name, in small letters."""
    return tuple(re.findall(r"[a-z]+|\d+", name.lower()))


def _near(model: KnownModel, parameters: float | None, words: set[str], *, shaped: bool) -> bool:
    own = _words(model.name)
    if parameters is None:
        return bool(own) and own <= words
    distance = abs(model.parameters / parameters - 1)
    if shaped:
        return distance <= (SAME_NAME_RATIO if own <= words else NEAR_RATIO)
    return distance <= NEAR_RATIO and any(len(word) > 2 for word in own & words)


def _words(name: str) -> set[str]:
    return set(name_words(name))


@cache
def known_models() -> tuple[KnownModel, ...]:
    """Return all rows of the table."""
    with _TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(_model(row) for row in csv.DictReader(file))


def _model(row: dict[str, str]) -> KnownModel:
    def whole(column: str) -> int | None:
        return int(row[column]) if row[column] else None

    def number(column: str) -> float | None:
        return float(row[column]) if row[column] else None

    pairs = (pair.split("=") for pair in row["read_gb_at"].split(";") if pair)
    return KnownModel(
        name=row["name"],
        parameters=float(row["parameters_b"]) * 1e9,
        read_parameters=float(row["read_parameters_b"]) * 1e9,
        experts=whole("experts"),
        experts_used=whole("experts_used"),
        layers=int(row["layers"]),
        kv_heads=int(row["kv_heads"]),
        head_dim=int(row["head_dim"]),
        kv_bytes_per_token=float(row["kv_bytes_per_token"]),
        window_tokens=whole("window_tokens"),
        window_bytes_per_token=number("window_bytes_per_token"),
        state_bytes=(number("state_read_write_bytes") or 0.0) / 2,
        read_bytes_by_type=tuple((kind, float(gb) * 1e9) for kind, gb in pairs),
        trained_context_tokens=whole("trained_context_tokens"),
    )
