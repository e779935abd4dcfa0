"""The measurements: read, freed of what is not a healthy single stream, and collapsed."""

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from slowtok.config.hardware import GpuSpec, find_card, find_gpu
from slowtok.detectors.expectation.memory import FITTED_ENGINES, GPU_HIGH_RATIO, is_old_build
from slowtok.detectors.expectation.published import Published, facts_of
from slowtok.detectors.expectation.reads import NoBasis, Reads, reads_of, unpredictable

DATA = Path(__file__).with_name("data") / "decode_rates.csv"

MAX_DEPTH_TOKENS = 140_000
LEAST_POWER_RATIO = 0.9  # of the default limit: below it a card is held back, and known to be
SINGLE_BOARDS = ("HiFive", "MS-R1", "Radxa")  # hosts whose CPU cannot keep the GPU busy
UNSURE_SOURCES = ("llmfit-community",)  # sizes assumed, and rates that include the prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement with what the model needs: `reads` in bytes, `bandwidth` in bytes/s."""

    source: str
    gpu: str
    spec: GpuSpec
    model: str
    quant: str
    engine: str
    old: bool
    reads: Reads
    bandwidth: float
    tps: float
    prefill_tps: float | None
    facts: Published

    @property
    def ceiling_tps(self) -> float:
        """Return the rate that bandwidth alone allows."""
        return self.bandwidth / self.reads.total


def read(path: Path = DATA) -> list[dict[str, str]]:
    """Return the rows of the file as they are."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def healthy(raw: Iterable[dict[str, str]]) -> tuple[list[Row], Counter[str]]:
    """Return the rows that the constants are fitted on, and how many were left out for what."""
    rows: list[Row] = []
    out: Counter[str] = Counter()
    for record in raw:
        reason = _unfit(record)
        row = None if reason else _row(record)
        if row is None:
            out[reason or "model, bandwidth or kind of GPU not known, or weights not read"] += 1
        elif row.engine == "llamafile":
            out["llamafile: fitted by itself"] += 1
        elif row.engine not in FITTED_ENGINES:
            out["engine with too few rows"] += 1
        elif row.tps > GPU_HIGH_RATIO * row.ceiling_tps:
            out["above what the memory can deliver: a misprint"] += 1
        else:
            rows.append(row)
    return rows, out


def llamafile(raw: Iterable[dict[str, str]]) -> list[Row]:
    """Return the rows of the one engine that has constants of its own."""
    found = (_row(r) for r in raw if not _unfit(r))
    return [row for row in found if row is not None and row.engine == "llamafile"]


def collapse(rows: Sequence[Row]) -> list[Row]:
    """Return one row, with the median rate, for each setup and half octave of context."""
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        octave = math.floor(2 * math.log2(max(row.reads.context_tokens, 64)))
        groups[row.source, row.gpu, row.model, row.quant, octave, row.engine, row.old].append(row)
    return [_middle(group) for group in groups.values()]


def weights(rows: Sequence[Row]) -> list[float]:
    """Return 1/sqrt(n) for each row, n the rows of its source and GPU: no source may dominate."""
    counts = Counter((row.source, row.gpu) for row in rows)
    return [counts[row.source, row.gpu] ** -0.5 for row in rows]


def _middle(group: list[Row]) -> Row:
    middle = median(row.tps for row in group)
    return min(group, key=lambda row: (abs(math.log(row.tps / middle)), row.tps))


def _unfit(record: dict[str, str]) -> str | None:
    """Return why a row is not a healthy single stream on one GPU; None where it may be."""
    size, memory = record["weights_gib"], record["vram_gb"]
    reasons = {
        f"kind {record['kind']}": record["kind"] != "gpu",
        "several GPUs": float(record["n_gpus"] or 1) != 1,
        "sizes assumed by the source": record["source_id"] in UNSURE_SOURCES,
        "host is a single-board computer": any(b in record["notes"] for b in SINGLE_BOARDS),
        "power limit below the default": _is_capped(record),
        "deeper than 140,000 tokens": float(record["context_depth"] or 0) > MAX_DEPTH_TOKENS,
        "does not fit the card": bool(size and memory) and float(size) >= float(memory),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _is_capped(record: dict[str, str]) -> bool:
    card, limit = find_card(record["gpu"]), record["power_limit_w"]
    if not limit or card is None or card.default_power_limit_w is None:
        return False
    return float(limit) < LEAST_POWER_RATIO * card.default_power_limit_w


def _row(record: dict[str, str]) -> Row | None:
    try:
        facts = facts_of(record)
        reads = reads_of(facts.model, facts.server, facts.context_tokens)
    except (ValueError, NoBasis):
        return None
    spec = find_gpu(record["gpu"])
    bandwidth = facts.device.gpus[0].bandwidth_bytes_per_s if facts.device.gpus else None
    if spec is None or not bandwidth or facts.assumed or unpredictable(facts.model):
        return None
    prefill = record["prefill_tps"]
    return Row(
        source=record["source_id"],
        gpu=record["gpu"],
        spec=spec,
        model=record["model_key"] or record["model"],
        quant=record["quant"],
        engine=facts.server.kind,
        old=is_old_build(facts.server.version),
        reads=reads,
        bandwidth=bandwidth,
        tps=float(record["decode_tps"]),
        prefill_tps=float(prefill) if prefill else None,
        facts=facts,
    )
