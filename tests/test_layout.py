"""The house rules: sizes, directions and purity, and that the tools that hold them bite."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("proxy", "detectors", "config")
MAY_IMPORT = {
    "config": ("slowtok.config",),
    "detectors": ("slowtok.detectors", "slowtok.config"),
    "proxy": ("slowtok.proxy", "slowtok.detectors", "slowtok.config"),
    "proxy/stream": ("slowtok.proxy.stream", "slowtok.detectors.case.case"),
}
PURE_FOLDERS = ("detectors", "proxy/stream")
IMPURE_LINES = (
    "import time",
    "import datetime; datetime.datetime.now()",
    "import random",
    "import asyncio",
    "import threading",
    "import concurrent.futures",
    "import multiprocessing",
    "import subprocess",
    "import aiohttp",
    "import ctypes",
    "import gguf",
    "import http.client",
    "import io",
    "import os.path",
    "import pathlib",
    "import psutil",
    "import pynvml",
    "import shutil",
    "import socket",
    "import tempfile",
    "import urllib.request",
    "import logging",
    "import rich",
    "import structlog",
    "import warnings",
    "import proxy.app",
    "import detectors.case",
    "import config.settings",
)

WRONG_WAYS = (  # imports that no contract of import-linter may let by, from each room to the next
    ("config.settings", "detectors.case.case"),
    ("detectors.diagnosis.catalog", "proxy.runtime.utc"),
    ("detectors.case.case", "detectors.expectation.memory"),
    ("detectors.expectation.memory", "detectors.analysis.gpu.clocks"),
    ("detectors.analysis.gpu.clocks", "detectors.causes.gpu.power_cap"),
    ("detectors.causes.gpu.power_cap", "detectors.diagnosis.precedence"),
    ("detectors.causes.host.cpu_quota", "detectors.causes.host.host_contention"),
    ("proxy.cli.running", "proxy.__main__"),
    ("proxy.app", "proxy.cli.running"),
    ("proxy.workers.wire", "proxy.app"),
    ("proxy.workers.remote", "proxy.web.api"),
    ("proxy.server.edge", "proxy.workers.wire"),
    ("proxy.observe.concurrency", "proxy.server.edge"),
    ("proxy.observe.occupancy", "proxy.inspection.seen"),
    ("proxy.outputs.sink", "proxy.observe.observer"),
    ("proxy.relay.exchange", "proxy.outputs.record"),
    ("proxy.runs.turn", "proxy.relay.exchange"),
    ("proxy.runs.chain", "proxy.history.recent"),
    ("proxy.sampling.ring", "proxy.engines.engine"),
    ("proxy.upstream.reply_head", "proxy.sampling.ring"),
    ("proxy.http.headers", "proxy.upstream.reply_head"),
    ("proxy.stream.framing", "proxy.http.headers"),
    ("proxy.runtime.utc", "proxy.stream.framing"),
)


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def imports(path: Path) -> Iterator[str]:
    """Yield every imported name in full: `from a.b import c` gives `a.b.c`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{a.name}" for a in node.names)


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def banned_lines(source: str, path: str) -> set[int]:
    """Lines of `source` that ruff's banned-api rule flags when the file lies at `path`."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID251"]
    command += ["--output-format", "json", "--stdin-filename", path, "-"]
    done = subprocess.run(
        command, input=source, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return {finding["location"]["row"] for finding in json.loads(done.stdout)}


def test_no_module_is_too_long_to_read() -> None:
    long = {
        str(path.relative_to(ROOT)): line_count(path)
        for path in modules(*FOLDERS, "tests", "bench", "fit")
        if line_count(path) > 500
    }

    assert long == {}


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in modules(*FOLDERS)
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]

    assert silent == []


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_dependencies_point_one_way(folder: str) -> None:
    wrong = [
        (str(path.relative_to(ROOT)), name)
        for path in modules(folder)
        for name in imports(path)
        if is_within(name, ("slowtok",)) and not is_within(name, MAY_IMPORT[folder])
    ]

    assert wrong == []


def test_imports_are_absolute() -> None:
    relative = [
        (str(path.relative_to(ROOT)), name)
        for path in modules(*FOLDERS, "tests")
        for name in imports(path)
        if name.startswith(".")
    ]

    assert relative == []


@pytest.mark.parametrize("folder", PURE_FOLDERS)
def test_purity_rule_leaves_pure_imports_alone(folder: str) -> None:
    source = (
        "import dataclasses, math, re, statistics, orjson\nimport slowtok.detectors.case.case\n"
    )

    assert banned_lines(source, f"{folder}/example.py") == set()


@pytest.mark.parametrize("folder", PURE_FOLDERS)
def test_purity_rule_bites_at_every_impure_import(folder: str) -> None:
    flagged = banned_lines("\n".join(IMPURE_LINES), f"{folder}/example.py")

    missed = [line for row, line in enumerate(IMPURE_LINES, 1) if row not in flagged]
    assert missed == []


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("import slowtok.proxy.relay.relay", "detectors/causes/gpu/example.py"),
        ("import slowtok.config.settings", "proxy/stream/dialects/example.py"),
        ("import proxy.app", "proxy/example.py"),
        ("import detectors.case", "tests/example.py"),
    ],
)
def test_wrong_way_imports_are_banned(line: str, path: str) -> None:
    assert banned_lines(line, path) == {1}


def linted_imports(root: Path) -> str:
    """What import-linter says of the packages below `root`, by the contracts in pyproject.toml."""
    code = "from importlinter.cli import lint_imports_command as command; command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return " ".join(done.stdout.split())  # it breaks lines


def with_sources(tmp_path: Path) -> Path:
    """A copy of the sources under the name of their package."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / "slowtok" / folder)
    return tmp_path


def test_rooms_import_only_downwards(tmp_path: Path) -> None:
    assert " 0 broken" in linted_imports(with_sources(tmp_path))


def test_contracts_bite_at_every_wrong_way(tmp_path: Path) -> None:
    sources = with_sources(tmp_path) / "slowtok"
    for module, other in WRONG_WAYS:
        with (sources / f"{module.replace('.', '/')}.py").open("a", encoding="utf-8") as file:
            file.write(f"import slowtok.{other}\n")

    said = linted_imports(tmp_path)

    ways = {(m, o): f"slowtok.{m} -> slowtok.{o} (l." for m, o in WRONG_WAYS}
    assert [way for way, line in ways.items() if line not in said] == []


def test_no_module_of_the_proxy_lies_outside_its_rooms() -> None:
    loose = {path.name for path in (ROOT / "proxy").glob("*.py")}

    assert loose == {"__init__.py", "__main__.py", "app.py"}


def misspelt(root: Path) -> list[str]:
    """The files below `root` in which codespell finds something, by the rules in pyproject.toml."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import codespell_lib; raise SystemExit(codespell_lib._script_main())",
        ],
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
    )
    assert done.stderr == ""
    return sorted(line.partition(":")[0] for line in done.stdout.splitlines())


def test_spelling_is_read_in_code_pages_and_workflows_and_not_in_data(tmp_path: Path) -> None:
    pytest.importorskip("codespell_lib")  # comes with `make check`
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    wrong = "te" + "h"
    read = ["./.github/workflows/ci.yml", "./README.md", "./docs/page.md", "./proxy/app.py"]
    data = ["./.git/x", "./config/gpus.csv", "./proxy/web/page/x.min.js", "./requirements/a.lock"]
    for name in (*read, *data):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {wrong}\n", encoding="utf-8")

    assert misspelt(tmp_path) == read
