"""Learned rates of each setup: they narrow the expectation, and drift is held against them.

Strategy: healthy rates of requests that had the engine to themselves make the baseline of this
version of the engine: of those that were judged normal, and of those that nothing could be expected
of, as long as they lost nothing that was measured. A request that was shared, or throttled by any
counter of the driver, teaches no health. All rates, slow ones too, whatever the version, tell what
last week gave: a machine that was always slow has no baseline, and its past stays visible all the
same. What the running engine gave a moment ago, whatever the verdict, is the second reference.

Where machines share what they learn (`peers`), healthy rates of others with the same card
stand in until this one has enough of its own. They are held to the same physics.

A rate follows the context by the ratio of what first principles expect now and expected then; one
that another version of slowtok wrote is taken as it is, because that one expected otherwise.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from slowtok.detectors.analysis.measured_loss import was_throttled
from slowtok.detectors.analysis.phase_loss import MIN_DECODE_TOKENS, is_error
from slowtok.detectors.case.case import Baseline, Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.detectors.case.memo import cached_for_last_case
from slowtok.detectors.expectation.envelope import REFINE_AFTER
from slowtok.proxy.history.keys import (
    ALONE,
    BaselineKey,
    EngineKey,
    decode_setup,
    is_alone,
    octave_of,
    others_at_decode,
    place_of,
    prefill_setup,
    sequences_of,
    setup_at,
)
from slowtok.proxy.history.learned_store import LearnedStore
from slowtok.proxy.history.peers.peer_key import alike, is_on_gpu
from slowtok.proxy.history.peers.peers import Peers
from slowtok.proxy.history.rates import DAY_S, KEEP_S, LearnedRate, day_rows, setup_row
from slowtok.proxy.history.recent import NOT_KNOWN, Recent
from slowtok.proxy.runtime.version import own_version

KEEP = 32  # the newest healthy rates are the baseline
MIN_LEARNED_DECODE_S = 1.0  # a shorter decode says little about a rate
MIN_LEARNED_PREFILL_TOKENS = 128  # below that it is mostly overhead; heuristic
MIN_LEARNED_PREFILL_S = 0.1
LAST_WEEK_S = (DAY_S, 14 * DAY_S)  # how old the rates are that drift is held against
AGES_STEP_S = 60.0  # they are counted to the full minute before a request
UNKNOWN_VERSION = "?"
MAX_KEPT = 256  # answers at hand, for requests of the same setups


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What the last month gave, whatever the engine's version; None where too little was seen."""

    best_decode_tps: float | None = None
    best_prefill_tps: float | None = None
    week_ago_decode_tps: float | None = None
    other_version: str | None = None
    other_version_decode_tps: float | None = None
    other_version_count: int = 0


NO_BASELINE = Baseline()
NO_EARLIER = Earlier()


class _Asked(NamedTuple):
    """What a request is held against: its setups, what is expected there, and by which engine."""

    place: EngineKey
    context: str
    computed: str
    sequences: str
    decode_unit_tps: float | None
    prefill_unit_tps: float | None
    engine_version: str

    @property
    def decode(self) -> BaselineKey:
        return setup_at("decode", self.place, self.context, self.sequences)

    @property
    def decode_alone(self) -> BaselineKey:
        return setup_at("decode", self.place, self.context, ALONE)

    @property
    def prefill_alone(self) -> BaselineKey:
        return setup_at("prefill", self.place, self.computed, ALONE)


