"""The engine is a llama-server: its API, its command line, its end."""

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator

import httpx
import psutil
import pytest

from fakes.engine import RunningEngine, real_engine
from slowtok.proxy.cli.demo.children import free_port
from slowtok.proxy.cli.demo.model import fetch_model

pytestmark = pytest.mark.engine

END_S = 20.0


@pytest.fixture(scope="module")
def engine() -> Iterator[RunningEngine]:
    with real_engine(threads=1, slots=2, context=2048, alias="small", sleep_idle_s=2) as running:
        yield running


def test_it_answers_as_llama_server_does(engine: RunningEngine) -> None:
    asked = {"prompt": "Once", "max_tokens": 4, "ignore_eos": True, "temperature": 0, "seed": 1}

    reply = httpx.post(f"{engine.url}/v1/completions", json=asked, timeout=60)

    assert reply.json()["usage"]["completion_tokens"] == 4
    assert reply.json()["timings"]["predicted_n"] == 4


def test_its_options_take_effect(engine: RunningEngine) -> None:
    props = httpx.get(f"{engine.url}/props", timeout=10).json()

    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert props["model_alias"] == "small"
    assert props["model_path"] == str(fetch_model())
    assert httpx.get(f"{engine.url}/slots", timeout=10).status_code == 200
    assert "llamacpp:" in httpx.get(f"{engine.url}/metrics", timeout=10).text


def test_its_command_line_says_what_llama_servers_does(engine: RunningEngine) -> None:
    command = psutil.Process(engine.pid).cmdline()

    said = dict(itertools.pairwise(command))
    assert said["--threads"] == "1"
    assert said["--ctx-size"] == "2048"
    assert said["--parallel"] == "2"
    assert said["--n-gpu-layers"] == "0"


def test_it_falls_asleep(engine: RunningEngine) -> None:
    engine.wait_until_asleep()

    assert httpx.get(f"{engine.url}/props", timeout=10).json()["is_sleeping"] is True


def test_a_model_that_is_none_ends_it(tmp_path: object) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "slowtok.proxy.cli.demo.engine", "--model", f"{tmp_path}/none.gguf"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode != 0
    assert "did not start" in ended.stderr


PARENT = """
import os, signal, subprocess, sys
engine = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
print(engine.pid, engine.stdout.readline().decode(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_ends_with_its_parent() -> None:
    engine = [sys.executable, "-m", "slowtok.proxy.cli.demo.engine", "--ctx-size", "512"]
    engine += ["--model", str(fetch_model()), "--port", str(free_port()), "--threads", "1"]

    parent = subprocess.run(
        [sys.executable, "-c", PARENT, *engine], stdout=subprocess.PIPE, timeout=60, check=False
    )
    pid, listening = parent.stdout.decode().split(" ", 1)

    assert listening.startswith("listening on http://127.0.0.1:")
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid)).wait(END_S)
