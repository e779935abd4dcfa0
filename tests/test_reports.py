"""Cases rebuilt from real reports are judged as their labels say, save those that are listed."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cases.build_reports import FOLDER, INFORMED, case_text, label_text, reports
from cases.table import BEGIN, END, MEANING, PAGE, put, rows, section
from cases.untold import UNTOLD
from slowtok.detectors.diagnosis.catalog import CATALOG, cause_of
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.case_file import parse_case

ROOT = Path(__file__).resolve().parent.parent
LABEL, EXPECTED = ".label.json", FOLDER / "expected.json"
QUOTING = ("detectors", "config", "tests/detectors", "tests/fakes")


@cache
def labels() -> dict[str, dict[str, Any]]:
    """Each label by the name of its report."""
    found = sorted(FOLDER.glob(f"*{LABEL}"))
    return {path.name.removesuffix(LABEL): json.loads(path.read_text("utf-8")) for path in found}


def named(name: str) -> tuple[str, list[str]]:
    """Return the verdict on a report and the causes named, the first one first."""
    found = diagnose(parse_case((FOLDER / f"{name}.json").read_bytes()).case)
    assert found.failed == {}
    return found.verdict, [c for c, finding in found.findings.items() if not finding.informational]


def disagreement(name: str) -> str | None:
    """Return what is said of a report where that is not what its label says."""
    label = labels()[name]
    verdict, causes = named(name)
    agrees = (
        verdict in label["verdicts"]
        and (not label["primary"] or (causes[:1] and causes[0] in label["primary"]))
        and {*causes} <= {*label["primary"], *label["allowed"]}
    )
    return None if agrees else f"{verdict} {', '.join(causes)}".strip()


def quoted() -> Iterator[str]:
    """Yield each report that the product or a detector's test quotes, as `repository#number`."""
    for folder in QUOTING:
        for path in (ROOT / folder).rglob("*.py"):
            yield from re.findall(r"([\w.-]+#\d+)", path.read_text("utf-8"))


def test_reports_are_judged_as_labelled_save_those_that_are_listed() -> None:
    listed = json.loads(EXPECTED.read_text("utf-8"))["disagreements"]
    found = {name: said for name in labels() if (said := disagreement(name))}

    assert {name: said for name, said in found.items() if name not in listed} == {}
    assert [name for name in listed if name not in found] == [], "right by now: take them out"


def test_files_are_what_the_builder_writes() -> None:
    built = {report.name: report for report in reports()}

    assert built.keys() == labels().keys()
    stale = [
        name
        for name, report in built.items()
        if (FOLDER / f"{name}.json").read_bytes() != case_text(report.case)
        or (FOLDER / f"{name}{LABEL}").read_bytes() != label_text(report)
    ]
    assert stale == [], "PYTHONPATH=tests .venv/bin/python -m cases.build_reports"


def test_files_hold_nothing_that_a_case_does_not_have() -> None:
    unknown = {n: parse_case((FOLDER / f"{n}.json").read_bytes()).unknown for n in labels()}

    assert {name: fields for name, fields in unknown.items() if fields} == {}


def test_labels_use_the_public_names() -> None:
    known = {cause_of(detector) for detector in CATALOG}

    for name, label in labels().items():
        assert {*label["primary"], *label["allowed"]} <= known, name
        assert {*label["verdicts"]} <= {"slow", "normal", "unknown"}, name
        assert label["source"].startswith("https://"), name
        assert not (label["primary"] and label["slow"] is not True), name


def test_reports_that_informed_the_product_are_not_published() -> None:
    known = set(quoted())
    used = []
    for name, label in labels().items():
        found = re.search(r"github\.com/[^/]+/([^/]+)/(?:issues|pull)/(\d+)", label["source"])
        if label["split"] == "published" and found and f"{found[1]}#{found[2]}" in known:
            used.append(name)

    assert used == []
    assert {*INFORMED} <= labels().keys()


def test_a_cause_that_comes_later_becomes_the_right_one_once_it_is_there() -> None:
    """Its reports then get it as `primary`, where they give what its detector needs."""
    known = {cause_of(detector) for detector in CATALOG}
    later = {name: label["later"] for name, label in labels().items() if "later" in label}

    assert later
    assert {name: cause for name, cause in later.items() if cause in known} == {}


@pytest.mark.parametrize("name", [n for n, label in labels().items() if label["slow"] is False])
def test_nothing_is_named_where_nothing_was_wrong(name: str) -> None:
    assert {*named(name)[1]} <= {*labels()[name]["allowed"]}


def test_a_report_that_is_no_case_has_a_known_cause_or_one_that_comes_later() -> None:
    known = {cause_of(detector) for detector in CATALOG}
    sources = {label["source"] for label in labels().values()}

    for one in UNTOLD:
        assert one.url not in sources, one.url
        assert one.later is (one.cause not in known and ":" not in one.cause), one.url
        assert one.needs, one.url


def test_the_page_has_a_line_for_each_report() -> None:
    _, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    table, end, _ = rest.partition(END)

    assert begin
    assert end
    for url in {label["source"] for label in labels().values()} | {one.url for one in UNTOLD}:
        assert f"]({url.partition(' ')[0]})" in table, "make reports"


def test_the_table_says_what_is_right_and_what_would_be_needed() -> None:
    found = rows()
    listed = json.loads(EXPECTED.read_text("utf-8"))["disagreements"]

    assert {row.kind for row in found} <= {*MEANING}
    assert sum(row.kind == "wrong" for row in found) == len(listed)
    assert all(row.needs for row in found if row.kind in {"wrong", "later", "not a case"})


def test_the_section_is_put_at_the_end_once_and_replaced_afterwards() -> None:
    once = put("# Accuracy\n\nFigures.\n", section(rows()[:2]))
    again = put(once, "other")

    assert once.startswith("# Accuracy\n\nFigures.\n\n" + BEGIN)
    assert once.endswith(END + "\n")
    assert again == f"# Accuracy\n\nFigures.\n\n{BEGIN}\n\nother\n\n{END}\n"
