"""What slowtok uses of aiohttp's inside is in one module, and may go: streams are slower then."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohappyeyeballs
import aiohttp
import pytest
from aiohttp import client_proto, connector, http, web

from fakes.proxy import serving
from fakes.upstream import Upstream
from slowtok.proxy.http.aiohttp_private import USED, PrivateName, missing
from slowtok.proxy.server import self_test
from slowtok.proxy.server.self_test import UnusableLibraryError, fast_path_works

ROOT = Path(__file__).resolve().parents[3]
RELAY = sorted(str(path) for path in (ROOT / "tests/proxy/relay").glob("test_relay*.py"))
DOCUMENTED = frozenset({"aiohttp", "aiohttp.web", "aiohttp.abc", "aiohttp.typedefs"})
INSIDES = (
    *(client_proto.ResponseHandler, connector.TCPConnector, connector.Connection),
    *(aiohttp.ClientRequest, aiohttp.StreamReader, http.StreamWriter),
    *(web.AppRunner, web.RequestHandler, web.Server, web.BaseRequest, web.StreamResponse),
)
PRIVATE = {
    name
    for inside in INSIDES
    for name in {*dir(inside), *getattr(inside.__init__, "__code__").co_names}  # noqa: B009
    if name.startswith("_") and not name.startswith("__")
}
Told = list[tuple[str, dict[str, Any]]]


def elsewhere() -> list[Path]:
    """Modules that know aiohttp, but the one that may know its inside."""
    return [
        path
        for path in sorted((ROOT / "proxy").rglob("*.py"))
        if path.name != "aiohttp_private.py" and "aiohttp" in path.read_text(encoding="utf-8")
    ]


def private_names(source: str) -> set[str]:
    """Names of aiohttp that it does not document, in a module's source."""
    found = set()
    tree = ast.parse(source)
    of_aiohttp = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).startswith(("aiohttp.", "web.")) for base in node.bases)
    ]
    inside = {id(node) for each in of_aiohttp for node in ast.walk(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "aiohttp":
            if node.module not in DOCUMENTED:
                found.add(str(node.module))
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("aiohttp.")} - DOCUMENTED
        elif isinstance(node, ast.Attribute) and node.attr in PRIVATE:
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if not is_own or id(node) in inside:
                found.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and id(node) in inside:
            found |= {node.name} & PRIVATE
    return found


def test_no_other_module_knows_aiohttps_inside() -> None:
    assert elsewhere() != []
    found = {path.name: private_names(path.read_text(encoding="utf-8")) for path in elsewhere()}

    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from aiohttp.http import StreamWriter",
        "import aiohttp.connector",
        "connection._messages",
        "class A(web.Server):\n    def f(self): return self._kwargs",
        "class A(web.AppRunner):\n    async def _make_server(self): ...",
    ],
)
def test_who_did_would_be_found(line: str) -> None:
    assert private_names(line) != set()


def test_all_that_is_used_is_there() -> None:
    assert list(missing()) == []
    assert [used.name for used in USED if used.is_for_speed] == [
        "aiohttp.StreamReader.read_nowait",
        "aiohttp.web.RequestHandler.writing_paused",
    ]


def rename(used: PrivateName, monkeypatch: pytest.MonkeyPatch, to: object = None) -> None:
    """Let a name be gone wherever it is inherited from, or be something else."""
    owner, _, name = used.name.rpartition(".")
    parts = owner.split(".")
    try:
        holder: Any = importlib.import_module(owner)
    except ImportError:
        holder = getattr(importlib.import_module(".".join(parts[:-1])), parts[-1])
    if isinstance(holder, type) and to is None:
        for each in holder.__mro__:
            if name in vars(each):
                monkeypatch.delattr(each, name)
    elif to is None:
        monkeypatch.delattr(holder, name)
    else:
        monkeypatch.setattr(holder, name, to)


