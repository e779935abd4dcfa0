"""`slowtok status`: the running proxy's own view, and what is said where there is none."""

import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.commands import run, served
from fakes.upstream import Upstream
from fakes.wire import JSON, reply
from slowtok.config.settings import Settings, load
from slowtok.proxy.cli import running_proxy
from slowtok.proxy.cli.commands.status import run_status
from slowtok.proxy.http.response import error_response

NOBODY = "127.0.0.1:9"
ANOTHER = "; name slowtok's address with --listen HOST:PORT\n"
STATUS = b'{"version":"9.9","listen":"here","engines":[],"looked_at":"the usual ports"}'


def settings(listen: str, *, json: bool = False) -> Settings:
    return load({"listen": listen, "json": json}, {})


@contextmanager
def answering(answer: bytes, host: str = "127.0.0.1") -> Iterator[str]:
    """Somebody at a port who gives one answer; yields the port."""

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield str(listener.getsockname()[1])
        thread.join(5)


def test_status_of_another_version(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(reply(STATUS, JSON, "Connection: close")) as port:
        assert run_status(settings(f"0.0.0.0:{port}")) == 0

    assert capsys.readouterr().out.splitlines()[0].rstrip() == "slowtok      9.9 at here"


def test_json_is_what_the_proxy_said(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(reply(STATUS, JSON, "Connection: close")) as port:
        assert run_status(settings(f"127.0.0.1:{port}", json=True)) == 0

    assert json.loads(capsys.readouterr().out) == json.loads(STATUS)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[",
        reply(b"<html>", "Content-Type: text/html", "Connection: close"),
        reply(b"[]", JSON, "Connection: close"),
        reply(b'{"error":"not found"}', JSON, "Connection: close"),
        reply(b"{}", JSON, "Connection: close", status="404 Not Found"),
    ],
)
def test_somebody_else_is_there(answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(answer) as port:
        assert run_status(settings(f"127.0.0.1:{port}")) == 1

    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f"slowtok: what listens at 127.0.0.1:{port} is not slowtok{ANOTHER}",
    )


def test_somebody_who_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running_proxy, "TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        listen = f"127.0.0.1:{silent.getsockname()[1]}"
        assert run_status(settings(listen)) == 1

    assert capsys.readouterr().err == f"slowtok: {listen} did not answer within 0.05 s\n"


@pytest.mark.parametrize(("status", "code"), [(403, "refused"), (503, "overloaded")])
def test_an_error_of_slowtok_is_told_in_its_own_words(
    status: int, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = error_response(status, "too many connections (limit 9): retry shortly", code)
    head = f"HTTP/1.1 {status} No\r\nContent-Length: {len(refused.body or b'')}\r\n"
    with answering(
        f"{head}{JSON}\r\nConnection: close\r\n\r\n".encode() + (refused.body or b"")
    ) as port:
        assert run_status(settings(f"127.0.0.1:{port}")) == 1

    said = f"slowtok: slowtok at 127.0.0.1:{port}: too many connections (limit 9): retry shortly\n"
    assert capsys.readouterr().err == said


def test_nobody_is_there() -> None:
    ended = run("status", "--listen", NOBODY)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"slowtok: no slowtok answers at {NOBODY} (Connection refused); start one with "
        "`slowtok serve`, or name another address with --listen HOST:PORT\n"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="ended by a signal")
async def test_running_proxy(engine: Upstream, tmp_path: Path) -> None:
    async with served(tmp_path, "--upstream", f"big={engine.url}") as running:
        address = await running.address()
        shown = run("status", "--listen", address)
        whole = run("status", "--listen", address, "--json")
        assert await running.end(signal.SIGTERM) == 0

    assert (shown.returncode, whole.returncode) == (0, 0)
    assert f"at {engine.url}" in shown.stdout
    assert "\nfailures     none" in shown.stdout
    assert "\nown cost     proxy: CPU " in shown.stdout
    assert json.loads(whole.stdout)["engines"][0]["name"] == "big"
