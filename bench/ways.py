"""The ways to an engine that are compared: none, the naive relay, slowtok, and peers found here.

Each relay has one core to itself, with all its processes; the engine and the client share another.
Asked directly, the engine has its core and the client the relays': it never waits longer than with
a relay between.
"""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from bench.processes import family, keep_to

LOAD_CORE, RELAY_CORE = 0, 1
SLOWTOK = (sys.executable, "-m", "slowtok.proxy")
READY_S = 20.0

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 1000000000;
  upstream engine {{
    server 127.0.0.1:{engine}; keepalive 512; keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port}; client_max_body_size 64m; client_body_buffer_size 4m;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off;
    }}
  }}
}}
"""
HAPROXY = """
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-no-delay
frontend front
  bind 127.0.0.1:{port}
  default_backend engine
backend engine
  http-reuse safe
  server engine 127.0.0.1:{engine}
"""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the engine: a name, a port, and the process between, with all its children."""

    name: str
    port: int
    pid: int | None = None

    def processes(self) -> list[psutil.Process]:
        """Return what runs between client and engine."""
        return [] if self.pid is None else family(self.pid)

    @property
    def client_core(self) -> int:
        """Return the core of the client: the engine's, or the one that no relay needs."""
        return RELAY_CORE if self.pid is None else LOAD_CORE


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until somebody listens."""
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.1):
            return
        time.sleep(0.005)
    raise SystemExit(f"nothing listens on port {port}")


def slowtok_command(port: int, engine: int, state: str) -> list[str]:
    """Return the command that puts slowtok before the engine."""
    settings = ["--upstream", f"http://127.0.0.1:{engine}", "--state-dir", state]
    return [*SLOWTOK, "serve", *settings, "--listen", f"127.0.0.1:{port}"]


def state_folder(path: Path) -> str:
    """Make a state directory that knows the RAM: to measure it would disturb what is measured."""
    path.mkdir()
    known = {"bytes_per_s": 2e10, "measured_unix_s": time.time()}
    (path / "ram.json").write_text(json.dumps(known), encoding="utf-8")
    return str(path)


@contextlib.contextmanager
def started(command: Sequence[str], port: int, core: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server on these cores as long as the block lasts."""
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=partial(keep_to, core),  # noqa: PLW1509 - there are no threads here
    ) as process:
        try:
            wait_for(port)
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def running_engine() -> Iterator[int]:
    """Run the mock engine; give its port."""
    port = free_port()
    with started([sys.executable, "-m", "bench.engine", str(port)], port, LOAD_CORE):
        yield port


@contextlib.contextmanager
def all_ways(engine: int) -> Iterator[list[Way]]:
    """Start every relay before the engine; give them, the direct way first."""
    ways = [Way("direct", engine)]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for name, port, command in _relays(engine, Path(folder)):
            process = stack.enter_context(started(command, port, RELAY_CORE))
            ways.append(Way(name, port, process.pid))
        time.sleep(4)  # all that a start brings with it is over
        yield ways


def _relays(engine: int, folder: Path) -> Iterator[tuple[str, int, list[str]]]:
    port = free_port()
    yield "naive", port, [sys.executable, "-m", "bench.naive", str(port), str(engine)]
    port = free_port()
    yield "slowtok", port, slowtok_command(port, engine, state_folder(folder / "state"))
    for name, program, text in (("nginx", "nginx", NGINX), ("HAProxy", "haproxy", HAPROXY)):
        if shutil.which(program) is None:
            continue
        port, file = free_port(), folder / f"{program}.conf"
        file.write_text(text.format(port=port, engine=engine, folder=folder), encoding="utf-8")
        flags = ["-c", str(file), "-p", str(folder)] if program == "nginx" else ["-f", str(file)]
        yield name, port, [program, *flags]
