"""The workflows of CI and releases: few rights, pinned actions, and steps that work."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return found


def step(job: str, name: str) -> str:
    """The shell of a release's step."""
    steps = jobs(ROOT / ".github" / "workflows" / "release.yml")[job]["steps"]
    [found] = [each["run"] for each in steps if each.get("name") == name]
    return str(found)


@each_workflow
def test_actions_are_pinned_by_commit_with_their_version_beside(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    of_others = [use for use in used if not use.startswith("./")]

    assert of_others
    assert [u for u in of_others if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", u)] == []


def test_one_action_has_one_commit_everywhere() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    pins = set(re.findall(r"uses: ([\w/-]+)@(\w+)", text))

    assert len(pins) == len({name for name, _ in pins})


def test_nothing_may_be_written_but_by_the_jobs_that_publish() -> None:
    writing = set()
    for path in WORKFLOWS:
        whole = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert "write" not in str(whole["permissions"])
        writing |= {
            (name, right)
            for name, job in whole["jobs"].items()
            for right, level in job.get("permissions", {}).items()
            if level == "write"
        }

    signed = {
        (job, right) for job in ("packages", "image") for right in ("id-token", "attestations")
    }
    assert writing == signed | {("image", "packages"), ("publish", "contents")}


@each_workflow
def test_no_checkout_keeps_its_token_and_no_script_is_written_by_an_event(path: Path) -> None:
    for job in jobs(path).values():
        for each in job.get("steps", []):
            if "actions/checkout" in each.get("uses", ""):
                assert each["with"]["persist-credentials"] is False
            assert "${{" not in each.get("run", "")


@each_workflow
def test_every_job_ends_by_itself(path: Path) -> None:
    endless = [
        n for n, job in jobs(path).items() if "steps" in job and "timeout-minutes" not in job
    ]

    assert endless == []


def test_a_release_waits_for_the_tests_of_every_system() -> None:
    release = jobs(ROOT / ".github" / "workflows" / "release.yml")
    tests = jobs(ROOT / ".github" / "workflows" / "ci.yml")

    assert release["tests"]["uses"] == "./.github/workflows/ci.yml"
    assert {job["needs"] for name, job in release.items() if name in ("packages", "image")} == {
        "tests"
    }
    assert set(release["publish"]["needs"]) == {"packages", "image"}
    assert {"linux", "macos", "windows"} <= set(tests)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def notes(checkout: Path, tag: str) -> subprocess.CompletedProcess[str]:
    tools = Path(sys.executable).parent
    given = {
        "GITHUB_REF_NAME": tag,
        "GITHUB_SERVER_URL": "https://example.invalid",
        "GITHUB_REPOSITORY": "a/b",
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    return subprocess.run(
        [
            "bash",
            "-eo",
            "pipefail",
            "-c",
            step("packages", "The tag is the version, and the changelog has it"),
        ],
        cwd=checkout,
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )


posix_only = pytest.mark.skipif(sys.platform == "win32", reason="the release runs on Linux")


@posix_only
def test_notes_are_the_changelogs_section_with_links_that_work_elsewhere(checkout: Path) -> None:
    changelog = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    [section] = re.findall(
        rf"^## \[{re.escape(VERSION)}\].*?\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL
    )

    done = notes(checkout, f"v{VERSION}")

    assert done.returncode == 0, done.stderr
    written = (checkout / "release" / "notes.md").read_text(encoding="utf-8")
    prefix = f"https://example.invalid/a/b/blob/v{VERSION}/"
    assert written.replace(prefix, "") == section
    assert "](docs/" not in written


@posix_only
def test_a_tag_that_is_not_the_version_is_no_release(checkout: Path) -> None:
    assert notes(checkout, "v999.0").returncode != 0


@posix_only
def test_a_version_that_the_changelog_does_not_have_is_no_release(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n- x\n", encoding="utf-8"
    )

    assert notes(checkout, f"v{VERSION}").returncode != 0
