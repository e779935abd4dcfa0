"""The answers of `slowtok fit` on all rows, also on those that nothing was fitted on."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from slowtok.detectors.expectation.assumed_model import Unsized
from slowtok.detectors.expectation.prospect import ExpectedRate, prospect
from slowtok.detectors.expectation.published import facts_of

Cells = tuple[str, int, int, str, str, str, str, str, str]


def of_outside(raw: Iterable[dict[str, str]]) -> list[Cells]:
    """Return rows of a table: group, rows, with a band, in it, below, above the high edge and more.

    Only healthy rows are expected to lie inside: users' reports, speculation, capped cards and slow
    hosts are not known to be.
    """
    groups: dict[str, list[tuple[float, ExpectedRate]]] = defaultdict(list)
    for record in raw:
        try:
            rate = prospect(facts_of(record)).decode
        except Unsized:
            rate = ExpectedRate()
        groups[_group(record)].append((float(record["decode_tps"]), rate))
    return [_line(name, found) for name, found in sorted(groups.items())]


def _group(record: dict[str, str]) -> str:
    engine = record.get("engine")
    if engine is not None:
        clean = record["fit_use"] == "1"
        return (
            f"{engine}, {'several GPUs' if record['n_gpus'] != '1' else 'one'}"
            if clean
            else ("engines, not clean")
        )
    if record["kind"] != "gpu":
        known = ", bandwidth known" if record["mem_bw_gbs"] else ", bandwidth not known"
        return record["kind"] + (known if record["kind"] == "cpu" else "")
    if record["n_gpus"] != "1":
        return "gpu, several"
    by_source = {"LocalScore": "gpu, llamafile", "llmfit-community": "gpu, sizes assumed"}
    return by_source.get(record["source_id"], "gpu, one")


def _line(group: str, found: list[tuple[float, ExpectedRate]]) -> Cells:
    known = [
        (tps, r.low, r.expected, r.high) for tps, r in found if r.low and r.expected and r.high
    ]
    above = sum(bool(rate.ceiling and tps > rate.ceiling) for tps, rate in found)
    if not known:
        return group, len(found), 0, "", "", "", "", "", str(above)
    below = sum(tps < low for tps, low, _, _ in known) / len(known)
    over = sum(tps > high for tps, _, _, high in known) / len(known)
    error = median(abs(tps / expected - 1) for tps, _, expected, _ in known)
    inside = f"{1 - below - over:.1%}"
    width = median(high / low for _, low, _, high in known)
    return (
        group,
        len(found),
        len(known),
        inside,
        f"{below:.0%}",
        f"{over:.0%}",
        f"{error:.1%}",
        f"{width:.2f}",
        str(above),
    )