@pytest.mark.parametrize("used", USED, ids=lambda used: used.name)
def test_each_name_is_missed_when_it_is_gone(
    used: PrivateName, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        rename(used, monkeypatch)
    except TypeError:
        pytest.skip("compiled code: it cannot be taken away")

    assert used in missing()


@pytest.mark.parametrize(
    "used", [used for used in USED if used.positional is not None], ids=lambda used: used.name
)
def test_each_call_that_no_longer_works_is_noticed(
    used: PrivateName, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_other_arguments(*, one: int, other: int) -> None:
        pass

    rename(used, monkeypatch, to=takes_other_arguments)

    assert used in missing()


async def test_streams_are_fast_here_and_nothing_is_said() -> None:
    told: Told = []

    assert await fast_path_works(lambda event, **facts: told.append((event, facts)))
    assert told == []


@pytest.mark.parametrize("used", [used for used in USED if used.is_for_speed])
async def test_what_is_only_fast_is_left_with_one_line(
    used: PrivateName, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: Told = []
    rename(used, monkeypatch)

    assert not await fast_path_works(lambda event, **facts: told.append((event, facts)))
    version = f"aiohttp {aiohttp.__version__}"
    facts = {"library": version, "why": f"lacks {used.name}"}
    assert told == [("fast-path-off", facts)]


@pytest.mark.parametrize("what", ["other bytes", "an error", "nothing"])
async def test_so_is_what_behaves_differently(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "LIMIT_S", 0.5)
    read = aiohttp.StreamReader.read_nowait

    def read_nowait(self: aiohttp.StreamReader, n: int = -1) -> bytes:
        if what == "an error":
            raise RuntimeError("not so")
        return read(self, n).swapcase() if what == "other bytes" else b""

    monkeypatch.setattr(aiohttp.StreamReader, "read_nowait", read_nowait)
    told: Told = []

    assert not await fast_path_works(lambda event, **facts: told.append((event, facts)))
    [(event, facts)] = told
    assert event == "fast-path-off"
    assert (
        facts["why"]
        == {
            "other bytes": "changes the bytes of a stream",
            "an error": "breaks a stream (not so)",
            "nothing": "breaks a stream (TimeoutError)",
        }[what]
    )


async def test_what_cannot_be_left_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(web.RequestHandler, "_messages")

    with pytest.raises(UnusableLibraryError) as caught:
        await fast_path_works(lambda *_, **__: None)

    assert "lacks aiohttp.web.RequestHandler._messages" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_so_is_a_library_that_breaks_streams_either_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def breaks(*_: object) -> None:
        raise RuntimeError("not so")

    monkeypatch.setattr(aiohappyeyeballs, "start_connection", breaks)
    monkeypatch.setattr(self_test, "LIMIT_S", 0.5)
    monkeypatch.setattr(self_test, "missing", lambda: iter(()))

    with pytest.raises(UnusableLibraryError, match="breaks a stream"):
        await fast_path_works(lambda *_, **__: None)


def test_command_says_so_and_ends(tmp_path: Path) -> None:
    renamed = "import aiohttp; aiohttp.StreamReader.feed_data = lambda self: None"
    run = "from slowtok.proxy.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", f"{renamed}; {run}", "serve", "--listen", "127.0.0.1:0"],
        env={**os.environ, "SLOWTOK_STATE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"slowtok: aiohttp {aiohttp.__version__} cannot be used: it lacks ")
    assert "aiohttp.StreamReader.feed_data" in line


async def test_relay_hears_of_it(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, engine.url) as proxy:
        assert proxy.proxy.relay._use_fast_path
    monkeypatch.delattr(aiohttp.StreamReader, "read_nowait")
    async with serving(tmp_path, engine.url) as proxy:
        assert not proxy.proxy.relay._use_fast_path


def test_relay_does_all_the_same_without_the_fast_path() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *RELAY]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TEST_WITHOUT_FAST_PATH": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:]
