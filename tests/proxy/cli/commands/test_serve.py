"""`slowtok serve` as a process: start, words, errors, and a clean end."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fakes.cases import FIRING, healthy
from fakes.client import CHAT
from fakes.commands import Running, keep_ram_bandwidth, run, served, started
from fakes.upstream import Upstream
from fakes.wire import JSON, reply
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.cli import screen as screen_module
from slowtok.proxy.cli.commands.serve import addresses, outward_address
from slowtok.proxy.cli.screen import MAX_LINES, Screen
from slowtok.proxy.outputs.record import make_record

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
DONE = reply(b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}', JSON)
REFUSED = "http://127.0.0.1:9"
MORE_THAN_A_PIPE_HOLDS = 250  # records of 1 KiB: a pipe takes 64, and the test's reader 128 more


async def ask(address: str, count: int = 1) -> str:
    """Send requests one after the other; return the id of the last one."""
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        for _ in range(count):
            answer = await client.post(CHAT, json={"model": "small", "messages": []})
    return answer.headers["slowtok-id"]


async def own(address: str, path: str) -> Any:
    """Return one of the proxy's own pages."""
    async with httpx.AsyncClient() as client:
        return (await client.get(f"http://{address}{path}")).json()


def children(running: Running) -> list[psutil.Process]:
    return psutil.Process(running.process.pid).children(recursive=True)


UNUSABLE = (
    (
        ("--listen", "127.0.0.1"),
        "listen = '127.0.0.1'",
        "expected HOST:PORT with a port from 0 to 65535, like 127.0.0.1:4141",
    ),
    (
        ("--upstream", "localhost:8080"),
        "upstream = ['localhost:8080']",
        "expected http://HOST:PORT or NAME=http://HOST:PORT, like http://127.0.0.1:8080",
    ),
    (
        ("--listen", "127.0.0.1:0", "--log", "/dev/null/x/log"),
        "log = '/dev/null/x/log'",
        "there is no folder /dev/null/x",
    ),
    (
        ("--listen", "127.0.0.1:0", "--log", "{tmp}/log", "--record", "/dev/null/x"),
        "record = '/dev/null/x'",
        "cannot be used: Not a directory",
    ),
    (
        ("--listen", "192.0.2.1:1", "--allow-no-key"),
        "listen = '192.0.2.1:1'",
        "cannot be used: Cannot assign requested address",
    ),
    (
        ("--config", "/nowhere/slowtok.toml"),
        "config = '/nowhere/slowtok.toml'",
        "cannot be read: No such file or directory",
    ),
)


@pytest.mark.parametrize(
    ("arguments", "shown", "why"), UNUSABLE, ids=[arguments[-2] for arguments, *_ in UNUSABLE]
)
def test_setting_that_cannot_be_used_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], shown: str, why: str, tmp_path: Path
) -> None:
    ended = run("serve", *(a.format(tmp=tmp_path) for a in arguments))

    assert ended.returncode == 2
    assert (ended.stdout, ended.stderr) == ("", f"slowtok: {shown} (from arguments): {why}\n")


@pytest.mark.skipif(sys.platform in {"win32", "darwin"}, reason="the usual directory is elsewhere")
def test_usual_state_directory_that_cannot_be_used_is_named_with_the_remedy() -> None:
    ended = run("--listen", "127.0.0.1:0", env={"SLOWTOK_STATE_DIR": "", "XDG_STATE_HOME": "/proc"})

    assert ended.returncode == 2
    assert ended.stderr == (
        "slowtok: state_dir = '' (from defaults): /proc/slowtok cannot be used: "
        "No such file or directory; --state-dir DIR names another\n"
    )


def test_port_in_use_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        ended = run("--state-dir", str(tmp_path), env={"SLOWTOK_LISTEN": listen})

    assert ended.returncode == 2
    assert ended.stderr == (
        f"slowtok: SLOWTOK_LISTEN = '{listen}' (from environment): cannot be used: "
        f"Address already in use by {psutil.Process().name()} (process {os.getpid()}); "
        "--listen HOST:PORT takes another port\n"
    )


async def test_port_of_another_slowtok_names_the_process_that_was_started(tmp_path: Path) -> None:
    async with served(tmp_path, "--upstream", "http://127.0.0.1:9") as running:
        listen = await running.address()
        ended = await asyncio.to_thread(run, "serve", "--listen", listen)
        assert await running.end() == 0

    assert ended.returncode == 2
    assert f"in use by another slowtok (process {running.process.pid});" in ended.stderr


def test_its_own_address_as_an_engine_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    ended = run("--listen", f"127.0.0.1:{port}", "--upstream", f"http://localhost:{port}/v1")

    assert ended.returncode == 2
    assert f"http://localhost:{port} is slowtok's own address" in ended.stderr


