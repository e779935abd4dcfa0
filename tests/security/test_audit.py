"""`make check` looks up known vulnerabilities, or says that it did not."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from security import audit

ROOT = Path(__file__).resolve().parents[2]
CLEAN = {"name": "a", "version": "1", "vulns": []}
UNKNOWN = {"name": "b", "skip_reason": "not found"}
FLAWS = [{"id": "PYSEC-1", "fix_versions": ["3"]}]
RUNS = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", audit.RUNS.read_text("utf-8"), re.MULTILINE))
BAD = {"name": "aiohttp", "version": RUNS["aiohttp"], "vulns": FLAWS}
BAD_IN_TESTS = {"name": "pytest", "version": "2", "vulns": FLAWS}
OLD_IN_TESTS = {"name": "aiohttp", "version": "2", "vulns": FLAWS}


def saying(found: Any) -> tuple[str, ...]:
    """A command that says what pip-audit would."""
    text = found if isinstance(found, str) else json.dumps({"dependencies": found})
    return (sys.executable, "-c", f"print({text!r})")


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([CLEAN, UNKNOWN], 0, "audit: 1 of 2 packages looked up, no known vulnerability\n"),
        ([CLEAN, BAD], 1, f"audit: aiohttp {RUNS['aiohttp']}: PYSEC-1, fixed in 3\n"),
        ([CLEAN, OLD_IN_TESTS], 0, "audit: aiohttp 2: PYSEC-1, fixed in 3\n"),
        ([CLEAN, BAD_IN_TESTS], 0, "audit: pytest 2: PYSEC-1, fixed in 3\n"),
        ([UNKNOWN], 0, "audit: SKIPPED, nothing was looked up: the database knows none of 1"),
        ("", 0, "audit: SKIPPED, nothing was looked up: no output\n"),
        ("[]", 0, "audit: SKIPPED, nothing was looked up: no output\n"),
    ],
)
def test_what_it_says(found: Any, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(saying(found)) == code
    assert capsys.readouterr().out.startswith(said)


def test_an_error_is_no_clean_bill(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main((sys.executable, "-c", "raise ConnectionError('https://x/?key=1')")) == 0
    assert capsys.readouterr().out == "audit: SKIPPED, nothing was looked up: ConnectionError\n"


def test_a_database_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "LIMIT_S", 0.2)

    assert audit.main((sys.executable, "-c", "import signal; signal.pause()")) == 0
    assert "SKIPPED" in capsys.readouterr().out


def test_all_that_is_locked_anywhere_is_looked_up() -> None:
    def packages(path: Path) -> set[str]:
        return set(re.findall(r"^([a-z0-9._-]+)==", path.read_text("utf-8"), re.MULTILINE))

    locks = list((ROOT / "requirements").glob("*.lock"))
    everywhere = set().union(*map(packages, locks))

    assert len(locks) >= 5
    assert everywhere - set().union(*map(packages, audit.LOCKED)) == set()


def test_it_is_locked_and_part_of_the_check() -> None:
    locked = (ROOT / "requirements/dev.lock").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    [check] = re.findall(r"^check:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)

    assert "\npip-audit==" in locked
    assert "-m security.audit" in check
