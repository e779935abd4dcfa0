"""The account of a run: verdict, losses, what to fix first, and what the run would then take."""

import pytest

from fakes.run_records import run_turn
from slowtok.proxy.runs.account import account, summary

EXPECTED = {"decode_low_tps": 20.0, "decode_high_tps": 60.0}


def test_a_healthy_run_says_what_its_time_went_into() -> None:
    reads = {"reads": {"tool": 0.9, "user": 0.1}}
    found = account([run_turn(n, 10.0 * n, prefill_s=6.0, run=reads) for n in range(1, 4)])

    assert found["verdict"] == "normal"
    assert "fix_first" not in found
    assert found["lost_ms"] == {}
    assert found["went_into"] == "18.0 of 27.0 s read tool output"


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
