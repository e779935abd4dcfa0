"""From labelled runs to figures. Pure.

An answer is right when a true cause is named first. On a run that lost nothing, naming any cause
that costs time is a false alarm. On one that nobody could explain, and on one that lost neither
nothing nor much, a name that is not true is wrong if it is said with confidence of at least
`NAMED`. A run that lost much and was called neither slow nor anything else is missed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from simulator.simulate import Truth
from slowtok.detectors.case.finding import Diagnosis

NAMED = 0.5
CONFIDENT = 0.8
BINS = ((0.0, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.01))
SIZES = ((0.15, 0.5), (0.5, 1.0), (1.0, 3.0), (3.0, float("inf")))
"""Losses as a share of what the phase should have taken."""

NORMAL, UNKNOWN, UNEXPLAINED = "(normal)", "(unknown)", "(unexplained)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was said of one labelled run; `causes` are those named as costing time, in order.

    `blind` names what could not be seen on its machine.
    """

    name: str
    number: int
    group: str
    truth: Truth
    verdict: str
    causes: tuple[tuple[str, float], ...]
    engine: str = "unknown"
    blind: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    summary: str = ""

    @property
    def said(self) -> str:
        """The first cause, or what was said instead."""
        if self.causes:
            return self.causes[0][0]
        return {"slow": UNEXPLAINED, "normal": NORMAL}.get(self.verdict, UNKNOWN)

    @property
    def is_countable(self) -> bool:
        """A run whose cause should be named: slow beyond doubt, for a known reason."""
        return bool(self.truth.slow and self.truth.primary)

    @property
    def is_dark(self) -> bool:
        """A run that was slow for a reason that nobody could see."""
        return bool(self.truth.slow and not self.truth.primary)

    def is_right(self, first: int = 1) -> bool:
        """Say whether a true cause is among the `first` ones."""
        return any(cause in self.truth.primary for cause, _ in self.causes[:first])

    @property
    def is_missed(self) -> bool:
        """A run that was slow, of which neither that nor any cause was said."""
        return bool(self.truth.slow) and self.said in (NORMAL, UNKNOWN)

    @property
    def is_unexplained(self) -> bool:
        """A run with a known cause that was called slow, and no more."""
        return self.is_countable and self.said == UNEXPLAINED

    @property
    def is_false_alarm(self) -> bool:
        """A run that lost nothing, said to be slow for some reason."""
        return self.truth.slow is False and any(c not in self.truth.allowed for c, _ in self.causes)

    @property
    def is_called_slow(self) -> bool:
        """A run that lost nothing, said to be slow for whatever reason or none."""
        return self.truth.slow is False and self.verdict == "slow"

    @property
    def is_confidently_wrong(self) -> bool:
        """A cause that is not true, in the first place, with high confidence."""
        if not self.causes or self.causes[0][1] < CONFIDENT:
            return False
        return self.causes[0][0] not in self.truth.primary | self.truth.allowed

    @property
    def is_wrongly_named(self) -> bool:
        """A run that nobody could explain, or that lost little, with a cause that is not true."""
        if self.truth.slow is False or self.is_countable:
            return False
        true = self.truth.primary | self.truth.allowed
        return any(cause not in true and p >= NAMED for cause, p in self.causes)

    @property
    def is_miss(self) -> bool:
        """Wrong in any way that is counted."""
        wrong = self.is_false_alarm or self.is_wrongly_named or self.is_called_slow
        return wrong or self.is_confidently_wrong or (self.is_countable and not self.is_right())


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Findings said with a confidence from `low` to `high`, and how many of them were true."""

    low: float
    high: float
    said: int
    true: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Slow runs of one kind, with a known cause: how many were right, nameless, missed, wrong."""

    name: str
    runs: int
    first: int
    two: int
    unexplained: int
    missed: int
    confidently_wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one set of runs; ratios are None where there is nothing to divide by."""

    runs: int
    slow: int
    top1: float | None
    top2: float | None
    missed: int
    nameless: int
    healthy: int
    false_alarms: int
    called_slow: int
    confidently_wrong: int
    unexplained: int
    unexplained_named: int
    unexplained_missed: int
    undecided: int
    undecided_named: int
    failed: int
    bins: tuple[Bin, ...]
    by_scenario: tuple[Row, ...]
    by_engine: tuple[Row, ...]
    by_size: tuple[Row, ...]
    by_sight: tuple[Row, ...]
    confusion: tuple[tuple[str, str, int], ...]


def answer(
    name: str,
    number: int,
    group: str,
    truth: Truth,
    diagnosis: Diagnosis,
    *,
    engine: str = "unknown",
    blind: tuple[str, ...] = (),
) -> Answer:
    """Return what a diagnosis says, held beside its label."""
    named = {c: f for c, f in diagnosis.findings.items() if not f.informational}
    return Answer(
        name=name,
        number=number,
        group=group,
        truth=truth,
        verdict=diagnosis.verdict,
        causes=tuple((cause, finding.confidence) for cause, finding in named.items()),
        engine=engine,
        blind=blind,
        failed=tuple(diagnosis.failed),
        summary=next((f.summary for f in named.values()), diagnosis.reason),
    )


def figures(answers: Sequence[Answer]) -> Figures:
    """Count everything."""
    countable = [a for a in answers if a.is_countable]
    healthy = [a for a in answers if a.truth.slow is False]
    dark = [a for a in answers if a.is_dark]
    between = [a for a in answers if a.truth.slow is None]
    return Figures(
        runs=len(answers),
        slow=len(countable),
        top1=_share(a.is_right(1) for a in countable),
        top2=_share(a.is_right(2) for a in countable),
        missed=sum(a.is_missed for a in countable),
        nameless=sum(a.is_unexplained for a in countable),
        healthy=len(healthy),
        false_alarms=sum(a.is_false_alarm for a in healthy),
        called_slow=sum(a.is_called_slow for a in healthy),
        confidently_wrong=sum(a.is_confidently_wrong for a in answers),
        unexplained=len(dark),
        unexplained_named=sum(a.is_wrongly_named for a in dark),
        unexplained_missed=sum(a.is_missed for a in dark),
        undecided=len(between),
        undecided_named=sum(a.is_wrongly_named for a in between),
        failed=sum(bool(a.failed) for a in answers),
        bins=tuple(_bin(answers, low, high) for low, high in BINS),
        by_scenario=_rows(countable, lambda a: [a.name]),
        by_engine=_rows(countable, lambda a: [a.engine]),
        by_size=_rows(countable, _size),
        by_sight=_rows(countable, lambda a: a.blind or ["(everything)"]),
        confusion=_confusion(answers),
    )


def _bin(answers: Iterable[Answer], low: float, high: float) -> Bin:
    """Count findings in all places: those beside the first are said with a confidence, too."""
    verdicts = [
        cause in a.truth.primary | (a.truth.allowed if a.truth.slow is not False else frozenset())
        for a in answers
        for cause, confidence in a.causes
        if low <= confidence < high
    ]
    return Bin(low=low, high=high, said=len(verdicts), true=sum(verdicts))


def _rows(countable: Iterable[Answer], kinds: Callable[[Answer], Sequence[str]]) -> tuple[Row, ...]:
    """Return the counts by kind; a run may be of several."""
    groups: dict[str, list[Answer]] = {}
    for one in countable:
        for kind in kinds(one):
            groups.setdefault(kind, []).append(one)
    return tuple(
        Row(
            name=name,
            runs=len(group),
            first=sum(a.is_right(1) for a in group),
            two=sum(a.is_right(2) for a in group),
            unexplained=sum(a.is_unexplained for a in group),
            missed=sum(a.is_missed for a in group),
            confidently_wrong=sum(a.is_confidently_wrong for a in group),
        )
        for name, group in sorted(groups.items())
    )


def _size(one: Answer) -> list[str]:
    for low, high in SIZES:
        if low <= one.truth.cost < high:
            above = f"{1 + low:.2f} times and more"
            return [above if high == SIZES[-1][1] else f"{1 + low:.2f} to {1 + high:.2f} times"]
    return []


def _confusion(answers: Iterable[Answer]) -> tuple[tuple[str, str, int], ...]:
    """Return (truth, said, count), the truth as its scenario's group or name."""
    pairs = Counter((_true_name(a), a.said) for a in answers if a.truth.slow is not None)
    return tuple((true, said, count) for (true, said), count in sorted(pairs.items()))


def _true_name(one: Answer) -> str:
    if one.truth.slow is False:
        return NORMAL
    if not one.truth.primary:
        return UNEXPLAINED
    return one.said if one.is_right() else one.name


def _share(flags: Iterable[bool]) -> float | None:
    counted = list(flags)
    return sum(counted) / len(counted) if counted else None
