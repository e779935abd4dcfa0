"""From the log's files to a report: periods, counting, what to fix first, and each format."""

import io
import os
import re
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fakes.logs import line, record
from slowtok.proxy.cli.commands.report import make_report
from slowtok.proxy.cli.report import html, text
from slowtok.proxy.cli.report.choice import BadPeriod, period_of
from slowtok.proxy.cli.report.tally import MAX_NAMES, OTHERS, Tally
from slowtok.proxy.runtime import log_files
from slowtok.proxy.runtime.log_files import NotASlowtokLogError, log_paths, open_log

NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


def report_of(path: Path, *lines: bytes, since: str = "1d") -> dict[str, Any]:
    path.write_bytes(b"".join(lines))
    os.utime(path, (NOW.timestamp(), NOW.timestamp()))
    with open_log(path) as files:
        return make_report(files, period_of(since, NOW))


@pytest.mark.parametrize(
    ("since", "hours"),
    [("1d", 24), ("7d", 168), ("12h", 12), ("90m", 1.5), ("2w", 336), ("2026-11-20", 12.5),
     ("2026-11-20T11:30", 1), ("2026-11-20T11:30:00Z", 1), ("2026-11-20T12:30+02:00", 2)],
)  # fmt: skip
def test_periods(since: str, hours: float) -> None:
    period = period_of(since, NOW)

    assert (period.until - period.since) / HOUR == hours
    assert period.before.until == period.since
    assert (period.before.until - period.before.since) / HOUR == hours


@pytest.mark.parametrize("since", ["", "0d", "yesterday", "1y", "-1d", "2027-01-01", "99999w"])
def test_no_periods(since: str) -> None:
    with pytest.raises(BadPeriod):
        period_of(since, NOW)


def test_a_naive_time_is_the_readers_own() -> None:
    there = NOW.astimezone(timezone(timedelta(hours=5)))

    assert period_of("2026-11-20T17:00", there).since == NOW - HOUR / 2


def test_rotated_files_are_read_the_oldest_first(tmp_path: Path) -> None:
    for name in ("log.jsonl", "log.jsonl.1", "log.jsonl.10", "log.jsonl.2", "log.jsonl.new", "b"):
        (tmp_path / name).touch()

    found = [path.name for path in log_paths(tmp_path / "log.jsonl")]

    assert found == ["log.jsonl.10", "log.jsonl.2", "log.jsonl.1", "log.jsonl"]


def test_what_is_rotated_away_meanwhile_is_read_all_the_same(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(line(NOW - HOUR))
    os.utime(log, (NOW.timestamp(), NOW.timestamp()))
    with open_log(log) as files:
        log.rename(tmp_path / "log.jsonl.1")
        log.write_bytes(line(NOW - HOUR) * 5)

        assert make_report(files, period_of("1d", NOW))["requests"] == 1


def test_files_that_are_too_old_are_not_opened_up(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"no record at all\n")
    with open_log(log) as [file]:
        later = datetime.fromtimestamp(file.written_unix_s, UTC) + timedelta(days=3)

        assert make_report([file], period_of("1d", later))["bad_lines"] == 0
        with pytest.raises(NotASlowtokLogError):
            make_report([file], period_of("2d", later))


def test_bad_lines_are_counted_and_cost_nothing_else(tmp_path: Path) -> None:
    odd = (b"{", b"[]", b"3", b'{"event":"request"}', b'{"event":"request","ts":"yesterday"}',
           b'{"event":"request","ts":"2026-11-20T12:00:00+00:00","timing":3}',
           b"\xff\xfe", b"")  # fmt: skip
    other = b'{"event":"engine-found","ts":"2026-11-20T12:00:00Z"}\n'
    found = report_of(tmp_path / "log", *(b + b"\n" for b in odd), other, line(NOW - HOUR))

    assert (found["bad_lines"], found["requests"]) == (len(odd), 1)


def test_a_line_without_end_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "MAX_LINE_BYTES", 10_000)
    good = line(NOW - HOUR)
    assert len(good) < 10_000
    found = report_of(tmp_path / "log", good, b"x" * 50_000 + b"\n", good, b"y" * 25_000)

    assert (found["requests"], found["bad_lines"]) == (2, 2)


def test_a_line_that_is_still_being_written_is_bad_and_no_more(tmp_path: Path) -> None:
    whole = line(NOW - HOUR)

    assert report_of(tmp_path / "log", whole, whole[:-300])["bad_lines"] == 1


