"""The ending says what came out, also when that is not what was provoked; 80 columns hold it."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from slowtok.proxy.cli.demo import report, shots
from slowtok.proxy.cli.demo.shots import Outcome, Shot

ID = "0199f3c2-7a10-7c3e-8f00-000000000001"
STARVED = shots.starved(50)
LATE = shots.conversation(30, "noon")[2]
SHARING = shots.rush(50)[0]
HEALTHY = shots.healthy(1, 50)


def outcome(shot: Shot, verdict: str, cause: str | None = None, lost_ms: int = 1234) -> Outcome:
    finding: dict[str, Any] = {
        "cause": cause,
        "confidence": 0.95,
        "lost_ms": lost_ms,
        "phase": "decode",
        "summary": "What happened.",
        "evidence": [],
        "remedy": "What to do.",
    }
    record: dict[str, Any] = {
        "id": ID,
        "ts": "2026-11-20T07:00:00.000+00:00",
        "path": shot.path,
        "model": "small",
        "timing": {"prefill_ms": 2345.6, "decode_ms": 2200.0, "total_ms": 4545.6},
        "tokens": {"prompt": 1240, "cached": 24, "completion": 300},
        "rate": {"prefill_tps": 450.0, "decode_tps": 136.4},
        "expected": {"decode_low_tps": 110.2, "decode_high_tps": 162.4},
        "verdict": verdict,
        "findings": [finding] if cause else [],
    }
    return Outcome(shot=shot, record=record)


def printed(what: RenderableType, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width, highlight=False)
    console.print(what)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


GOOD = (
    outcome(HEALTHY, "normal"),
    outcome(STARVED, "slow", "host-contention", lost_ms=9876),
    outcome(LATE, "slow", "prompt-cache-miss"),
)


def test_nothing_shown_does_not_convince() -> None:
    assert not report.convinces(())


def test_one_cause_twice_does_not_convince() -> None:
    twice = outcome(STARVED, "slow", "host-contention")

    assert not report.convinces((GOOD[0], twice, twice))


def test_slow_requests_alone_do_not_convince() -> None:
    assert not report.convinces(GOOD[1:])


def test_sharing_without_loss_is_no_healthy_request() -> None:
    assert not report.convinces((outcome(SHARING, "normal"), *GOOD[1:]))


def test_a_wrong_cause_does_not_count() -> None:
    wrong = outcome(LATE, "slow", "queued")

    assert not report.convinces((*GOOD[:2], wrong))
    assert report.surprises((*GOOD[:2], wrong)) == [
        "agent + clock: expected prompt-cache-miss, got queued"
    ]


def test_a_healthy_one_and_two_causes_convince() -> None:
    assert report.convinces(GOOD)
    assert report.surprises(GOOD) == []


def test_the_worst_is_the_one_that_lost_most() -> None:
    assert report.worst(GOOD) is GOOD[1]
    assert report.worst(GOOD[:1]) is None


def test_a_row() -> None:
    label, tokens, took, rate, band, verdict, cause = (str(c) for c in report.row(GOOD[2]))

    assert (label, tokens, took) == ("agent + clock", "1,216", "2.3 s")
    assert (rate, band, verdict) == ("136", "110-162", "slow")
    assert cause == "prompt-cache-miss\n95%, lost 1.2 s"


def test_a_row_of_a_request_of_which_little_is_known() -> None:
    bare = Outcome(shot=HEALTHY, record={"verdict": "unknown"})

    assert [str(cell) for cell in report.row(bare)] == [
        "healthy 1",
        *["?"] * 4,
        "unknown",
        "",
    ]


def test_everything_fits_into_80_columns_without_control_codes() -> None:
    text = printed(report.ending((*GOOD, outcome(SHARING, "slow"))))

    assert "\x1b" not in text
    assert "…" not in text
    assert "prompt-cache-miss" in text
    assert (
        "Not as expected (?): at once, 1st: expected batch-shared or normal, got unexplained"
        in (" ".join(text.split()))
    )
    for wide in (*GOOD, outcome(LATE, "slow", "threads-misconfigured", lost_ms=12_345)):
        assert printed(report.progress_line(wide, "+"), width=200).rstrip("\n").isprintable()
        assert len(printed(report.progress_line(wide, "+"), width=200).rstrip()) <= 80


def test_a_command_is_told_only_when_it_works() -> None:
    ended, stays = report.next_steps(None, None), report.next_steps("http://127.0.0.1:1", "X")

    assert "explain" not in ended.plain
    assert "--serve" in ended.plain
    assert "http://127.0.0.1:1/v1" in stays.plain
    assert "X" in stays.plain


def test_json_holds_the_records() -> None:
    found = report.to_json(GOOD, 41.26)

    assert found["convinces"] is True
    assert found["elapsed_s"] == 41.3
    assert [r["outcome"] for r in found["requests"]] == [
        "normal",
        "host-contention",
        "prompt-cache-miss",
    ]
    assert found["requests"][0]["record"]["id"] == ID


def test_slow_without_a_cause_is_called_unexplained() -> None:
    said = printed(report.progress_line(outcome(HEALTHY, "slow"), "?"))

    assert said.rstrip().endswith("slow: unexplained")


@pytest.mark.parametrize(("others_cores", "is_said"), [(0.2, False), (0.6, True)])
def test_other_programs_are_told_before_it_begins(others_cores: float, *, is_said: bool) -> None:
    said = report.notice_of_others(others_cores, 2)

    assert (said is not None) is is_said
    assert said is None or said.startswith("Other programs use 0.6 of 2 cores: ")


def test_requests_that_other_programs_slowed_are_told_in_one_line() -> None:
    met = outcome(HEALTHY, "slow", "host-contention")
    shown = printed(report.ending((met, met, *GOOD)), width=100)

    assert "2 requests (?) met other programs on the cores" in shown
    assert "Not as expected" not in shown
