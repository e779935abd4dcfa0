"""docs/case-files.md is held to the types: every field of a case, with its unit."""

import dataclasses
import re
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest

from fakes.cases import healthy
from slowtok.detectors.case.case import SCHEMA, Case
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.cli.commands.replay import replayed
from slowtok.proxy.outputs.case_file import (
    MAX_CASE_BYTES,
    RECORDED,
    RecordedCase,
    dump_case,
    parse_case,
)
from slowtok.proxy.outputs.record import make_record

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "case-files.md").read_text("utf-8")
UNITS = {  # by the ending of a field's name, longer ones first
    "_bytes_per_s": "bytes/s",
    "_bytes_per_token": "bytes/token",
    "_bytes": "bytes",
    "_faults_per_s": "1/s",
    "_s_per_s": "s per s",
    "_tps": "tokens/s",
    "_unix_s": "s since 1970, UTC",
    "_at_s": "s, monotonic clock",
    "_s": "s",
    "_ns": "ns",
    "_ratio": "0 to 1",
    "_tokens": "tokens",
    "_mhz": "MHz",
    "_bits": "bits",
    "_w": "W",
    "_c": "°C",
    "_j": "J",
    "_chars": "characters",
    "_cores": "cores",
}


def parts(kind: Any) -> Iterator[type]:
    """Yield a dataclass and every one that its fields hold, at any depth."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        yield kind
        for inner in typing.get_type_hints(kind).values():
            yield from parts(inner)
    for inner in typing.get_args(kind):
        yield from parts(inner)


PARTS = tuple(dict.fromkeys(parts(Case)))


@cache
def table(heading: str) -> dict[str, tuple[str, str]]:
    """Unit and meaning of each field in the table under a heading."""
    [section] = [
        s for s in re.split(r"^### ", TEXT, flags=re.MULTILINE) if s.startswith(f"{heading}\n")
    ]
    rows = (line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `"))
    return {name.strip(" `"): (unit.strip(), says.strip()) for name, unit, says in rows}


def heading(kind: type) -> str:
    return "The case" if kind is Case else kind.__name__


def literals(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) is Literal:
        return typing.get_args(kind)
    return tuple(value for inner in typing.get_args(kind) for value in literals(inner))


def expected_unit(name: str, kind: Any) -> str | None:
    """The unit that a field's type or name tells; None where neither does."""
    if values := literals(kind):
        return ", ".join(f"`{value}`" for value in values)
    if kind is bool or bool in typing.get_args(kind):
        return "true, false"
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), None)


@pytest.mark.parametrize("kind", PARTS, ids=heading)
def test_every_field_is_documented_in_its_order_and_no_other(kind: type) -> None:
    assert list(table(heading(kind))) == [f.name for f in dataclasses.fields(kind)]


@pytest.mark.parametrize("kind", PARTS, ids=heading)
def test_units_are_those_that_types_and_names_tell(kind: type) -> None:
    hints = typing.get_type_hints(kind)
    documented = table(heading(kind))
    wrong = {
        name: (documented[name][0], unit)
        for name, hint in hints.items()
        if (unit := expected_unit(name, hint)) and documented[name][0] != unit
    }

    assert wrong == {}


@pytest.mark.parametrize("kind", PARTS, ids=heading)
def test_every_field_says_what_it_means_and_whether_it_is_always_there(kind: type) -> None:
    required = {
        f.name
        for f in dataclasses.fields(kind)
        if f.default is f.default_factory is dataclasses.MISSING
    } | ({"schema"} if kind is Case else set())
    said = {name: says for name, (_, says) in table(heading(kind)).items()}

    assert "" not in said.values()
    assert {name for name, says in said.items() if "always there" in says} == required


def test_every_documented_part_is_a_type() -> None:
    headings = set(re.findall(r"^### (.*)$", TEXT, flags=re.MULTILINE))

    assert headings == {heading(kind) for kind in PARTS} | {"recorded", "replay"}


def test_links_between_the_tables_lead_somewhere() -> None:
    anchors = {
        h.lower().replace(" ", "-") for h in re.findall(r"^##+ (.*)$", TEXT, flags=re.MULTILINE)
    }

    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    assert f"`schema` is {SCHEMA}." in TEXT
    assert f"at most {MAX_CASE_BYTES // 2**20} MiB" in TEXT


def test_what_is_recorded_and_what_replay_adds_are_documented() -> None:
    record = make_record(healthy(), diagnose(healthy()))
    read = parse_case(dump_case(healthy(), record, "0.1.0"))
    told = RecordedCase(case=read.case, record=record, slowtok="0.1.0", unknown=("x",))

    assert set(table(RECORDED)) == {"slowtok", "record"}
    assert set(table("replay")) == set(replayed(told, (), expect_again=True)["replay"])
