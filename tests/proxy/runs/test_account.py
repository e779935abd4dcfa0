"""The account of a run: verdict, losses, what to fix first, and what the run would then take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.run_records import run_turn
from slowtok.proxy.runs.account import account, segments, split_run_time, summary
from slowtok.proxy.runs.turn import Turn

EXPECTED = {"decode_low_tps": 20.0, "decode_high_tps": 60.0}


def test_a_healthy_run_says_what_its_time_went_into() -> None:
    reads = {"reads": {"tool": 0.9, "user": 0.1}}
    found = account([run_turn(n, 10.0 * n, prefill_s=6.0, run=reads) for n in range(1, 4)])

    assert found["verdict"] == "normal"
    assert "fix_first" not in found
    assert found["lost_ms"] == {}
    assert found["went_into"] == "18.0 of 27.0 s went into reading tool output"


def test_a_small_loss_does_not_make_a_run_slow() -> None:
    found = account([run_turn(n, 10.0 * n, lost_s={"queued": 0.1}) for n in range(1, 11)])

    assert found["verdict"] == "normal"
    assert found["lost_ms"] == {"queued": 1000.0}


def test_a_run_that_nobody_could_judge() -> None:
    assert account([run_turn(1, 0.0, verdict="unknown")])["verdict"] == "unknown"


def test_the_cause_that_gives_most_wall_time_back_comes_first() -> None:
    together = [run_turn(n, 0.0, lost_s={"slow-prefill": 0.9}) for n in (1, 2, 3)]
    alone = run_turn(4, 20.0, prefill_s=3.0, lost_s={"prompt-cache-miss": 2.0})

    found = account([*together, alone])

    assert found["verdict"] == "slow"
    assert found["lost_ms"] == {"slow-prefill": 2700.0, "prompt-cache-miss": 2000.0}
    assert found["fix_first"] == {
        "cause": "prompt-cache-miss",
        "hint": "mend prompt-cache-miss",
        "lost_ms": 2000.0,
        "requests": 1,
        "wall_then_ms": 22_000.0,
    }


def test_short_steps_that_read_known_tokens_again_count_together() -> None:
    again = {"cached": 0, "recomputed": 900}
    prompt = {"known_ratio": 0.9, "change": "time", "remedy": "take the clock out"}
    turns = [run_turn(n, 3.0 * n, prefill_s=0.5, tokens=again, prompt=prompt) for n in range(1, 11)]

    found = account(turns)

    assert found["verdict"] == "slow"
    assert found["fix_first"]["cause"] == "prompt-cache-miss"
    assert found["fix_first"]["hint"] == "take the clock out"
    assert found["lost_ms"]["prompt-cache-miss"] == pytest.approx(4500.0)


def test_short_steps_whose_decode_is_slow_together() -> None:
    facts = {"verdict": "unknown", "expected": EXPECTED, "decode_s": 2.0}
    found = account([run_turn(n, 5.0 * n, **facts) for n in range(1, 11)])

    assert found["verdict"] == "slow"
    assert set(found["lost_ms"]) == {"unexplained"}
    assert "fix_first" not in found


def test_short_steps_at_the_expected_rate() -> None:
    facts = {"verdict": "unknown", "expected": EXPECTED, "decode_s": 0.6}

    assert account([run_turn(n, 5.0 * n, **facts) for n in range(1, 11)])["lost_ms"] == {}


def test_tokens_of_the_parent_tell_more_than_characters() -> None:
    first = run_turn(1, 0.0, tokens={"cached": 0})
    second = run_turn(
        2,
        5.0,
        prefill_s=1.1,
        run={"how": "changed"},
        tokens={"prompt": 1100, "cached": 0, "recomputed": 700},
    )

    assert account([first, second])["split_ms"]["prefill_again"] == pytest.approx(1000.0)


def test_the_numbers_of_a_run() -> None:
    turns = [
        run_turn(2, 5.0, since_previous_ms=3000.0, client="agent"),
        run_turn(1, 0.0, client="agent", run={"name": "night", "by": "url"}),
    ]

    found = account(turns)

    assert (found["id"], found["name"], found["by"]) == ("run-1", "night", "url")
    assert found["clients"] == ["agent"]
    assert sum(found["split_ms"].values()) == pytest.approx(found["wall_ms"])
    assert [turn["turn"] for turn in found["turns"]] == [1, 2]
    assert found["turns"][1]["client_ms"] == 3000.0
    assert found["turns"][1]["parent"] == 1
    assert found["tokens"] == {
        "prompt": 2000, "cached": 1800, "recomputed": 0, "completion": 40
    }  # fmt: skip
    assert "turns" not in summary(turns)


def test_requests_one_after_the_other() -> None:
    found = split_run_time([run_turn(1, 0.0), run_turn(2, 5.0, queue_s=0.5)])

    assert found.wall_s == pytest.approx(7.5)
    assert found.parts_s["client"] == pytest.approx(3.0)
    assert found.parts_s["prefill"] == pytest.approx(2.0)
    assert found.parts_s["queue"] == pytest.approx(0.5)
    assert found.shares[run_turn(2, 5.0).request] == pytest.approx(1.0)


def test_requests_at_the_same_time_share_it() -> None:
    found = split_run_time([run_turn(1, 0.0), run_turn(2, 0.0)])

    assert found.wall_s == pytest.approx(2.0)
    assert found.parts_s["prefill"] == pytest.approx(1.0)
    assert found.parts_s["client"] == 0.0
    assert list(found.shares.values()) == [pytest.approx(0.5)] * 2


def test_what_was_computed_again_is_a_part_of_the_prefill() -> None:
    turn = run_turn(1, 0.0, tokens={"cached": 0, "recomputed": 800})

    assert split_run_time([turn]).parts_s["prefill_again"] == pytest.approx(0.8)
    assert split_run_time([turn]).parts_s["prefill"] == pytest.approx(0.2)


@pytest.mark.parametrize(("completion", "part"), [(20, "decode"), (0, "queue")])
def test_what_nobody_explains_is_waiting_where_no_token_was_made(
    completion: int, part: str
) -> None:
    tokens = {"completion": completion}
    turn = run_turn(1, 0.0, prefill_s=0.0, decode_s=0.0, more_s=3.0, tokens=tokens)

    assert split_run_time([turn]).parts_s[part] == pytest.approx(3.0)


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
    whole = split_run_time(found)

    assert sum(whole.parts_s.values()) == pytest.approx(whole.wall_s, abs=1e-4)
    assert min(whole.parts_s.values()) >= 0.0
    assert all(share <= 1.0 + 1e-3 for share in whole.shares.values())
