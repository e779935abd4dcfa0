"""One request of a run, as its record tells it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

CACHE_CAUSES = frozenset(
    {"prompt-cache-miss", "cache-not-rewindable", "template-rewrite", "cache-evicted"}
)
CACHE_CAUSE = "prompt-cache-miss"  # where no finding says which of them it was
PHASES = ("queue", "load", "prefill", "decode", "delivery")

Record = Mapping[str, Any]


class NoTurn(ValueError):
    """A record that belongs to no run, or that another version wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request: when it was, what its time went into, and what was lost. Times in seconds.

    `parts_s` are its phases; `again_s` of its prefill went into tokens that were known.
    `usual_decode_s` is what its decode takes at the middle and at the low edge of what is
    expected. `lost_s` is by cause, `phases` where each was lost, `remedies` the word on each.
    `reads` are the shares of its new prompt by role. `live`: it is still on its way.
    """

    run: str
    by: str
    name: str | None
    turn: int
    parent: int | None
    how: str | None
    request: str
    started_s: float
    total_s: float
    parts_s: Mapping[str, float]
    slowtok_s: float
    again_s: float
    client_s: float | None
    tokens: Mapping[str, int]
    verdict: str | None
    causes: tuple[str, ...]
    lost_s: Mapping[str, float]
    phases: Mapping[str, str]
    remedies: Mapping[str, str]
    usual_decode_s: tuple[float, float] | None
    reads: Mapping[str, float]
    model: str | None
    client: str | None
    ended: str
    live: bool = False

    @property
    def ends_s(self) -> float:
        """When it was over."""
        return self.started_s + self.total_s


def turn_of(record: Record) -> Turn:
    """Return the turn that a record tells of.

    Raises:
        NoTurn: it belongs to no run, or cannot be read.
    """
    try:
        return _turn(record)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NoTurn(str(error)) from None


def _turn(record: Record) -> Turn:
    run, timing = record["run"], record["timing"]
    tokens = {name: int(count) for name, count in (record.get("tokens") or {}).items()}
    parts_s = {p: timing[f"{p}_ms"] / 1000 for p in PHASES if timing.get(f"{p}_ms")}
    named = [f for f in record.get("findings") or () if not f.get("informational")]
    since_ms = record.get("since_previous_ms")
    return Turn(
        run=str(run["id"]),
        by=str(run["by"]),
        name=run.get("name"),
        turn=int(run["turn"]),
        parent=run.get("parent"),
        how=run.get("how"),
        request=str(record["id"]),
        started_s=datetime.fromisoformat(record["ts"]).timestamp(),
        total_s=float(timing["total_ms"]) / 1000,
        parts_s=parts_s,
        slowtok_s=float(timing.get("proxy_ms") or 0.0) / 1000,
        again_s=_again_s(parts_s.get("prefill", 0.0), tokens),
        client_s=None if since_ms is None else float(since_ms) / 1000,
        tokens=tokens,
        verdict=record.get("verdict"),
        causes=tuple(f["cause"] for f in record.get("findings") or ()),
        lost_s={f["cause"]: f["lost_ms"] / 1000 for f in named},
        phases={f["cause"]: f["phase"] for f in named},
        remedies=_remedies(record),
        usual_decode_s=_usual_decode_s(record, tokens),
        reads=run.get("reads") or {},
        model=record.get("model"),
        client=record.get("client"),
        ended=str(record.get("ended")),
    )


def _again_s(prefill_s: float, tokens: Mapping[str, int]) -> float:
    """Return what the tokens took that were known: a prefill takes much the same for each token."""
    computed = tokens.get("prompt", 0) - tokens.get("cached", 0)
    again = min(tokens.get("recomputed", 0), computed)
    return prefill_s * again / computed if computed > 0 else 0.0


def _remedies(record: Record) -> dict[str, str]:
    found = {f["cause"]: f["remedy"] for f in record.get("findings") or () if f.get("remedy")}
    changed = (record.get("prompt") or {}).get("remedy")
    if changed and CACHE_CAUSES.isdisjoint(found):
        found[CACHE_CAUSE] = changed
    return found


def _usual_decode_s(record: Record, tokens: Mapping[str, int]) -> tuple[float, float] | None:
    expected = record.get("expected") or {}
    low, high = expected.get("decode_low_tps"), expected.get("decode_high_tps")
    steps = tokens.get("completion", 0) - 1
    if not low or not high or steps < 1:
        return None
    return steps * 2 / (low + high), steps / low
