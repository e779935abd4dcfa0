"""A real proxy, run as a user runs it, and requests through it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from slowtok.proxy.cli.demo.children import free_port

START_S = 30.0
JSON = Mapping[str, Any]

STORY = "Tell me a long story about a dragon and a lighthouse."
DECODE_TOKENS = 400  # long enough to be judged at 150 tokens/s: over two seconds


def chat(text: str = STORY, *, tokens: int = DECODE_TOKENS, **more: Any) -> dict[str, Any]:
    """Return a chat whose answer has this length, and is the same each time."""
    message = {"role": "user", "content": text}
    fixed = {"temperature": 0, "seed": 7, "ignore_eos": True}
    return {"model": "m", "messages": [message], "max_tokens": tokens, **fixed, **more}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got, and what the proxy recorded about it."""

    status: int
    headers: httpx.Headers
    body: bytes
    record: dict[str, Any]

    @property
    def causes(self) -> list[str]:
        """The causes that explain a slow request, without what merely informs."""
        found = self.record["findings"]
        return [finding["cause"] for finding in found if not finding.get("informational")]


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """A proxy that listens at `url`."""

    url: str
    pid: int
    state_dir: Path

    def ask(self, body: JSON, path: str = "/v1/chat/completions") -> Answer:
        """Send one generation request and wait for its record."""
        with httpx.stream("POST", self.url + path, json=body, timeout=300) as reply:
            whole = b"".join(reply.iter_raw())
        record = self.record(reply.headers["slowtok-id"])
        return Answer(reply.status_code, reply.headers, whole, record)

    def record(self, request_id: str) -> dict[str, Any]:
        """Return a request's record, waiting for it as the API does."""
        found: dict[str, Any] = self.get(f"/slowtok/requests/{request_id}")
        return found

    def get(self, path: str) -> Any:
        """Return one of the proxy's own pages."""
        reply = httpx.get(self.url + path, timeout=10)
        assert reply.status_code == 200, reply.text
        return reply.json()


@contextlib.contextmanager
def running_proxy(
    state_dir: Path, *upstreams: str, options: tuple[str, ...] = ()
) -> Iterator[RunningProxy]:
    """Run `slowtok serve` in front of `upstreams` until the block ends."""
    port = free_port()
    named = [part for url in upstreams for part in ("--upstream", url)]
    command = [sys.executable, "-m", "slowtok.proxy", "serve", "--listen", f"127.0.0.1:{port}"]
    log = state_dir / "console.txt"
    state_dir.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *named, "--state-dir", str(state_dir), *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if not k.startswith("SLOWTOK_")},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_healthy(f"{url}/slowtok/health", process)
            yield RunningProxy(url, process.pid, state_dir)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0, log.read_text()


def wait_until_healthy(
    url: str, process: subprocess.Popen[bytes], start_s: float = START_S
) -> None:
    """Wait until `url` answers 200; fail when its process ends before."""
    deadline_s = time.monotonic() + start_s
    while time.monotonic() < deadline_s:
        assert process.poll() is None, f"ended with {process.returncode} before it listened"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=2).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"{url} did not answer")


def measured_ram_bytes_per_s() -> float:
    """Return the bandwidth of this machine's RAM, which takes some seconds to measure."""
    command = [sys.executable, "-m", "slowtok.proxy.sampling.host.ram_bandwidth"]
    measured = subprocess.run(command, capture_output=True, check=True, timeout=60)
    return max(float(json.loads(line)["bytes_per_s"]) for line in measured.stdout.splitlines())


def keep_ram_bandwidth(state_dir: Path, bytes_per_s: float) -> None:
    """Give a state directory a bandwidth that was measured before, so that nobody waits for it."""
    state_dir.mkdir(parents=True, exist_ok=True)
    kept = {"bytes_per_s": bytes_per_s, "measured_unix_s": time.time()}
    (state_dir / "ram.json").write_text(json.dumps(kept))
