"""The documentation is held to the code: commands, fields, headers, settings, modules, links."""

import ast
import asyncio
import re
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.cases import FIRING, case, healthy
from fakes.commands import WAIT_S, environment, served
from fakes.records import full_record, names
from fakes.upstream import Upstream, listening
from fakes.wire import JSON, reply
from slowtok.detectors.diagnosis.catalog import CATALOG, cause_of
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.headers import diagnosis_headers
from slowtok.proxy.outputs.record import make_record

ROOT = Path(__file__).resolve().parent.parent
README, FIELDS, MAP = "README.md", "docs/headers-and-records.md", "docs/ARCHITECTURE.md"
PAGES = tuple(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))
DOCUMENTS = (README, "CHANGELOG.md", "CONTRIBUTING.md", *PAGES)
ADDRESS = "127.0.0.1:4141"

NOT_RUN = {
    "make demo": "takes a minute; tests/proxy/cli/demo runs its parts",
    "make run": "goes on until it is stopped; cli/commands/test_serve.py runs the command",
    "pip install .": "tests/test_packaging.py builds and reads the wheel",
    "slowtok": "goes on until it is stopped; tests/proxy/cli/commands/test_serve.py runs it",
    "slowtok --upstream big=http://127.0.0.1:9000 --upstream small=http://127.0.0.1:9001": (
        "goes on until it is stopped; its arguments are in tests/config/test_settings.py"
    ),
}

CHAT = b'{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text(README), flags=re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines() if line]


def first_columns(name: str, heading: str) -> Iterator[str]:
    """Yield what stands in backticks in the first column of the tables under a heading."""
    section = re.split(r"^## ", text(name), flags=re.MULTILINE)
    [found] = [part for part in section if part.startswith(f"{heading}\n")]
    for line in found.splitlines():
        if line.startswith("|"):
            yield from re.findall(r"`([^`]+)`", line.split("|")[1])


