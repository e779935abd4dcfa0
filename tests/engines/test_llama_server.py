"""A real llama-server as a router: it starts a process for each model that is asked for.

PyPI's xllamacpp cannot be one, so this runs where `TEST_LLAMA_SERVER` names an executable.
"""

import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.cgroups import cpu_quota
from fakes.running import Answer, RunningProxy, chat, running_proxy, wait_until_healthy
from slowtok.proxy.cli.demo.children import free_port
from slowtok.proxy.cli.demo.model import fetch_model

EXECUTABLE = os.environ.get("TEST_LLAMA_SERVER")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not EXECUTABLE, reason="TEST_LLAMA_SERVER does not name a llama-server executable"
    ),
]


@dataclass(frozen=True, slots=True)
class Router:
    """A router that listens at `url`, and slowtok in front of it."""

    url: str
    pid: int
    proxy: RunningProxy

    def states(self) -> dict[str, str]:
        listed = httpx.get(f"{self.url}/v1/models", timeout=10).json()["data"]
        return {entry["id"]: entry["status"]["value"] for entry in listed}

    def until_loaded(self, models: list[str]) -> None:
        """Wait until these models are loaded, and the others are not."""
        wanted = {name: "loaded" if name in models else "unloaded" for name in ("small", "other")}
        for _ in range(100):
            if self.states() == wanted:
                return
            threading.Event().wait(0.1)
        raise AssertionError(self.states())

    def until_known(self, model: str) -> dict[str, Any]:
        """Wait until the proxy has seen that this model alone is loaded, and return the engine."""
        for _ in range(100):
            engine: dict[str, Any] = self.proxy.get("/slowtok/status")["engines"][0]
            if engine["loaded_models"] == [model]:
                return engine
            threading.Event().wait(0.1)
        raise AssertionError(engine["loaded_models"])

    def ask(self, model: str, **more: Any) -> Answer:
        return self.proxy.ask({**chat(tokens=8, stream=True), "model": model, **more})


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    """Run a router that offers two models and keeps one; none of them is loaded."""
    models = tmp_path / "models"
    models.mkdir()
    for name in ("small", "other"):
        (models / f"{name}.gguf").symlink_to(fetch_model())
    port = free_port()
    command = [str(EXECUTABLE), "--models-dir", str(models), "--models-max", "1", "--port"]
    command += [str(port), "-c", "2048", "-np", "1", "-ngl", "0", "-t", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_healthy(f"{url}/health", server)
            with running_proxy(tmp_path / "state", url) as proxy:
                yield Router(url, server.pid, proxy)
        finally:
            server.terminate()
            server.wait(timeout=30)


def test_a_model_that_is_not_loaded_is_a_load_and_not_a_queue(router: Router) -> None:
    first, again, other = (router.ask(name).record for name in ("small", "small", "other"))

    for record in (first, other):
        assert record["timing"]["load_ms"] > 0
        assert "queue_ms" not in record["timing"]
    assert "load_ms" not in again["timing"]
    engine = router.until_known("other")
    assert (engine["context_tokens"], engine["slots"], engine["threads"]) == (2048, 1, 1)


def test_two_models_that_push_each_other_out(router: Router) -> None:
    with cpu_quota(router.pid, 0.1):  # a slow disk or CPU: loading takes over a second
        for name in ("small", "other"):
            router.ask(name)
        answer = router.ask("small")

    assert answer.record.get("phase") in ("load", "prefill")  # the quota slows that, too
    (finding,) = (f for f in answer.record["findings"] if f["cause"] == "model-load")
    assert "other was loaded in between and took its place" in finding["summary"]
    assert "--models-max 2" in finding["remedy"]


def test_models_that_take_turns_faster_than_slowtok_looks(router: Router) -> None:
    router.ask("small")
    asked = ("other", "small", "other", "other", "small", "small")
    ids = []
    for name in asked:  # its record is not waited for
        url, body = f"{router.proxy.url}/v1/chat/completions", {**chat(tokens=4), "model": name}
        ids.append(httpx.post(url, json=body, timeout=60).headers["slowtok-id"])

    timings = [router.proxy.record(request_id)["timing"] for request_id in ids]
    waited = [timing.get("load_ms", 0) > 50 for timing in timings]
    assert waited == [True, True, True, False, True, False]


def test_nothing_that_slowtok_asks_loads_a_model(router: Router) -> None:
    listed = httpx.get(f"{router.proxy.url}/v1/models", timeout=10).json()
    router.proxy.get("/slowtok/status")

    assert {entry["id"] for entry in listed["data"]} == {"small", "other"}
    assert router.states() == {"small": "unloaded", "other": "unloaded"}


def test_a_model_that_was_loaded_and_unloaded_by_hand(router: Router) -> None:
    router.ask("small")
    for action, then in (("unload", []), ("load", ["small"])):
        url = f"{router.proxy.url}/models/{action}"
        assert httpx.post(url, json={"model": "small"}, timeout=60).json() == {"success": True}
        router.until_loaded(then)

    answer = router.ask("small")

    assert answer.status == 200
    assert answer.record["tokens"]["cached"] == 0
    assert "prompt-cache-miss" not in answer.causes


def test_a_model_that_it_does_not_have(router: Router) -> None:
    answer = router.ask("nope")

    assert answer.status == 400
    assert answer.causes == []
