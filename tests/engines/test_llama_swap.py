"""A real llama-swap that starts real llama-servers, between the demo's model and slowtok.

It runs where `TEST_LLAMA_SWAP` names the executable.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.ollama_child import install
from fakes.running import Answer, RunningProxy, running_proxy, wait_until_healthy
from slowtok.proxy.cli.demo.children import free_port
from slowtok.proxy.cli.demo.model import fetch_model

EXECUTABLE = os.environ.get("TEST_LLAMA_SWAP")
ALIAS = "nickname"
LOAD_S = 2.0
OPTIONS = "-np 1 -ngl 0 -t 1"  # one thread: several would wait for each other on a busy machine
TOKENS = 20

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not EXECUTABLE, reason="TEST_LLAMA_SWAP does not name a llama-swap executable"
    ),
]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[RunningProxy]:
    """Run slowtok in front of a llama-swap that has three models, none of them started."""
    install(tmp_path / "bin")
    start = f"{tmp_path}/bin/llama-server --port ${{PORT}} --model {fetch_model()} {OPTIONS} -c"
    config = tmp_path / "config.yaml"
    config.write_text(
        f"startPort: {free_port()}\nmodels:\n"
        f"  small:\n    cmd: {start} 2048\n  other:\n    cmd: {start} 1024\n"
        f"  told:\n    cmd: {start} 512\n    env: [SLOW_LOAD_S={LOAD_S}]\n"
        f"    aliases: [{ALIAS}]\n    sendLoadingState: true\n"
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


def ask(proxy: RunningProxy, model: str) -> Answer:
    """Ask for a stream of a few tokens."""
    words = [{"role": "user", "content": "Count."}]
    return proxy.ask({"model": model, "max_tokens": TOKENS, "stream": True, "messages": words})


def test_a_swap_is_a_load_and_the_engine_behind_is_the_engine(proxy: RunningProxy) -> None:
    first, again, other = (ask(proxy, name).record for name in ("small", "small", "other"))

    assert first["timing"]["load_ms"] > 0
    assert other["timing"]["load_ms"] > 0
    assert "load_ms" not in again["timing"]
    assert (again["upstream"]["kind"], again["upstream"]["through"]) == (
        "llama-server",
        "llama-swap",
    )
    (engine,) = proxy.get("/slowtok/status")["engines"]
    assert (engine["loaded_models"], engine["context_tokens"]) == (["other"], 1024)


def test_what_it_writes_while_it_loads_a_model_is_no_token(proxy: RunningProxy) -> None:
    """The model has an alias, and `sendLoadingState` fills its stream until it is there."""
    first, again = ask(proxy, ALIAS), ask(proxy, ALIAS)

    assert first.body.count(b"reasoning_content") > TOKENS >= first.record["tokens"]["completion"]
    timing = first.record["timing"]
    assert timing["source"] == "engine"
    assert timing["load_ms"] > LOAD_S * 1000
    assert timing["ttft_ms"] > timing["load_ms"]
    (load,) = (found for found in first.record["findings"] if found["cause"] == "model-load")
    assert "llama-swap's configuration" in load["remedy"]
    assert "load_ms" not in again.record["timing"]
