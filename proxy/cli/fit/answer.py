"""A prospect as JSON: rates in tokens per second, memory in GiB. What is not known is null."""

from dataclasses import asdict
from typing import Any

from slowtok.detectors.expectation.envelope import Claim
from slowtok.detectors.expectation.footprint import GIB
from slowtok.detectors.expectation.prospect import ExpectedRate, Prospect

DIGITS = 4


def as_json(found: Prospect) -> dict[str, Any]:
    """Return the object that `--batch` writes; `--json` adds to it."""
    return {
        "decode_tps": rate(found.decode),
        "prefill_tps": rate(found.prefill),
        "vram_gib": _memory(found),
        "fits": found.fits,
        "basis": list(found.basis),
    }


def unanswered(reason: str) -> dict[str, Any]:
    """Return the same for a setup of which too little is known."""
    nothing = rate(ExpectedRate())
    return {
        "decode_tps": nothing, "prefill_tps": nothing, "vram_gib": None, "fits": None,
        "basis": [reason],
    }  # fmt: skip


def claim_as_json(claim: Claim) -> dict[str, Any]:
    """Return whether a claimed rate is possible, and why."""
    ratio = claim.ceiling_ratio
    return {
        "tps": claim.tps,
        "possibility": claim.possibility,
        "ceiling_ratio": None if ratio is None else round(ratio, 3),
        "because": claim.because,
    }


def rate(found: ExpectedRate) -> dict[str, float | None]:
    """Return a rate with a few digits: more would claim what nobody knows."""
    return {name: _rounded(value) for name, value in asdict(found).items()}


def _memory(found: Prospect) -> dict[str, float | None] | None:
    """Return the parts. Buffers are a range, and so is what is needed altogether."""
    needed = found.footprint
    if needed is None:
        return None
    return {
        "weights": gib(needed.weights_bytes),
        "embeddings_in_ram": gib(needed.embedding_bytes),
        "kv_cache": gib(needed.kv_bytes),
        "buffers_low": gib(needed.least_overhead_bytes),
        "buffers_high": gib(needed.most_overhead_bytes),
        "needed_low": gib(needed.least_bytes),
        "needed_high": gib(needed.most_bytes),
        "available": gib(found.room_bytes),
    }


def gib(count: float | None) -> float | None:
    """Return bytes in GiB, with the digits that count."""
    return None if count is None else round(count / GIB, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