def test_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("\ufeff# of an editor that writes a mark\ncolour = 1\n", encoding="utf-8")
    ended = run("serve", env={"SLOWTOK_CONFIG": str(file)})

    assert ended.returncode == 2
    assert ended.stderr == f"slowtok: colour = 1 (from {file}): unknown key\n"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"listen = "])
def test_configuration_that_is_none(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_bytes(content)
    ended = run("--config", str(file))

    assert ended.returncode == 2
    assert ended.stderr.startswith("slowtok: ")
    assert str(file) in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_cause_that_does_not_exist_cannot_be_disabled(tmp_path: Path) -> None:
    ended = run("--state-dir", str(tmp_path), env={"SLOWTOK_DISABLE": "queued,thermal-trottle"})

    assert ended.returncode == 2
    assert "no cause is called 'thermal-trottle'" in ended.stderr


def test_unknown_words_are_usage_errors() -> None:
    assert run("frobnicate").returncode == 2
    assert run("serve", "--frobnicate").returncode == 2


def test_help_and_version() -> None:
    assert "serve" in run("--help").stdout
    assert run("--version").stdout == "slowtok 0.1.0\n"


@pytest.fixture
def not_under_nohup() -> Iterator[None]:
    """Let what is started here be ended by SIGHUP, even where nohup started the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@POSIX
@pytest.mark.usefixtures("not_under_nohup")
@pytest.mark.parametrize("ending", ["SIGINT", "SIGHUP"])
async def test_without_a_command_it_serves_and_its_terminal_ends_it_with_its_children(
    engine: Upstream, tmp_path: Path, ending: str
) -> None:
    engine.reply = DONE
    keep_ram_bandwidth(tmp_path)
    options = ("--listen", "127.0.0.1:0", "--state-dir", str(tmp_path))
    async with started(*options, "--upstream", f"main={engine.url}") as running:
        address = await running.address()
        request_id = await ask(address)
        line = await running.line()
        of_it = children(running)
        code = await running.end(signal.Signals[ending], group=True)

        # a busy machine greets before the look at the models is over
        assert running.out[0] in {
            f"engine    {engine.url} (llama-server b1-0{models})\n" for models in (": small", "")
        }
        assert running.out[1:3] == [
            f"page      http://{address}/slowtok/\n",
            f"listening http://{address}  (OpenAI clients: http://{address}/v1)\n",
        ]
        assert line.endswith(request_id)
        assert code == 0
        assert running.err == [""]
        assert not any(child.is_running() for child in of_it)
        logged = [json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert [entry["event"] for entry in logged] == ["engine-found", "request"]


@POSIX
async def test_log_on_standard_output_is_nothing_but_json(engine: Upstream, tmp_path: Path) -> None:
    engine.reply = DONE
    async with served(tmp_path, "--upstream", engine.url, "--log", "-") as running:
        request_id = await ask(await running.address(err=True))
        found, request = json.loads(await running.line()), json.loads(await running.line())
        of_it = children(running)
        code = await running.end(signal.SIGTERM)

    assert found["event"] == "engine-found"
    assert (request["event"], request["id"]) == ("request", request_id)
    assert code == 0
    assert running.out[2:] == [""], running.out
    assert not any(child.is_running() for child in of_it)
    assert not (tmp_path / "log.jsonl").exists()


async def counts_with_lost(address: str, lines: int) -> dict[str, Any]:
    """Return the counts once so many lines were lost: the last are written together, and late."""
    async with asyncio.timeout(20):
        while True:
            counts: dict[str, Any] = (await own(address, "/slowtok/status"))["counts"]
            if counts["log_lines_lost"] >= lines:
                return counts


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
async def test_metrics_stay_out_of_another_programs_folder(
    engine: Upstream, tmp_path: Path
) -> None:
    folder = tmp_path / "of-another"
    folder.mkdir()
    engine.reply = DONE
    env = {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    async with served(tmp_path, "--upstream", engine.url, env=env) as running:
        await ask(await running.address())
        assert await running.end() == 0

    assert list(folder.iterdir()) == []


async def test_stuck_terminal_and_full_disk_harm_no_request(
    engine: Upstream, tmp_path: Path
) -> None:
    """Nobody reads the output, and the log is on a disk that is full."""
    engine.reply = DONE
    settings = {"SLOWTOK_JSON": "1", "SLOWTOK_LOG": "/dev/full"}
    async with served(tmp_path, "--upstream", engine.url, env=settings) as running:
        address = await running.address(err=True)
        await ask(address, MORE_THAN_A_PIPE_HOLDS)
        counts = await counts_with_lost(address, MORE_THAN_A_PIPE_HOLDS)
        process = running.process
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            while process.returncode is None:  # noqa: ASYNC110 - wait() would wait for the pipe
                await asyncio.sleep(0.02)

        assert process.returncode == 0
        assert counts["requests"] == MORE_THAN_A_PIPE_HOLDS
        assert counts["failures"] == {}


async def test_no_engine_says_how_to_start_one(tmp_path: Path) -> None:
    async with served(tmp_path, "--upstream", REFUSED) as running:
        address = await running.address()
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"http://{address}{CHAT}", json={})

    assert running.out[0] == f"engine    {REFUSED} (no answer yet)\n"
    assert answer.status_code == 502
    assert REFUSED in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("host", "outward", "url", "scope"),
    [
        ("127.0.0.1", "192.168.1.7", "http://127.0.0.1:4141", ""),
        ("::1", None, "http://[::1]:4141", ""),
        ("0.0.0.0", "192.168.1.7", "http://192.168.1.7:4141", "on every address"),
        ("::", "2001:db8::7", "http://[2001:db8::7]:4141", "on every address"),
        ("0.0.0.0", None, "http://127.0.0.1:4141", "on every address"),
    ],
)
def test_the_addresses_are_ones_that_can_be_opened(
    host: str, outward: str | None, url: str, scope: str
) -> None:
    page, listening = addresses(host, 4141, outward)

    assert page == f"page      {url}/slowtok/"
    assert listening.startswith(f"listening {url}  (")
    assert listening.endswith(f"OpenAI clients: {url}/v1)")
    assert scope in listening


def _own_addresses() -> set[str]:
    return {a.address for interface in psutil.net_if_addrs().values() for a in interface}


def test_the_outward_address_is_one_of_this_machine() -> None:
    found = outward_address(socket.AF_INET)

    assert found is None or found in _own_addresses()


def test_screen_warns_of_missing_readings_and_of_ram_measured_beside_others(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    screen = Screen(json=False)
    screen.event("sampling-down", why="it does not run (NameError\x1b)")
    screen.event("ram-measured-busy", bytes_per_s=12_300_000_000)
    screen.writer.close()

    assert capfd.readouterr().out == (
        "warning   readings of the machine are missing: diagnoses lack their evidence\n"
        "          it does not run (NameError?)\n"
        "warning   RAM bandwidth 12.3 GB/s, measured while other programs used the cores:\n"
        "          it may be too low; it is measured again once they rest\n"
    )


def test_screen_shows_what_people_want_to_see(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    screen = Screen(json=False)
    screen.event("engine-found", url="http://x")
    screen.event("engine-lost", url="http://x\x1b")
    screen.writer.close()

    assert capfd.readouterr().out == "engine    http://x? does not answer any more\n"


@pytest.mark.parametrize(("requests", "lost"), [(1, "1 request"), (2, "2 requests")])
def test_screen_counts_what_died_with_a_worker(
    requests: int, lost: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    screen = Screen(json=False)
    screen.event("worker-died", code=-9, requests=requests)
    screen.writer.close()

    assert capfd.readouterr().out == f"warning   a worker process died, and {lost} with it\n"


def test_screen_shows_what_repeats_itself_once_for_each_place(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    screen = Screen(json=False)
    for line in (7, 7, 9):
        at = f"http_parser.py:{line}"
        screen.event("internal-error", logger="aiohttp.server", error="BadStatusLine", at=at)
    screen.event("internal-error", logger="asyncio", error=None, at=None)
    screen.event("engine-look-failed", engine="small", error="KeyError")
    for _ in range(2):
        screen.event("export-failed", logger="opentelemetry.exporter.x.metric_exporter")
    screen.writer.close()

    shown = [line for line in capfd.readouterr().out.splitlines() if line.startswith("warning")]
    assert shown == [
        "warning   something broke: BadStatusLine at http_parser.py:7 (aiohttp.server);",
        "warning   something broke: BadStatusLine at http_parser.py:9 (aiohttp.server);",
        "warning   something broke: an error (asyncio);",
        "warning   looking at small broke (KeyError): a bug in slowtok;",
        "warning   metrics do not reach otlp_endpoint: look whether its receiver is up;",
    ]


def show(screen: Screen, *, slow: bool, count: int) -> None:
    shown = FIRING["queued"]() if slow else healthy()
    record = make_record(shown, diagnose(shown))
    for _ in range(count):
        screen(shown, None, record)


@pytest.mark.parametrize("terminal", [True, False])
async def test_terminal_is_shown_no_more_than_can_be_read(
    *, terminal: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    monkeypatch.setattr(screen_module, "PACE_S", 0.0)
    screen = Screen(json=False)
    show(screen, slow=False, count=MAX_LINES + 7)
    show(screen, slow=True, count=2)
    later = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.001, later.set_result, None)
    await later  # the second is over
    show(screen, slow=False, count=1)
    screen.close()

    lines = capfd.readouterr().out.splitlines()
    if not terminal:
        assert len(lines) == MAX_LINES + 7 + 2 + 1
        return
    assert sum("normal" in line for line in lines) == MAX_LINES + 1
    assert sum("slow queue" in line for line in lines) == 2
    assert lines[-2] == "          +7 more: see /slowtok/requests"
