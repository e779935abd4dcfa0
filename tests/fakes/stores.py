"""Real stores, started where they are installed, and one in memory that does as it is told."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from slowtok.proxy.cli.demo.children import free_port
from slowtok.proxy.history.peers.peer_key import PeerKey
from slowtok.proxy.history.peers.peers import Peers

STARTS_S = 30.0
PASSWORD = "s3cret"
UNPRIVILEGED = "nobody"  # PostgreSQL refuses to run as root
_POSTGRESQL = (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), None)


@dataclass(frozen=True)
class Running:
    """A store that runs."""

    url: str
    process: subprocess.Popen[bytes]


class Memory:
    """A store in memory; raises `fault` while there is one."""

    def __init__(self, now_unix_s: float) -> None:
        self.rows: dict[str, dict[str, bytes]] = {}
        self.fault: Exception | None = None
        self.time_unix_s = now_unix_s
        self.calls = 0
        self.closed = False

    def check(self) -> None:
        self._call()

    def read(self, place: PeerKey) -> dict[str, bytes]:
        self._call()
        return dict(self.rows.get(place.setup, {}))

    def write(self, place: PeerKey, row: bytes, *, at_unix_s: float) -> None:
        self._call()
        self.rows.setdefault(place.setup, {})[place.card] = row

    def forget(self, setup: str, cards: list[str]) -> None:
        self._call()
        for card in cards:
            del self.rows[setup][card]

    def now_unix_s(self) -> float:
        self._call()
        return self.time_unix_s

    def close(self) -> None:
        self.closed = True

    def _call(self) -> None:
        self.calls += 1
        if self.fault is not None:
            raise self.fault


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def peers_at(store: Memory, clock: Clock | None = None) -> Peers:
    """What is shared through a store in memory; `sync` is the test's to call."""
    return Peers(store, named="memory", now_s=clock or Clock())


def valkey_program() -> str | None:
    return shutil.which("valkey-server") or shutil.which("redis-server")


def postgresql_program(name: str) -> str | None:
    places = (shutil.which(name, path=str(place) if place else None) for place in _POSTGRESQL)
    return next((found for found in places if found), None)


@contextlib.contextmanager
def running_valkey() -> Iterator[Running]:
    """Run Valkey or Redis with a password; it keeps nothing on disk."""
    program, port = valkey_program(), free_port()
    assert program is not None
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--requirepass", PASSWORD]
        with _process([*command, "--save", "", "--dir", folder]) as process:
            _until(process, (OSError,), lambda: socket.create_connection(("127.0.0.1", port), 1))
            yield Running(f"redis://:{PASSWORD}@127.0.0.1:{port}/0", process)


@contextlib.contextmanager
def running_postgresql() -> Iterator[Running]:
    """Run PostgreSQL with a password, its files beside nobody else's."""
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    initdb, server = postgresql_program("initdb"), postgresql_program("postgres")
    assert initdb is not None
    assert server is not None
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        (folder / "password").write_text(PASSWORD)
        if user is not None:
            for path in (folder, folder / "password"):
                shutil.chown(path, user)
        made = [initdb, "-D", f"{folder}/data", "-U", "slowtok", "-A", "scram-sha-256", "--no-sync"]
        subprocess.run(
            [*made, f"--pwfile={folder}/password", "-E", "UTF8", "--locale=C"],
            user=user, cwd=folder, check=True, capture_output=True, timeout=STARTS_S,
        )  # fmt: skip
        command = [server, "-D", f"{folder}/data", "-F", "-k", str(folder), "-p", str(port)]
        with _process([*command, "-h", "127.0.0.1"], user=user, cwd=folder) as process:
            url = f"postgresql://slowtok:{PASSWORD}@127.0.0.1:{port}/postgres"
            # it listens before it lets anybody in
            _until(process, (psycopg.OperationalError,), lambda: psycopg.connect(url))
            yield Running(url, process)


@contextlib.contextmanager
def _process(
    command: list[str], user: str | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, user=user, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _until(
    process: subprocess.Popen[bytes],
    not_yet: tuple[type[Exception], ...],
    connect: Callable[[], socket.socket | psycopg.Connection],
) -> None:
    give_up_s = time.monotonic() + STARTS_S
    while time.monotonic() < give_up_s and process.poll() is None:
        with contextlib.suppress(*not_yet):
            connect().close()
            return
        time.sleep(0.05)
    raise TimeoutError("the store did not start")
