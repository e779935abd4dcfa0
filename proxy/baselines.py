"""What each setup gave when it was healthy: the learned side of the expectation.

Kept small on purpose: the last `KEEP` healthy rates of each setup, in one JSON file in the state
directory, replaced as a whole so that a crash leaves the old one.
"""

import statistics
import threading
from collections import OrderedDict
from pathlib import Path

import orjson

from slowtok.detectors.case import Baseline, Case
from slowtok.detectors.finding import Diagnosis
from slowtok.detectors.phases import MIN_DECODE_TOKENS
from slowtok.proxy.state_file import replace_file

KEEP = 32
MAX_SETUPS = 1000
MIN_DECODE_S = 1.0  # a shorter decode says little about a rate
MAX_NEIGHBOURS = 0.1  # learned from requests that had the engine to themselves


class Baselines:
    """Learned decode rates by setup. A file that cannot be read or written is counted.

    Rates are kept as shares of the roofline where there is one, because that follows the context:
    what 60 tokens of context taught must not be held against 600.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()
        self.errors = 0
        self._shares: OrderedDict[str, list[float]] = OrderedDict(self._read())

    def find(self, case: Case) -> Baseline:
        """Return what the case's setup gave before, at the case's own context."""
        ordered = sorted(self._shares.get(setup_of(case), []))
        if not ordered:
            return Baseline()
        unit_tps = _unit_tps(case)
        return Baseline(
            count=len(ordered),
            decode_tps=statistics.median(ordered) * unit_tps,
            decode_p10_tps=ordered[int(0.1 * (len(ordered) - 1))] * unit_tps,
        )

    def learn(self, case: Case, diagnosis: Diagnosis) -> bool:
        """Take a healthy request in; True when there is something to save."""
        rate = case.phases.decode_tps
        if diagnosis.verdict != "normal" or rate is None or not _is_telling(case):
            return False
        setup = setup_of(case)
        self._shares[setup] = [*self._shares.get(setup, []), rate / _unit_tps(case)][-KEEP:]
        self._shares.move_to_end(setup)
        while len(self._shares) > MAX_SETUPS:
            self._shares.popitem(last=False)
        return True

    def save(self) -> None:
        """Write the file; called from threads, the last one of which writes what is newest."""
        with self._writing:
            try:
                replace_file(self._path, orjson.dumps(self._shares))
            except OSError:
                self.errors += 1

    def summary(self) -> list[dict[str, object]]:
        """Return each setup with its count and median, for the status.

        `median` is in the unit that the setup's name ends with.
        """
        return [
            {"setup": setup, "count": len(shares), "median": round(statistics.median(shares), 3)}
            for setup, shares in self._shares.items()
        ]

    def _read(self) -> dict[str, list[float]]:
        try:
            read = orjson.loads(self._path.read_bytes())
            return {setup: [float(r) for r in rates] for setup, rates in read.items() if rates}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError):
            self.errors += 1
            return {}


def setup_of(case: Case) -> str:
    """Name the setup: device, model, engine build, KV type, context bucket, speculation."""
    gpus = case.device.gpus or ()
    device = ",".join(gpu.uuid or str(gpu.index) for gpu in gpus) or "cpu"
    server, model = case.server, case.model
    parts = (
        device,
        model.digest or model.name or case.timeline.model or "?",
        f"{server.kind} {server.version or '?'}",
        f"kv {server.kv_type_k or 'f16'}",
        f"ctx {_bucket(case.envelope.context_tokens)}",
        "speculative" if server.speculative else "plain",
        "tokens/s" if case.envelope.roofline_tps is None else "of the roofline",
    )
    return " | ".join(parts)


def _unit_tps(case: Case) -> float:
    """Return what a rate is kept as a share of; 1 where no roofline is known."""
    return case.envelope.roofline_tps or 1.0


def _bucket(context_tokens: int | None) -> str:
    """Name the power of two that holds a context: "0-1k", "1k-2k", "2k-4k", ..."""
    if context_tokens is None:
        return "?"
    power = (context_tokens // 1024).bit_length()
    return "0-1k" if power == 0 else f"{1 << (power - 1)}k-{1 << power}k"


def _is_telling(case: Case) -> bool:
    completion, decode_s = case.timeline.tokens.completion, case.phases.decode_s
    return (
        completion is not None
        and completion >= MIN_DECODE_TOKENS
        and decode_s is not None
        and decode_s >= MIN_DECODE_S
        and case.neighbours.decode_mean <= MAX_NEIGHBOURS
    )
