"""How the product's own `expect` fares on the rows that nothing was fitted on."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from slowtok.detectors.assumed_model import widen
from slowtok.detectors.envelope import expect
from slowtok.detectors.published import facts_of


def of_outside(raw: Iterable[dict[str, str]]) -> list[tuple[str, int, str, str, str, str]]:
    """Return rows of a table: kind, rows, share with a band, median, below it, above its high edge.

    Only a CPU's rate is expected to lie inside: the other kinds are not healthy single streams of
    one GPU, or are not known to be.
    """
    groups: dict[str, list[tuple[float, float, float] | None]] = defaultdict(list)
    for record in raw:
        if record["kind"] != "gpu":
            groups[record["kind"]].append(_judged(record))
        elif record["source_id"] == "llmfit-community":
            groups["gpu, sizes assumed by the source"].append(_judged(record))
    return [_line(kind, found) for kind, found in sorted(groups.items())]


def _judged(record: dict[str, str]) -> tuple[float, float, float] | None:
    """Return measured / expected, / low and / high; None where there is no band."""
    try:
        facts = facts_of(record)
    except ValueError:
        return None
    told = expect(facts.model, facts.device, facts.server, facts.context_tokens)
    envelope = widen(told, facts.assumed)
    band, expected = envelope.decode, envelope.expected_tps
    if band is None or expected is None:
        return None
    tps = float(record["decode_tps"])
    return tps / expected, tps / band.low, tps / band.high


def _line(
    kind: str, found: list[tuple[float, float, float] | None]
) -> tuple[str, int, str, str, str, str]:
    known = [ratios for ratios in found if ratios is not None]
    if not known:
        return kind, len(found), "0", "", "", ""
    below = sum(low < 1 for _, low, _ in known) / len(known)
    above = sum(high > 1 for _, _, high in known) / len(known)
    middle = median(ratio for ratio, _, _ in known)
    return kind, len(found), str(len(known)), f"{middle:.2f}", f"{below:.0%}", f"{above:.0%}"