def test_only_the_period_counts_and_the_one_before_is_compared(tmp_path: Path) -> None:
    day = timedelta(days=1)
    found = report_of(
        tmp_path / "log",
        line(NOW - 3 * day, "queued"),
        line(NOW - day - HOUR, "queued"),
        line(NOW - day - HOUR),
        line(NOW - HOUR),
        line(NOW + HOUR),
    )

    assert (found["requests"], found["verdicts"]["slow"]) == (1, 0)
    assert (found["before"]["requests"], found["before"]["slow_ratio"]) == (2, 0.5)
    assert "fix_first" not in found


def test_nothing_before_is_not_zero(tmp_path: Path) -> None:
    assert "before" not in report_of(tmp_path / "log", line(NOW - HOUR))


def test_losses_add_up_by_cause_and_the_dearest_comes_first(tmp_path: Path) -> None:
    queued, paging = record("queued"), record("storage-paging")
    found = report_of(
        tmp_path / "log",
        line(NOW - HOUR),
        line(NOW - HOUR, "queued", id="first", model="a"),
        line(NOW - 2 * HOUR, "queued", id="second", model="a"),
        line(NOW - 2 * HOUR, "storage-paging", id="third", model="b"),
    )
    lost = {
        "queued": 2 * queued["findings"][0]["lost_ms"],
        "storage-paging": paging["findings"][0]["lost_ms"],
    }
    causes = {cause["cause"]: cause for cause in found["causes"]}

    assert {name: causes[name]["lost_ms"] for name in lost} == lost
    assert found["lost_ms"] == pytest.approx(sum(c["lost_ms"] for c in found["causes"]), abs=3)
    assert sum(c["share"] for c in found["causes"]) == pytest.approx(1, abs=0.001)
    first = max(lost, key=lambda name: lost[name])
    assert found["causes"][0]["cause"] == found["fix_first"]["cause"] == first
    assert found["fix_first"]["remedy"]
    assert {m["model"]: m["slow"] for m in found["models"]}["a"] == 2
    assert [h["requests"] for h in found["hours"]] == [2, 2]


def test_what_informs_is_no_loss(tmp_path: Path) -> None:
    told = {"cause": "long-context", "informational": True, "lost_ms": 900, "confidence": 1}
    found = report_of(tmp_path / "log", line(NOW - HOUR, findings=[told]))

    assert (found["lost_ms"], found["causes"]) == (0, [])


def test_tokens_that_were_computed_again_are_waste(tmp_path: Path) -> None:
    missed = record("prompt-cache-miss")
    [again] = [
        e["value"]
        for e in missed["findings"][0]["evidence"]
        if e["name"] == "tokens computed again"
    ]
    found = report_of(tmp_path / "log", line(NOW - HOUR, "prompt-cache-miss"))["prompt_cache"]

    assert found["computed_again_tokens"] == again > 0
    assert found["lost_ms"] == missed["findings"][0]["lost_ms"]


def test_models_are_counted_in_bounded_memory() -> None:
    tally = Tally(zone=UTC)
    for n in range(MAX_NAMES + 50):
        tally.add(record(model=f"model {n}"), NOW)

    assert len(tally.models) == MAX_NAMES + 1
    assert tally.models[OTHERS].requests == 50


@pytest.mark.parametrize("width", [40, 80, 120])
def test_text_fits_the_terminal(tmp_path: Path, width: int) -> None:
    found = report_of(
        tmp_path / "log",
        line(NOW - timedelta(days=1, hours=1)),
        line(NOW - HOUR, "queued", model="m" * 200),
        line(NOW - HOUR, status=502, ended="upstream-refused"),
        b"{\n",
    )
    shown = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with shown.capture() as captured:
        shown.print(text.page(found))
    said = captured.get()

    assert max(len(row) for row in said.splitlines()) <= width
    joined = " ".join(said.split())
    assert "Fix first: queued" in joined
    assert "upstream-refused (502)" in joined
    assert "1 line of the log could not be read." in joined


class _Page(HTMLParser):
    """What of a page could do harm or load something, and whether its elements close."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "action") or k[:2] == "on"]
        if tag not in ("meta", "rect", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag


def test_html_is_one_file_that_runs_nothing(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script><img src=x onerror="y">'
    lines = [line(NOW - n * HOUR, "queued", model=evil, id=evil) for n in (1, 2, 5)]
    made = html.page(report_of(tmp_path / "log", *lines, line(NOW - timedelta(hours=30))))
    seen = _Page()
    seen.feed(made)

    assert (seen.open, seen.links) == ([], [])
    assert not {"script", "img", "link", "iframe"} & set(seen.tags)
    assert "&lt;script&gt;" in made
    assert "default-src 'none'" in made
    assert not re.search(r"https?://|url\(|@import", made)
    assert "prefers-color-scheme: dark" in made
    assert "@media print" in made


def test_html_of_nothing(tmp_path: Path) -> None:
    assert "No request in this time." in html.page(report_of(tmp_path / "log", b""))
