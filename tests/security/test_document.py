"""docs/SECURITY.md names tests that exist, all of this folder, and the real defaults."""

import ast
import re
import tomllib
from pathlib import Path

from slowtok.config.settings import Settings

HERE = Path(__file__).resolve().parent
TESTS, ROOT = HERE.parent, HERE.parents[1]
TEXT = (ROOT / "docs" / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)
BOUNDS = re.compile(r"(max|keep)_|_(s|bytes|backups)$")


def names_in(path: Path) -> set[str]:
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


def section(heading: str) -> list[list[str]]:
    """The rows of the table under a heading, without its head."""
    [text] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_every_test_that_is_named_exists() -> None:
    assert len(NAMED) > 30
    assert [(path, name) for path, name in NAMED if name not in names_in(TESTS / path)] == []


def test_every_claim_names_a_test() -> None:
    assert [row[0] for row in section("What holds") if "::test_" not in row[1]] == []


def test_every_file_of_this_folder_holds_a_claim() -> None:
    held = {path for path, _ in NAMED}
    files = {f"security/{path.name}" for path in HERE.glob("test_*.py")}

    assert files - held == {"security/test_document.py"}


def test_limits_are_those_that_are_set_and_all_of_them() -> None:
    defaults = tomllib.loads((ROOT / "config" / "defaults.toml").read_text(encoding="utf-8"))
    told = {row[0].strip("`"): row[1] for row in section("Limits")}

    assert told == {name: str(defaults[name]) for name in told}
    bounding = {name for name in Settings.model_fields if BOUNDS.search(name)}
    assert bounding - set(told) == set()


def test_limits_cannot_be_switched_off_by_accident() -> None:
    """Each has a least value, so that an empty or negative one is refused."""
    told = [row[0].strip("`") for row in section("Limits")]
    least = {name: Settings.model_fields[name].metadata for name in told}

    assert [name for name, limits in least.items() if not limits] == []
