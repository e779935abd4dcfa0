"""Chooses records: of a run, a model, a cause, or only slow ones. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slowtok.proxy.cli.render.console import named
from slowtok.proxy.runs.ledger import MIN_ID_CHARS


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Only these: of one run (its id, the begin of it, or its name), model or cause."""

    run: str | None = None
    model: str | None = None
    cause: str | None = None
    slow: bool = False  # only slow or failed ones

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Say whether a record is meant."""
        if self.slow and record.get("verdict") != "slow" and (record.get("status") or 0) < 400:
            return False
        if self.model is not None and record.get("model") != self.model:
            return False
        if self.cause is not None and all(f["cause"] != self.cause for f in named(record)):
            return False
        return self.run is None or self._is_of_run(record.get("run") or {})

    def told(self) -> dict[str, str | None]:
        """Return what was chosen, for the report."""
        return {"run": self.run, "model": self.model, "cause": self.cause}

    def _is_of_run(self, run: Mapping[str, Any]) -> bool:
        wanted, known = self.run or "", str(run.get("id", ""))
        if wanted in (known, run.get("name")):
            return True
        return len(wanted) >= MIN_ID_CHARS and known.startswith(wanted)
