"""`make check`: known vulnerabilities in what is locked, as far as a database can be reached.

Where pip-audit reaches none, or one that does not know the packages, that is said, and it is no
failure: a check that needs a network must not stop those who have none. Nothing that was not looked
up is called clean. What slowtok itself runs on must have none; of what only its tests use, it is
told.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOCKED = tuple(  # the first holds all that slowtok's own environment may hold
    ROOT / "requirements" / f"{name}.lock" for name in ("clients", "crewai", "llama-index")
)
RUNS = ROOT / "requirements" / "image.lock"  # what a user may run
LIMIT_S = 120.0
COMMAND = (
    *(sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"),
    *("--timeout", "10", "--disable-pip", "--require-hashes"),
    *(part for lock in LOCKED for part in ("--requirement", str(lock))),
)


def main(command: Sequence[str] = COMMAND) -> int:
    """Run pip-audit, and say what it found in a line or two. Returns the exit code."""
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return _skipped("the vulnerability database did not answer in time")
    try:
        found = json.loads(ended.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = ended.stderr.strip().splitlines()[-1:] or ["no output"]
        return _skipped(last[0].partition(":")[0])
    return _judge(found)


def _judge(found: Sequence[dict[str, Any]]) -> int:
    known = [package for package in found if "vulns" in package]
    for package in known:
        for vulnerability in package["vulns"]:
            fixed = ", ".join(vulnerability.get("fix_versions") or ["none yet"])
            _say(f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}")
    if any(package["vulns"] for package in known):
        return int(
            any(
                package["vulns"] and (package["name"], package["version"]) in _run()
                for package in known
            )
        )
    if not known:
        return _skipped(f"the database knows none of {len(found)} packages")
    _say(f"{len(known)} of {len(found)} packages looked up, no known vulnerability")
    return 0


def _run() -> frozenset[tuple[str, str]]:
    """Return the names and versions of what slowtok runs on; its tests' may be others."""
    return frozenset(re.findall(r"^([a-z0-9._-]+)==(\S+)", RUNS.read_text("utf-8"), re.MULTILINE))


def _skipped(why: str) -> int:
    _say(f"SKIPPED, nothing was looked up: {why}")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"audit: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
