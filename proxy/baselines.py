"""What each setup gave: the learned side of the expectation, and what drift is held against.

Strategy: healthy rates of requests that had the engine to themselves make the baseline of this
version of the engine. All rates, slow ones too, whatever the version, tell what last week gave:
a machine that was always slow has no baseline, and its past stays visible all the same.

Where machines share what they learn (`past.shared`), healthy rates of others with the same card
stand in until this one has enough of its own. They are held to the same physics.

A rate follows the context by the ratio of what first principles expect now and expected then; one
that another version of slowtok wrote is taken as it is, because that one expected otherwise.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slowtok.detectors.case import Baseline, Case
from slowtok.detectors.envelope import REFINE_AFTER
from slowtok.detectors.finding import Diagnosis
from slowtok.detectors.phases import MIN_DECODE_TOKENS, is_error
from slowtok.proxy.past import summary
from slowtok.proxy.past.kept import Kept
from slowtok.proxy.past.rates import DAY_S, KEEP_S, Rate
from slowtok.proxy.past.setup import Setup, decode_setup, is_alone, prefill_setup
from slowtok.proxy.past.shared.alike import Alike, alike, is_on_gpu
from slowtok.proxy.past.shared.peers import Peers
from slowtok.proxy.version import own_version

KEEP = 32  # the newest healthy rates are the baseline
MIN_DECODE_S = 1.0  # a shorter decode says little about a rate
MIN_PREFILL_TOKENS = 128  # below that it is mostly overhead; no published source
MIN_PREFILL_S = 0.1
LAST_WEEK_S = (DAY_S, 14 * DAY_S)  # how old the rates are that drift is held against
UNKNOWN_VERSION = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What the last month gave, whatever the engine's version; None where too little was seen."""

    best_decode_tps: float | None
    best_prefill_tps: float | None
    week_ago_decode_tps: float | None