class Baselines:
    """Learns rates by setup, and says what a setup gave before."""

    def __init__(
        self, kept: LearnedStore, *, peers: Peers | None = None, made_by: str | None = None
    ) -> None:
        self._kept = kept
        self._recent = Recent()
        self._peers = peers
        self._made_by = made_by or own_version() or UNKNOWN_VERSION
        # Worked out anew only when rates were added: how often is a part of what is asked.
        self._own = lru_cache(maxsize=MAX_KEPT)(self._own_now)
        self._earlier = lru_cache(maxsize=MAX_KEPT)(self._earlier_at)

    @property
    def errors(self) -> int:
        """How often what was learned could not be read or written."""
        return self._kept.errors

    def find(self, case: Case) -> Baseline:
        """Return what this setup gave before, alone, at the case's own context and prompt.

        Requests that share the engine are held against it too: what sharing costs is a finding.
        For a case that has its history: its loads tell which one of the engine it ran on.
        """
        changes = self._kept.rates.changes
        if not changes and self._peers is None:  # nothing was learned yet
            return NO_BASELINE
        asked = _asked(case)
        own = self._own(asked, changes)
        if self._peers is not None and own.count < REFINE_AFTER:
            own = self._with_peers(own, asked, case, self._peers)
        usual = self._recent.of(case, asked.decode_alone)
        if usual is NOT_KNOWN:
            return own
        return replace(own, usual_decode_tps=usual.tps, healthy_here=usual.healthy)

    def earlier(self, case: Case) -> Earlier:
        """Return what drift is held against, at the case's own context and prompt."""
        changes = self._kept.rates.changes
        if not changes:
            return NO_EARLIER
        now_unix_s = case.timeline.started_unix_s // AGES_STEP_S * AGES_STEP_S
        return self._earlier(_asked(case), changes, now_unix_s)

    def learn(self, case: Case, diagnosis: Diagnosis) -> bool:
        """Keep the rates of a finished request; True where its decode was healthy and telling."""
        if is_error(case):
            return False
        if diagnosis.verdict == "normal" and _has_normal_prefill(case):
            expected_tps = case.envelope.expected_prefill_tps
            self._add(case, prefill_setup(case), case.phases.prefill_tps, expected_tps)
        if not _has_telling_decode(case):
            return False
        setup = decode_setup(case)
        healthy = _is_healthy(case, diagnosis) and is_alone(setup)
        expected_tps = case.envelope.roofline_tps
        self._add(case, setup, case.phases.decode_tps, expected_tps, healthy=healthy)
        self._recent.add(case, setup, healthy=healthy)
        if healthy:
            self._tell_peers(case, setup)
        return healthy

    def summary(self) -> list[dict[str, object]]:
        """Return a row for each setup, the one that learned last first (`rates.setup_row`)."""
        return [setup_row(setup, rates) for setup, rates in self._newest_first()]

    def by_day(self) -> list[dict[str, object]]:
        """Return a row for each day of each setup (`rates.day_rows`)."""
        found = self._newest_first()
        return [row for setup, rates in found for row in day_rows(setup, rates)]

    def _newest_first(self) -> Iterator[tuple[BaselineKey, Sequence[LearnedRate]]]:
        rates = self._kept.rates
        return ((setup, rates.of(setup)) for setup in reversed(rates.setups()))

    def _add(
        self,
        case: Case,
        setup: BaselineKey,
        tps: float | None,
        expected_tps: float | None,
        *,
        healthy: bool = True,
    ) -> None:
        if tps is None:
            return
        rate = LearnedRate(
            at_unix_s=case.timeline.started_unix_s,
            tps=tps,
            expected_tps=expected_tps,
            healthy=healthy and is_alone(setup),
            engine_version=_version(case),
            made_by=self._made_by,
        )
        self._kept.add_rate(setup, rate)

    def _healthy(self, setup: BaselineKey, version: str) -> list[LearnedRate]:
        rates = self._kept.rates.of(setup)
        mine = [rate for rate in rates if rate.healthy and rate.engine_version == version]
        return mine[-KEEP:]

    def _own_now(self, asked: _Asked, _changes: int) -> Baseline:
        """Return the baseline of this machine's own rates."""
        decode = self._healthy(asked.decode_alone, asked.engine_version)
        prefill = self._healthy(asked.prefill_alone, asked.engine_version)
        return _baseline(
            self._at(decode, asked.decode_unit_tps),
            prefill_tps=_median_of_enough(self._at(prefill, asked.prefill_unit_tps)),
        )

    def _with_peers(self, own: Baseline, asked: _Asked, case: Case, peers: Peers) -> Baseline:
        """Return a baseline with peers' decode where this machine's own rates are too few."""
        place = alike(case, asked.decode_alone)
        if place is None:
            return own
        told = peers.of(place)
        here = self._healthy(asked.decode_alone, asked.engine_version)
        mine = list({rate.at_unix_s: rate for rate in (*told.mine, *here)}.values())
        others = [rate for card in told.others for rate in card]
        is_enough = len(mine) >= REFINE_AFTER or len(others) < REFINE_AFTER
        return _baseline(
            self._at(mine if is_enough else others, asked.decode_unit_tps),
            prefill_tps=own.prefill_tps,
            peers=0 if is_enough else len(told.others),
        )

    def _earlier_at(self, asked: _Asked, _changes: int, now_unix_s: float) -> Earlier:
        decoded, unit_tps = self._kept.rates.of(asked.decode), asked.decode_unit_tps
        alone = self._kept.rates.of(asked.decode_alone)
        prefilled = self._kept.rates.of(asked.prefill_alone)
        youngest_s, oldest_s = LAST_WEEK_S
        last_week = [r for r in decoded if youngest_s < now_unix_s - r.at_unix_s <= oldest_s]
        version, theirs = _other_version(alone, asked.engine_version, now_unix_s)
        their_tps = self._at(theirs[-KEEP:], unit_tps)
        return Earlier(
            best_decode_tps=self._best(alone, unit_tps, now_unix_s),
            best_prefill_tps=self._best(prefilled, asked.prefill_unit_tps, now_unix_s),
            week_ago_decode_tps=_median_of_enough(self._at(last_week, unit_tps)),
            other_version=version,
            other_version_decode_tps=statistics.median(their_tps) if their_tps else None,
            other_version_count=len(their_tps),
        )

    def _tell_peers(self, case: Case, setup: BaselineKey) -> None:
        if self._peers is None or not is_on_gpu(case):
            return
        if (place := alike(case, setup)) is not None:
            self._peers.tell(place, self._healthy(setup, _version(case)))

    def _best(
        self, rates: Sequence[LearnedRate], unit_tps: float | None, now_unix_s: float
    ) -> float | None:
        month = [r for r in rates if r.healthy and now_unix_s - r.at_unix_s <= KEEP_S]
        ordered = sorted(self._at(month, unit_tps))
        return _percentile(ordered, 0.9) if len(ordered) >= REFINE_AFTER else None

    def _at(self, rates: Iterable[LearnedRate], unit_tps: float | None) -> list[float]:
        """Return the rates as they would be where first principles expect `unit_tps`."""
        return [
            rate.tps * unit_tps / rate.expected_tps
            if unit_tps and rate.expected_tps and rate.made_by == self._made_by
            else rate.tps
            for rate in rates
        ]


