"""A real Ollama for tests, with the demo's model in it."""

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from fakes.ollama_child import install
from fakes.running import wait_until_healthy
from slowtok.proxy.cli.demo.children import free_port
from slowtok.proxy.cli.demo.model import fetch_model

EXECUTABLE = os.environ.get("TEST_OLLAMA")
WHY_NOT = "TEST_OLLAMA does not name an ollama executable (CONTRIBUTING.md says how to get one)"
MODEL = "small"
PATIENCE_S = 240.0  # a busy machine is slow


class RunningOllama:
    """An Ollama that listens at `url`; `pid` is the process that serves its API."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid

    @property
    def version(self) -> str:
        said: str = httpx.get(f"{self.url}/api/version", timeout=PATIENCE_S).json()["version"]
        return said

    @property
    def runs_llama_server(self) -> bool:
        """Whether it has a llama-server of its own for each model, as from 0.30 on."""
        return int(self.version.split(".")[1]) >= 30

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send one request that is answered whole."""
        asked = {"model": MODEL, "stream": False, **body}
        reply = httpx.post(self.url + path, json=asked, timeout=PATIENCE_S)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def loaded(self) -> list[dict[str, Any]]:
        """Return what `/api/ps` lists."""
        listed: list[dict[str, Any]] = httpx.get(f"{self.url}/api/ps").json()["models"]
        return listed

    def unload(self, model: str = MODEL) -> None:
        """Take a model out of memory."""
        self.ask("/api/generate", {"model": model, "keep_alive": 0})

    def create(self, name: str, file: Path | None = None, **more: Any) -> None:
        """Make a model of a file, the demo's unless given; `more` is a template or parameters."""
        file = file or fetch_model()
        digest = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
        if httpx.head(f"{self.url}/api/blobs/{digest}").status_code != 200:
            sent = httpx.post(
                f"{self.url}/api/blobs/{digest}", content=file.read_bytes(), timeout=PATIENCE_S
            )
            assert sent.status_code == 201, sent.text
        body = {"model": name, "files": {file.name: digest}, "stream": False, **more}
        made = httpx.post(f"{self.url}/api/create", json=body, timeout=PATIENCE_S)
        assert made.status_code == 200, made.text


@contextlib.contextmanager
def real_ollama(folder: Path, port: int = 0, **environment: str) -> Iterator[RunningOllama]:
    """Run `ollama serve` in a folder, with `MODEL` in it, until the block ends.

    From 0.30 on it starts a llama-server, which it looks for under the folder that it runs in.
    """
    assert EXECUTABLE is not None
    install(folder / "build" / "lib" / "ollama")
    port = port or free_port()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OLLAMA_")}
    settings = {
        "HOME": str(folder),
        "OLLAMA_HOST": f"127.0.0.1:{port}",
        "OLLAMA_MODELS": str(folder / "models"),
        "OLLAMA_NO_CLOUD": "1",
        "OLLAMA_DEBUG": "1",
        "OLLAMA_LLM_LIBRARY": "cpu",
    }
    with (
        (folder / "ollama.log").open("wb") as log,
        subprocess.Popen(
            [EXECUTABLE, "serve"],
            env={**kept, **settings, **environment},
            cwd=folder,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_healthy(f"{url}/api/version", process)
            running = RunningOllama(url, process.pid)
            running.create(MODEL)
            yield running
        finally:
            process.terminate()  # it ends its children
            process.wait(PATIENCE_S)