class Baselines:
    """Learns rates by setup, and says what a setup gave before."""

    def __init__(
        self, kept: Kept, *, peers: Peers | None = None, made_by: str | None = None
    ) -> None:
        self._kept = kept
        self._peers = peers
        self._made_by = made_by or own_version() or UNKNOWN_VERSION

    @property
    def errors(self) -> int:
        """How often what was learned could not be read or written."""
        return self._kept.errors

    def find(self, case: Case) -> Baseline:
        """Return what this setup gave before, alone, at the case's own context and prompt.

        Requests that share the engine are held against it too: what sharing costs is a finding.
        """
        found, peers = self._own_or_peers(case)
        decode = sorted(self._at(found, _decode_unit(case)))
        own_prefill = self._healthy(case, prefill_setup(case, alone=True))
        prefill = sorted(self._at(own_prefill, _prefill_unit(case)))
        enough = len(prefill) >= REFINE_AFTER
        return Baseline(
            count=len(decode),
            decode_tps=statistics.median(decode) if decode else None,
            decode_p10_tps=_percentile(decode, 0.1) if decode else None,
            prefill_tps=statistics.median(prefill) if enough else None,
            peers=peers,
        )

    def earlier(self, case: Case) -> Earlier:
        """Return what drift is held against, at the case's own context and prompt."""
        now_unix_s = case.timeline.started_unix_s
        decoded, unit = self._kept.rates.of(decode_setup(case)), _decode_unit(case)
        alone = self._kept.rates.of(decode_setup(case, alone=True))
        prefilled = self._kept.rates.of(prefill_setup(case, alone=True))
        youngest_s, oldest_s = LAST_WEEK_S
        last_week = [r for r in decoded if youngest_s < now_unix_s - r.at_unix_s <= oldest_s]
        return Earlier(
            best_decode_tps=self._best(alone, unit, now_unix_s),
            best_prefill_tps=self._best(prefilled, _prefill_unit(case), now_unix_s),
            week_ago_decode_tps=_median_of_enough(self._at(last_week, unit)),
        )

    def learn(self, case: Case, diagnosis: Diagnosis) -> bool:
        """Keep the rates of a finished request; True where its decode was healthy and telling."""
        if is_error(case):
            return False
        if diagnosis.verdict == "normal" and _has_normal_prefill(case):
            self._add(case, prefill_setup(case), case.phases.prefill_tps, _prefill_unit(case))
        if not _has_telling_decode(case):
            return False
        setup = decode_setup(case)
        healthy = diagnosis.verdict == "normal" and is_alone(setup)
        self._add(case, setup, case.phases.decode_tps, _decode_unit(case), healthy=healthy)
        if healthy:
            self._tell_peers(case, setup)
        return healthy

    def summary(self) -> list[dict[str, object]]:
        """Return a row for each setup, the one that learned last first (`past.summary.row`)."""
        return [summary.row(setup, rates) for setup, rates in self._newest_first()]

    def by_day(self) -> list[dict[str, object]]:
        """Return a row for each day of each setup (`past.summary.day_rows`)."""
        found = self._newest_first()
        return [row for setup, rates in found for row in summary.day_rows(setup, rates)]

    def _newest_first(self) -> Iterator[tuple[Setup, Sequence[Rate]]]:
        rates = self._kept.rates
        return ((setup, rates.of(setup)) for setup in reversed(rates.setups()))

    def _add(
        self,
        case: Case,
        setup: Setup,
        tps: float | None,
        expected_tps: float | None,
        *,
        healthy: bool = True,
    ) -> None:
        if tps is None:
            return
        rate = Rate(
            at_unix_s=case.timeline.started_unix_s,
            tps=tps,
            expected_tps=expected_tps,
            healthy=healthy and is_alone(setup),
            engine_version=case.server.version or UNKNOWN_VERSION,
            made_by=self._made_by,
        )
        self._kept.add_rate(setup, rate)

    def _healthy(self, case: Case, setup: Setup) -> list[Rate]:
        version = case.server.version or UNKNOWN_VERSION
        rates = self._kept.rates.of(setup)
        mine = [rate for rate in rates if rate.healthy and rate.engine_version == version]
        return mine[-KEEP:]

    def _own_or_peers(self, case: Case) -> tuple[list[Rate], int]:
        """Return decode's healthy rates, and of how many peers: 0 where they are this machine's."""
        setup = decode_setup(case, alone=True)
        own, place = self._healthy(case, setup), self._place(case, setup)
        if self._peers is None or place is None or len(own) >= REFINE_AFTER:
            return own, 0
        told = self._peers.of(place)
        own = list({rate.at_unix_s: rate for rate in (*told.mine, *own)}.values())
        others = [rate for card in told.others for rate in card]
        is_enough = len(own) >= REFINE_AFTER or len(others) < REFINE_AFTER
        return (own, 0) if is_enough else (others, len(told.others))

    def _tell_peers(self, case: Case, setup: Setup) -> None:
        place = self._place(case, setup)
        if self._peers is not None and place is not None and is_on_gpu(case):
            self._peers.tell(place, self._healthy(case, setup))

    def _place(self, case: Case, setup: Setup) -> Alike | None:
        return None if self._peers is None else alike(case, setup)

    def _best(
        self, rates: Sequence[Rate], unit_tps: float | None, now_unix_s: float
    ) -> float | None:
        month = [r for r in rates if r.healthy and now_unix_s - r.at_unix_s <= KEEP_S]
        ordered = sorted(self._at(month, unit_tps))
        return _percentile(ordered, 0.9) if len(ordered) >= REFINE_AFTER else None

    def _at(self, rates: Iterable[Rate], unit_tps: float | None) -> list[float]:
        """Return the rates as they would be where first principles expect `unit_tps`."""
        return [
            rate.tps * unit_tps / rate.expected_tps
            if unit_tps and rate.expected_tps and rate.made_by == self._made_by
            else rate.tps
            for rate in rates
        ]


def _decode_unit(case: Case) -> float | None:
    return case.envelope.roofline_tps


def _prefill_unit(case: Case) -> float | None:
    return case.envelope.expected_prefill_tps


def _has_telling_decode(case: Case) -> bool:
    completion, decode_s = case.timeline.tokens.completion, case.phases.decode_s
    return (
        case.phases.source != "estimate"
        and case.phases.decode_tps is not None
        and completion is not None
        and completion >= MIN_DECODE_TOKENS
        and decode_s is not None
        and decode_s >= MIN_DECODE_S
    )


def _has_normal_prefill(case: Case) -> bool:
    """Say whether the engine tells a rate that is not below what physics expects."""
    tokens, p, band = case.timeline.tokens, case.phases, case.envelope.prefill
    return (
        p.prefill_tps is not None
        and p.source in ("engine", "metrics")  # the wait for the first token may be more than it
        and (p.prefill_s or 0.0) >= MIN_PREFILL_S
        and tokens.cached is not None  # else what was computed is not known
        and (tokens.processed or 0) >= MIN_PREFILL_TOKENS
        and (band is None or p.prefill_tps >= band.low)
    )


def _percentile(ordered: Sequence[float], ratio: float) -> float:
    return ordered[int(ratio * (len(ordered) - 1))]


def _median_of_enough(values: Sequence[float]) -> float | None:
    return statistics.median(values) if len(values) >= REFINE_AFTER else None
