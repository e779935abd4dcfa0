"""Wall time is split without a rest, and no moment is counted twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.run_records import run_turn
from slowtok.proxy.runs.account import segments, split
from slowtok.proxy.runs.turn import Turn


def test_requests_one_after_the_other() -> None:
    found = split([run_turn(1, 0.0), run_turn(2, 5.0, queue_s=0.5)])

    assert found.wall_s == pytest.approx(7.5)
    assert found.parts_s["client"] == pytest.approx(3.0)
    assert found.parts_s["prefill"] == pytest.approx(2.0)
    assert found.parts_s["queue"] == pytest.approx(0.5)
    assert found.shares[run_turn(2, 5.0).request] == pytest.approx(1.0)


def test_requests_at_the_same_time_share_it() -> None:
    found = split([run_turn(1, 0.0), run_turn(2, 0.0)])

    assert found.wall_s == pytest.approx(2.0)
    assert found.parts_s["prefill"] == pytest.approx(1.0)
    assert found.parts_s["client"] == 0.0
    assert list(found.shares.values()) == [pytest.approx(0.5)] * 2


def test_what_was_computed_again_is_a_part_of_the_prefill() -> None:
    turn = run_turn(1, 0.0, tokens={"cached": 0, "recomputed": 800})

    assert split([turn]).parts_s["prefill_again"] == pytest.approx(0.8)
    assert split([turn]).parts_s["prefill"] == pytest.approx(0.2)


def test_what_nobody_explains_is_waiting_where_no_token_was_made() -> None:
    turn = run_turn(1, 0.0, prefill_s=0.0, decode_s=0.0, more_s=3.0)

    assert split([turn]).parts_s["queue"] == pytest.approx(3.0)


def test_an_engine_that_says_more_than_there_was_is_cut() -> None:
    turn = run_turn(1, 0.0, prefill_s=3.0, decode_s=3.0, more_s=-3.0)

    assert sum(s.end_s - s.begin_s for s in segments(turn)) == pytest.approx(3.0)


turns = st.builds(
    lambda number, at_s, queue_s, prefill_s, decode_s, more_s: run_turn(
        number, at_s, queue_s=queue_s, prefill_s=prefill_s, decode_s=decode_s, more_s=more_s
    ),
    st.integers(1, 9999),
    st.floats(0, 100),
    *[st.floats(0, 10)] * 4,
)


@given(st.lists(turns, min_size=1, max_size=12, unique_by=lambda turn: turn.turn))
def test_the_parts_always_add_up(found: list[Turn]) -> None:
    whole = split(found)

    assert sum(whole.parts_s.values()) == pytest.approx(whole.wall_s, abs=1e-4)
    assert min(whole.parts_s.values()) >= 0.0
    assert all(share <= 1.0 + 1e-3 for share in whole.shares.values())