@cached_for_last_case
def _asked(case: Case) -> _Asked:
    envelope = case.envelope
    return _Asked(
        place_of(case),
        octave_of(envelope.context_tokens),
        octave_of(case.timeline.tokens.processed),
        sequences_of(others_at_decode(case)),
        envelope.roofline_tps,
        envelope.expected_prefill_tps,
        _version(case),
    )


def _is_healthy(case: Case, diagnosis: Diagnosis) -> bool:
    """Return True if a request may teach what is healthy: nothing that was measured was lost.

    One of which nothing could be expected teaches too: else nothing would ever be expected.
    """
    if was_throttled(case):
        return False
    unexpected = diagnosis.verdict == "unknown" and case.envelope.decode is None
    return diagnosis.verdict == "normal" or unexpected


def _other_version(
    rates: Sequence[LearnedRate], version: str, now_unix_s: float
) -> tuple[str | None, Sequence[LearnedRate]]:
    """Return the last other build of the engine that served a setup well, with its rates.

    Nothing where a version is not known: then it may be the same one.
    """
    known = [
        rate
        for rate in rates
        if rate.healthy
        and rate.engine_version not in (version, UNKNOWN_VERSION)
        and now_unix_s - rate.at_unix_s <= KEEP_S
    ]
    if not known or version == UNKNOWN_VERSION:
        return None, ()
    last = known[-1].engine_version
    return last, [rate for rate in known if rate.engine_version == last]


def _version(case: Case) -> str:
    return case.server.version or UNKNOWN_VERSION


def _baseline(decode: Sequence[float], *, prefill_tps: float | None, peers: int = 0) -> Baseline:
    ordered = sorted(decode)
    return Baseline(
        count=len(ordered),
        decode_tps=statistics.median(ordered) if ordered else None,
        decode_p10_tps=_percentile(ordered, 0.1) if ordered else None,
        prefill_tps=prefill_tps,
        peers=peers,
    )


def _has_telling_decode(case: Case) -> bool:
    completion, decode_s = case.timeline.tokens.completion, case.phases.decode_s
    return (
        case.phases.source != "estimate"
        and case.phases.decode_tps is not None
        and completion is not None
        and completion >= MIN_DECODE_TOKENS
        and decode_s is not None
        and decode_s >= MIN_LEARNED_DECODE_S
    )


def _has_normal_prefill(case: Case) -> bool:
    """Return True if the engine tells a rate that is not below what physics expects."""
    tokens, p, band = case.timeline.tokens, case.phases, case.envelope.prefill
    return (
        p.prefill_tps is not None
        and p.source in ("engine", "metrics")  # the wait for the first token may be more than it
        and (p.prefill_s or 0.0) >= MIN_LEARNED_PREFILL_S
        and tokens.cached is not None  # else what was computed is not known
        and (tokens.processed or 0) >= MIN_LEARNED_PREFILL_TOKENS
        and (band is None or p.prefill_tps >= band.low)
    )


def _percentile(ordered: Sequence[float], ratio: float) -> float:
    return ordered[int(ratio * (len(ordered) - 1))]


def _median_of_enough(values: Sequence[float]) -> float | None:
    return statistics.median(values) if len(values) >= REFINE_AFTER else None
