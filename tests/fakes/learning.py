"""Requests as time goes on, and what is learned from them."""

from dataclasses import replace
from pathlib import Path

from fakes.cases import healthy, with_phases, with_timeline
from slowtok.detectors.case.case import Case
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.history.baselines import Baselines
from slowtok.proxy.history.learned_store import LearnedStore
from slowtok.proxy.history.rates import LearnedRate

DAY_S = 86_400.0
NOW_UNIX_S = 20_000 * DAY_S + 43_200.0  # noon


def kept_at(path: Path, *, now_unix_s: float = NOW_UNIX_S) -> LearnedStore:
    """What is kept at that path, on a clock that stands."""
    return LearnedStore(path, now_unix_s=lambda: now_unix_s)


def at(tps: float, *, days_ago: float = 0.0, before: Case | None = None) -> Case:
    """A request with this decode rate; healthy between 76 and 210 tokens/s."""
    case = with_phases(before or healthy(), decode_tps=tps)
    return with_timeline(case, started_unix_s=NOW_UNIX_S - days_ago * DAY_S)


def rate(tps: float = 150.0, *, days_ago: float = 0.0, version: str = "b1") -> LearnedRate:
    """A healthy rate."""
    return LearnedRate(
        at_unix_s=NOW_UNIX_S - days_ago * DAY_S,
        tps=tps,
        expected_tps=151.0,
        healthy=True,
        engine_version=version,
        made_by="1",
    )


def version(case: Case, version: str) -> Case:
    """The case at an engine of another version."""
    return replace(case, server=replace(case.server, version=version))


def learn(baselines: Baselines, *cases: Case) -> list[bool]:
    """Learn from each case as it is judged."""
    return [baselines.learn(case, diagnose(case)) for case in cases]
