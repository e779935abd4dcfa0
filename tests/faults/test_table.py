"""The table of faults names tests that exist, and every test of this folder."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
NAMED = re.findall(r"`([\w/.]+)::(\w+)`", (HERE / "README.md").read_text(encoding="utf-8"))


def names_in(path: Path) -> set[str]:
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {n.name for n in nodes if isinstance(n, functions) and n.name.startswith("test_")}


def test_every_test_that_is_named_exists() -> None:
    assert NAMED
    assert [(path, name) for path, name in NAMED if name not in names_in(TESTS / path)] == []


def test_every_file_of_this_folder_is_named() -> None:
    named = {path for path, _ in NAMED}
    files = {f"faults/{path.name}" for path in HERE.glob("test_*.py")} - {"faults/test_table.py"}

    assert files - named == set()