def logged_events() -> Iterator[str]:
    """Yield the names of the events that the code writes into the log."""
    loggers = {"log_event", "_log_event", "_log_engine", "_event_logger"}
    for path in sorted((ROOT / "proxy").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            called = call.func.func if isinstance(call.func, ast.Call) else call.func
            if ast.unparse(called).rpartition(".")[2] in loggers:
                told = (part for argument in call.args for part in ast.walk(argument))
                texts = (part.value for part in told if isinstance(part, ast.Constant))
                yield from (text for text in texts if isinstance(text, str))


@pytest.fixture
async def engine() -> AsyncIterator[Upstream]:
    async with listening("llama-server") as upstream:
        upstream.reply = reply(CHAT, JSON)
        yield upstream


def run(command: list[str], address: str, state_dir: Path) -> str:
    """Run it as a user would whose proxy listens at `address`; return what it says."""
    tools = Path(sys.executable).parent
    here = environment(SLOWTOK_LISTEN=address, SLOWTOK_STATE_DIR=str(state_dir))
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**here, "PATH": f"{tools}:{here['PATH']}"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == 0, (command, ended.stderr)
    return ended.stdout


def test_every_command_that_is_not_run_is_in_the_readme() -> None:
    assert set(NOT_RUN) <= set(commands())


@pytest.mark.skipif(sys.platform == "win32", reason="the commands are for a POSIX shell")
async def test_every_other_command_of_the_readme_works(engine: Upstream, tmp_path: Path) -> None:
    to_run = [command for command in commands() if command not in NOT_RUN]
    said = {}
    async with served(tmp_path, "--upstream", engine.url) as running:
        address = await running.address()
        for command in to_run:
            at_it = command.replace(ADDRESS, address)
            said[command] = await asyncio.to_thread(run, ["bash", "-c", at_it], address, tmp_path)

    [curl, *_] = to_run
    assert curl.startswith("curl -i ")
    assert "slowtok-verdict: unknown" in said[curl]
    assert "unknown" in said["slowtok tail --no-follow"]
    assert said["slowtok explain"].startswith("UNKNOWN")
    assert "No run yet" in said["slowtok runs"]
    assert len(to_run) == 5


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.split()[1])
async def test_python_examples_work(block: str, engine: Upstream, tmp_path: Path) -> None:
    compile(block, README, "exec")
    async with served(tmp_path, "--upstream", engine.url) as running:
        address = await running.address()
        example = block.replace(ADDRESS, address)
        said = await asyncio.to_thread(run, [sys.executable, "-c", example], address, tmp_path)

    assert "unknown" in said


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b(?=[`\s]|$)", " ".join(code(text(document)))))

    assert named <= targets


def code(document: str) -> list[str]:
    """Everything that stands in code blocks and backticks."""
    fenced = re.findall(r"^```\w*\n(.*?)^```$", document, flags=re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```.*?^```$", "", document, flags=re.DOTALL | re.MULTILINE)
    return [*fenced, *re.findall(r"`([^`\n]+)`", rest)]


def documented_fields() -> set[str]:
    return set(first_columns(FIELDS, "The record"))


def record_fields() -> set[str]:
    """The fields of a full record, without what differs from cause to cause."""
    unread = replace(healthy(), host=())
    of_host = {"host": make_record(unread, diagnose(unread))["host"]}
    every = (*names(full_record()), *names(of_host))
    found = {re.sub(r"\.(median|p10|p90)$", "", name) for name in every}
    groups = ("budget_ms_per_token", "gpu[].reasons", "gpu[].throttled_ms", "failed", "run.reads")
    return {next((g for g in groups if name.startswith(f"{g}.")), name) for name in found}


def test_every_field_of_a_record_is_documented() -> None:
    assert record_fields() - documented_fields() == set()


def test_every_documented_field_is_in_a_record() -> None:
    assert documented_fields() - record_fields() == set()


def test_every_event_of_the_log_is_documented_and_no_other() -> None:
    assert set(first_columns(FIELDS, "Other lines of the log")) == set(logged_events())


def test_every_header_is_documented_and_no_other() -> None:
    slow, unexplained = FIRING["queued"](), case(ms_per_token=40)
    written = {
        name for made in (slow, unexplained) for name in diagnosis_headers(made, diagnose(made))
    }
    documented = set(first_columns(FIELDS, "Response headers"))

    assert documented == written | {"slowtok-id", "slowtok-previous"}


def test_every_cause_that_can_be_named_is_in_the_readme() -> None:
    causes = {cause_of(detector) for detector in CATALOG}
    [named] = re.findall(
        r"^## What it can name today\n\n(.*?)\n\n", text(README), re.MULTILINE | re.DOTALL
    )

    assert set(re.findall(r"`([a-z-]+)`", named)) == causes


def test_map_has_every_room_and_no_other() -> None:
    rooms = {
        path.parent.relative_to(ROOT).as_posix()
        for folder in ("proxy", "detectors")
        for path in (ROOT / folder).glob("*/__init__.py")
    }

    assert set(first_columns(MAP, "The rooms")) == rooms | {"config"}


def test_layers_of_the_map_are_those_that_are_checked() -> None:
    contracts = tomllib.loads(text("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    checked = [
        {f"{folder}/{room}" for room in row.split(" | ")}
        for folder in ("proxy", "detectors")
        for contract in contracts
        if contract.get("containers") == [f"slowtok.{folder}"]
        for row in contract["layers"]
    ]
    rows = re.findall(r"^\| `([\w/]+)` \| (\d+) \|", text(MAP), re.MULTILINE)
    told = [{room for room, layer in rows if int(layer) == number} for number in range(1, 17)]

    assert told == [row for row in checked if any((ROOT / room).is_dir() for room in row)]


def test_the_way_of_a_request_is_short() -> None:
    way = list(first_columns(MAP, "The way of a streamed request"))

    assert len(way) <= 12
    assert [name for name in way if not (ROOT / name).is_file()] == []


def test_other_files_that_the_map_names_exist() -> None:
    named = {name for name in code(text(MAP)) if re.fullmatch(r"[\w/]+\.(py|md|toml)", name)}
    files = {name for name in named if "/" in name}

    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_plain_text(document: str) -> None:
    """No pictures made of characters beside arrows, ticks and lines of drawings."""
    allowed = "°µ…✓─►◄┘┐┤▼│→┌└├┬┴┼"
    odd = {c for c in text(document) if not c.isascii() and c not in allowed}

    assert odd == set()
