"""Prefill: one share of peak arithmetic for each kind of GPU, and a band around it.

The rates of one GPU with one model count once (their median). The share is the median over dense
models at short context, of builds since 2025 where there are any; the mixture's share is by maker.
The band holds the middle 95 % of all rows, deep ones and mixtures too, by group.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from fit.bands import group_of
from fit.rows import Row
from slowtok.config.efficiency import PrefillConstants
from slowtok.detectors.expectation.envelope import active_parameters, attention_parameters

SHORT_DEPTH_TOKENS = 3000
# Kinds without rows here, from an earlier analysis of 434 published rows.
PUBLISHED = {"nvidia-gb10": 0.28, "amd-instinct": 0.30}
PUBLISHED_MOE_RATIO = 0.25  # from the same: 0.10 against 0.45, and 0.14 against 0.28


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Measured share of peak arithmetic of one GPU with one model at one depth."""

    row: Row
    ratio: float

    @property
    def is_short(self) -> bool:
        """Return True if attention is a small part of the work."""
        return self.row.reads.context_tokens <= SHORT_DEPTH_TOKENS


def fit_prefill(rows: Sequence[Row]) -> dict[str, PrefillConstants]:
    """Return the constants of each kind of GPU that has rows, or a published share."""
    shares = _shares(rows)
    kinds = {share.row.spec.kind: share.row.spec for share in shares}
    efficiency = {kind: _dense(shares, kind) for kind in sorted(kinds)}
    known = {kind: value for kind, value in efficiency.items() if value is not None}
    moe = {maker: _moe(shares, maker, known) for maker in ("nvidia", "amd", "apple")}
    spread = _spread(shares, known, moe)
    found = {
        kind: _constants(
            value, moe[kinds[kind].maker], spread[group_of(kind, unified=kinds[kind].unified)]
        )
        for kind, value in known.items()
    }
    found["nvidia-gb10"] = _constants(
        PUBLISHED["nvidia-gb10"], moe["nvidia"], spread["unified memory"]
    )
    found["amd-instinct"] = _constants(PUBLISHED["amd-instinct"], moe["amd"], spread["others"])
    return found


def _constants(efficiency: float, moe: float, band: tuple[float, float]) -> PrefillConstants:
    return PrefillConstants(
        efficiency_ratio=efficiency, moe_ratio=moe, low_ratio=band[0], high_ratio=band[1]
    )


def _shares(rows: Iterable[Row]) -> list[Share]:
    groups: dict[tuple[object, ...], list[Share]] = defaultdict(list)
    for row in rows:
        card, parameters = row.spec.card, active_parameters(row.facts.model)
        if not row.prefill_tps or parameters is None or card is None or not card.flops:
            continue
        depth = row.reads.context_tokens
        work = 2 * (parameters + attention_parameters(parameters, row.reads.layers, depth))
        share = Share(row=row, ratio=row.prefill_tps * work / card.flops)
        groups[row.gpu, row.model, row.quant, share.is_short, row.old].append(share)
    return [sorted(g, key=lambda s: s.ratio)[len(g) // 2] for g in groups.values()]


def _dense(shares: Sequence[Share], kind: str) -> float | None:
    own = [s for s in shares if s.row.spec.kind == kind and s.is_short and not s.row.reads.is_moe]
    recent = [s for s in own if not s.row.old]
    return median(s.ratio for s in (recent or own)) if own else None


def _moe(shares: Sequence[Share], maker: str, efficiency: dict[str, float]) -> float:
    ratios = [
        s.ratio / efficiency[s.row.spec.kind]
        for s in shares
        if s.row.reads.is_moe and s.is_short and s.row.spec.maker == maker
        if s.row.spec.kind in efficiency
    ]
    return median(ratios) if ratios else PUBLISHED_MOE_RATIO


def _spread(
    shares: Sequence[Share], efficiency: dict[str, float], moe: dict[str, float]
) -> dict[str, tuple[float, float]]:
    ratios: dict[str, list[float]] = defaultdict(list)
    for s in shares:
        spec = s.row.spec
        if spec.kind in efficiency:
            expected = efficiency[spec.kind] * (moe[spec.maker] if s.row.reads.is_moe else 1.0)
            ratios[group_of(spec.kind, unified=spec.unified)].append(s.ratio / expected)
    return {
        group: (float(np.quantile(values, 0.025)), float(np.quantile(values, 0.975)))
        for group, values in ratios.items()
    }
