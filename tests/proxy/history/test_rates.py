"""Rates in memory are bounded by day, by age and in all."""

from dataclasses import replace

import pytest

from fakes.cases import healthy
from fakes.learning import rate
from slowtok.proxy.history import rates as module
from slowtok.proxy.history.keys import decode_setup
from slowtok.proxy.history.rates import MAX_OF_A_DAY, MAX_SETUPS, Rates

SETUP = decode_setup(healthy())


def test_days_keep_their_newest() -> None:
    rates = Rates()
    for day in (2.0, 1.0):
        for i in range(100):
            rates.add(SETUP, rate(float(i), days_ago=day))

    assert [r.tps for r in rates.of(SETUP)] == [*range(100 - MAX_OF_A_DAY, 100)] * 2


def test_what_is_older_than_a_month_goes() -> None:
    rates = Rates()
    for days_ago in (40.0, 31.0, 29.0, 0.0):
        rates.add(SETUP, rate(days_ago=days_ago))

    assert [r.day - rate().day for r in rates.of(SETUP)] == [-29, 0]


def test_a_clock_that_jumps_back_drops_nothing() -> None:
    rates = Rates()
    rates.add(SETUP, rate(days_ago=0.0))
    rates.add(SETUP, rate(days_ago=10_000.0))

    assert len(rates.of(SETUP)) == 2


def test_setups_are_bounded() -> None:
    rates = Rates()
    for i in range(MAX_SETUPS + 1):
        rates.add(replace(SETUP, model=str(i)), rate())
        rates.add(SETUP, rate())

    assert len(rates.setups()) == MAX_SETUPS
    assert SETUP in rates.setups()
    assert rates.of(replace(SETUP, model="0")) == []


def test_rates_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RATES", 50)
    rates = Rates()
    for model in "abcd":
        for i in range(20):
            rates.add(replace(SETUP, model=model), rate(days_ago=float(-i)))

    assert [setup.model for setup in rates.setups()] == ["c", "d"]
