"""A real llama-swap that starts real llama-servers, between the demo's model and slowtok.

It runs where `TEST_LLAMA_SWAP` names the executable.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.ollama_child import install
from fakes.running import RunningProxy, running_proxy, wait_until_healthy
from slowtok.proxy.cli.demo.children import free_port
from slowtok.proxy.cli.demo.model import fetch_model

EXECUTABLE = os.environ.get("TEST_LLAMA_SWAP")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not EXECUTABLE, reason="TEST_LLAMA_SWAP does not name a llama-swap executable"
    ),
]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[RunningProxy]:
    """Run slowtok in front of a llama-swap that has two models, neither of them started."""
    install(tmp_path / "bin")
    start = f"{tmp_path}/bin/llama-server --port ${{PORT}} --model {fetch_model()} -np 1 -ngl 0 -c"
    config = tmp_path / "config.yaml"
    config.write_text(
        f"startPort: {free_port()}\nmodels:\n"
        f"  small:\n    cmd: {start} 2048\n  other:\n    cmd: {start} 1024\n"
    )
    listen = f"127.0.0.1:{free_port()}"
    command = [str(EXECUTABLE), "--config", str(config), "--listen", listen]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as swap:
        try:
            wait_until_healthy(f"http://{listen}/health", swap)
            with running_proxy(tmp_path / "state", f"http://{listen}") as running:
                yield running
        finally:
            swap.terminate()
            swap.wait(timeout=30)


def test_a_swap_is_a_load_and_the_engine_behind_is_the_engine(proxy: RunningProxy) -> None:
    asked = {"max_tokens": 20, "stream": True, "messages": [{"role": "user", "content": "Count."}]}
    first, again, other = (
        proxy.ask({"model": name, **asked}).record for name in ("small", "small", "other")
    )

    assert first["timing"]["load_ms"] > 0
    assert other["timing"]["load_ms"] > 0
    assert "load_ms" not in again["timing"]
    assert (again["upstream"]["kind"], again["upstream"]["through"]) == (
        "llama-server",
        "llama-swap",
    )
    (engine,) = proxy.get("/slowtok/status")["engines"]
    assert (engine["loaded_models"], engine["context_tokens"]) == (["other"], 1024)
