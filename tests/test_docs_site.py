"""The pages of docs/ are held to the code: commands, links, messages, settings, examples."""

import ast
import itertools
import json
import re
import shlex
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from slowtok.config.settings import Settings
from slowtok.proxy.cli import docs
from slowtok.proxy.cli.main import app
from slowtok.proxy.engines.registry import USUAL_PORTS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
PROXY = "http://127.0.0.1:4141"
OTHERS = {  # programs that are not ours: only that they are meant is known here
    *("cd", "claude", "curl", "docker", "kubectl", "llama-server", "llama-swap", "lms", "ollama"),
    *("jq", "pip", "promtool", "psql", "python", "redis-cli", "systemctl", "valkey-cli", "vllm"),
}


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text(path), flags=re.DOTALL | re.MULTILINE)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield (page, words) of each shell command, without variables and sudo before it.

    Each part of a pipe is one.
    """
    for path in DOCUMENTS:
        for line in "".join(blocks(path, "(?:bash|sh)")).replace("\\\n", " ").splitlines():
            piped = itertools.groupby(shlex.split(line, comments=True), "|".__eq__)
            for part in (list(words) for is_bar, words in piped if not is_bar):
                if words := _without_prefix(part):
                    yield path.name, words


def _without_prefix(words: list[str]) -> list[str]:
    if words[0] == "sudo":
        words = words[3:] if words[1] == "-u" else words[1:]
    return list(itertools.dropwhile(re.compile(r"[A-Z_]+=").match, words))


def headings(path: Path) -> set[str]:
    """The anchors that a page has, as GitHub makes them."""
    plain = re.sub(r"^```.*?^```$", "", text(path), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#+ (.*)$", plain, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@cache
def sentences() -> str:
    """Every text in the source, a line each; what is filled in later breaks the line."""
    files = [
        f for folder in ("config", "detectors", "proxy") for f in (ROOT / folder).rglob("*.py")
    ]
    nodes = (node for path in files for node in ast.walk(ast.parse(text(path))))
    found = (node.value for node in nodes if isinstance(node, ast.Constant))
    return "\n".join(value for value in found if isinstance(value, str))


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs/README.md"
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", text(index)))

    assert named == {path.name for path in PAGES} - {index.name}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_anchors_resolve(path: Path) -> None:
    missing = []
    plain = re.sub(r"^```.*?^```$", "", text(path), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", plain):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if link.startswith(("https://", "http://")):
            continue
        if not target.exists() or (anchor and anchor not in headings(target)):
            missing.append(link)

    assert missing == []


def test_commands_of_slowtok_exist_with_their_options() -> None:
    whole: Any = get_command(app)
    known = whole.commands
    own = {option for parameter in whole.params for option in parameter.opts}
    ours = [words[1:] for _, words in commands() if words[0] == "slowtok"]

    for given in ours:  # plain `slowtok` is `slowtok serve`
        if given and given[0] in own:
            assert len(given) == 1
            continue
        name, *rest = given if given and given[0] in known else ["serve", *given]
        known[name].make_context(name, rest)  # raises for what it does not know
    assert len(ours) > 10


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text(ROOT / "Makefile"), flags=re.MULTILINE))
    asked = {words[1] for _, words in commands() if words[0] == "make" and len(words) > 1}

    assert asked <= targets


def test_nothing_else_is_run_but_programs_that_are_known() -> None:
    named = {words[0] for _, words in commands()}

    assert named - {"slowtok", "make"} - OTHERS == set()


def test_slowtoks_own_addresses_exist() -> None:
    served = {"", "requests", "status", "events", "metrics", "health"}
    asked = re.findall(rf"{PROXY}/slowtok/(\w*)", "".join(text(path) for path in DOCUMENTS))

    assert set(asked) <= served


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_and_json_examples_parse(path: Path) -> None:
    for block in blocks(path, "python"):
        compile(block, path.name, "exec")
    for block in blocks(path, "json"):
        json.loads(block)


def test_the_settings_page_is_what_make_docs_writes() -> None:
    assert text(ROOT / "docs/settings.md") == docs.render(), "run: make docs"


def test_every_setting_is_explained_with_its_option() -> None:
    serve = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    options = {option for parameter in serve.params for option in parameter.opts}
    page = text(ROOT / "docs/settings.md")
    names = {field.alias or name for name, field in Settings.model_fields.items()}

    assert names <= headings(ROOT / "docs/settings.md")
    assert {option for option in options if option in page} == options
    assert all(re.search(rf"^## {name}\n\n[A-Z]", page, flags=re.MULTILINE) for name in names)


@pytest.mark.parametrize(
    ("defaults", "meant"),
    [
        ("# Head.\n\n# One.\n# Two.\na = 1\n", {"a": "One. Two."}),
        ("# Both.\na = 1\nb = 2\n", {"a": "Both.", "b": "Both."}),
        ("# A.\na = 1\n# B.\nb = 2\n", {"a": "A.", "b": "B."}),
        ("# A.\na = 1\n\nb = 2\n", {"a": "A.", "b": ""}),
    ],
)
def test_meanings_are_the_comments_above(defaults: str, meant: dict[str, str]) -> None:
    assert docs.meanings(defaults) == meant


def told() -> list[str]:
    """The messages that troubleshooting quotes: those in boxes, and reasons of a verdict."""
    page = ROOT / "docs/troubleshooting.md"
    boxed = "".join(blocks(page, "text")).splitlines()
    reasons = re.findall(r"^\| `([^`]+)` \|", text(page), flags=re.MULTILINE)
    return [*boxed, *reasons]


@pytest.mark.parametrize("message", told())
def test_messages_of_troubleshooting_are_what_the_source_says(message: str) -> None:
    words = message.removeprefix("slowtok: ")
    parts = [part.strip(" ()'") for part in re.split(r"\.\.\.|[:;,=] ", words)]
    telling = [part for part in parts if len(part) > 10 and not part.startswith("Address already")]

    assert telling
    assert [part for part in telling if part not in sentences()] == []


def test_every_engine_that_is_looked_for_has_a_quick_start() -> None:
    page = ROOT / "docs/engines.md"

    assert set(USUAL_PORTS.values()) <= headings(page)
    assert [port for port in USUAL_PORTS if str(port) not in text(page)] == []


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="times are shown in the zone of the system")
@pytest.mark.parametrize("path", docs.EXPLAINED, ids=lambda path: path.name)
def test_the_explained_request_is_what_slowtok_prints_of_its_record(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = docs.record_in(text(ROOT / docs.EXPLAINED[0]))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    page = docs.with_request(text(ROOT / path), record)
    monkeypatch.undo()
    time.tzset()

    assert record["findings"][0]["cause"] in page
    assert text(ROOT / path) == page, "run: make docs"
    assert "<!-- explained: begin -->" in page or "<!-- finding: begin -->" in page
