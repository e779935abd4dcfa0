"""Files, catalogue, tests and documentation name the same causes."""

import inspect
from pathlib import Path

import pytest

from slowtok.detectors.case.finding import Detector
from slowtok.detectors.diagnosis.catalog import CATALOG, cause_of
from slowtok.detectors.docs import HEAD, PLACES, SECTIONS, render, with_causes

ROOT = Path(__file__).resolve().parent.parent


def causes_in(folder: Path, prefix: str = "") -> list[str]:
    """Causes that the Python files of a folder's cause folders stand for."""
    return sorted(
        f"{name}/{path.stem.removeprefix(prefix)}"
        for name in PLACES
        for path in (folder / name).glob(f"{prefix}*.py")
        if path.stem != "__init__"
    )


def listed() -> list[str]:
    return sorted("/".join(detector.__name__.split(".")[-2:]) for detector in CATALOG)


def test_every_detector_file_is_in_the_catalogue() -> None:
    assert causes_in(ROOT / "detectors" / "causes") == listed()


def test_every_detector_has_its_test_file() -> None:
    tests = causes_in(ROOT / "tests" / "detectors" / "causes", prefix="test_")

    assert [cause for cause in listed() if cause not in tests] == []
    assert [test for test in tests if not test.startswith(tuple(listed()))] == []


def test_every_cause_has_one_heading_in_the_documentation() -> None:
    text = (ROOT / "docs" / "causes.md").read_text(encoding="utf-8")
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]

    assert headings == [cause_of(detector) for detector in CATALOG]


def test_the_documentation_is_current() -> None:
    text = (ROOT / "docs" / "causes.md").read_text(encoding="utf-8")

    assert text == render(CATALOG), "run `make docs`"
    assert text.startswith(HEAD)


def test_the_table_of_the_readme_is_current() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    assert text == with_causes(text, CATALOG), "run `make docs`"
    assert with_causes(text, CATALOG[1:]) != text


@pytest.mark.parametrize("detector", CATALOG, ids=cause_of)
def test_docstring_states_the_cause_and_has_its_sections(detector: Detector) -> None:
    lines = (inspect.getdoc(detector) or "").splitlines()
    at = [lines.index(section) for section in SECTIONS]

    assert lines[0].endswith(".")
    assert at == sorted(at)
    assert all(lines[i + 1].strip() for i in at), "a section is empty"


@pytest.mark.parametrize("detector", CATALOG, ids=cause_of)
def test_title_is_short_and_plain(detector: Detector) -> None:
    assert 0 < len(detector.TITLE) <= 60
    assert not detector.TITLE.endswith(".")


def test_cause_is_the_name_of_the_module() -> None:
    assert cause_of(CATALOG[0]) == CATALOG[0].__name__.split(".")[-1].replace("_", "-")
    assert "host-contention" in [cause_of(detector) for detector in CATALOG]
