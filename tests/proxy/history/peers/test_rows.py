"""Rows of rates, as a store holds them."""

from dataclasses import replace

import pytest

from fakes.learning import DAY_S, NOW_UNIX_S, rate
from slowtok.proxy.history.peers.store import FUTURE_S, MAX_OF_A_CARD, MAX_ROW_BYTES, pack, unpack
from slowtok.proxy.history.rates import LearnedRate


def read(row: bytes) -> tuple[LearnedRate, ...]:
    return unpack(row, now_unix_s=NOW_UNIX_S)


def test_a_row_comes_back_as_it_was() -> None:
    before = [rate(150.0, days_ago=2), replace(rate(151.0), expected_tps=None)]

    assert read(pack(before)) == tuple(replace(r, engine_version="") for r in before)


def test_it_holds_the_newest() -> None:
    many = [rate(100.0 + n, days_ago=20 - n) for n in range(20)]

    assert [r.tps for r in read(pack(reversed(many)))] == [112.0 + n for n in range(MAX_OF_A_CARD)]


def test_the_longest_row_can_be_read() -> None:
    longest = replace(rate(), made_by="9" * 500, tps=1 / 3, expected_tps=2 / 3)
    row = pack([replace(longest, at_unix_s=NOW_UNIX_S - n / 7) for n in range(20)])

    assert len(row) < MAX_ROW_BYTES
    assert len(read(row)) == MAX_OF_A_CARD


@pytest.mark.parametrize("days", [31.0, -1.5])
def test_what_is_too_old_or_not_yet_is_left_out(days: float) -> None:
    assert FUTURE_S == DAY_S
    assert [r.tps for r in read(pack([rate(1.0, days_ago=days), rate(2.0)]))] == [2.0]


@pytest.mark.parametrize(
    "row",
    [
        b"",
        b"no JSON",
        b"{}",
        b"null",
        b"[1]",
        b"[[1,2,3]]",
        b'[[1,2,3,"1",5]]',
        b'[["1",2,3,"1"]]',
        b'[[1,-2,3,"1"]]',
        b'[[1,0,3,"1"]]',
        b'[[1,true,3,"1"]]',
        b'[[1,2,0,"1"]]',
        b'[[1,NaN,3,"1"]]',
        b"[[1,2,3,4]]",
        b"[" + b'[1,2,3,"1"],' * 8 + b'[1,2,3,"1"]]',
        b'[[1,2,3,"' + b"x" * MAX_ROW_BYTES + b'"]]',
        b"[" * 4000,
        b"\xff\xfe",
    ],
)
def test_nonsense_is_refused(row: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the JSON library's own words
        read(row)
