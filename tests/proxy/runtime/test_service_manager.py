"""What systemd is told, by a stand-in for its socket."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slowtok.proxy.runtime.service_manager import tell_ready, tell_stopping

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="systemd is Linux's")


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.setblocking(False)
        yield opened


def test_it_is_told_at_its_socket(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

    tell_ready()
    tell_stopping(60.0)

    assert manager.recv(100) == b"READY=1"
    assert manager.recv(100) == b"STOPPING=1\nEXTEND_TIMEOUT_USEC=72000000"


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_its_socket_may_be_an_abstract_one(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.bind(f"\0{tmp_path}")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{tmp_path}")

    tell_ready()

    assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nowhere/notify"])
def test_where_nobody_listens_nothing_happens(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)

    tell_ready()
    tell_stopping(8.0)
