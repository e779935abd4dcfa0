"""`slowtok doctor` as a user runs it: with nothing, with an engine, with a GPU, with bad input."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.commands import environment, run
from fakes.engine import RunningEngine, real_engine
from fakes.nvml import stand_in
from fakes.nvml.cards import MIB, RTX_4090
from fakes.nvml.stand_in import Script
from fakes.running import keep_ram_bandwidth, running_proxy
from fakes.upstream import listening
from slowtok.proxy.cli.demo.children import free_port

NOBODY = "http://127.0.0.1:9"


def doctor(
    tmp_path: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return run("doctor", "--state-dir", str(tmp_path), *arguments, env=env)


def found(tmp_path: Path, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What `--json` says, and a promise that it says nothing else."""
    ended = doctor(tmp_path, "--json", *arguments, env=env)
    assert ended.stderr == ""
    assert ended.returncode in (0, 3)
    said: dict[str, Any] = json.loads(ended.stdout)
    assert said["inspected"] is (ended.returncode == 0)
    return said


def by_name(said: dict[str, Any], name: str) -> dict[str, Any]:
    checks: list[dict[str, Any]] = [c for c in said["checks"] if c["name"] == name]
    assert checks, name
    return checks[0]


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no GPU be found, whatever this machine has."""
    if sys.platform != "linux":
        pytest.skip("GPUs are hidden by a driver without any, built on Linux only")
    script = Script(tmp_path / "none.txt")
    monkeypatch.setenv("NVML_STAND_IN", str(script.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stand_in.library().parent))


@pytest.mark.usefixtures("without_gpu")
def test_nothing_to_inspect(tmp_path: Path) -> None:
    ended = doctor(tmp_path, "--upstream", NOBODY)

    assert ended.returncode == 3
    assert ended.stderr == ""
    assert f"nothing answers at {NOBODY}" in ended.stdout
    assert "Nothing to diagnose" in ended.stdout


def test_without_a_named_engine_it_looks_on_the_usual_ports(tmp_path: Path) -> None:
    said = found(tmp_path, "--listen", "127.0.0.1:9")  # where no slowtok tells of its engines

    assert by_name(said, "ram")["numbers"]["available_bytes"] > 0
    assert by_name(said, "cores")
    assert {check["name"] for check in said["checks"] if check["area"] == "hidden"} <= {
        "gpu", "readings", "process",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--upstream", "ftp://x"), "slowtok: upstream = ['ftp://x'] (from arguments): "),
        (("--listen", "nowhere"), "slowtok: listen = 'nowhere' (from arguments): "),
        (("--config", "/does/not/exist"), "slowtok: config = '/does/not/exist' (from arguments): "),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    ended = doctor(tmp_path, *arguments)

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(said)
    assert ended.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def llama() -> Iterator[RunningEngine]:
    with real_engine(threads=2, slots=2, context=4096, gpu_layers=0) as engine:
        yield engine


@pytest.mark.engine
def test_a_real_engine(llama: RunningEngine, tmp_path: Path) -> None:
    keep_ram_bandwidth(tmp_path, 2e10)

    said = found(tmp_path, "--upstream", llama.url)

    [engine] = said["engines"]
    [model] = engine["models"]
    assert (engine["kind"], engine["pid"]) == ("llama-server", llama.pid)
    assert model["layers"] == 30
    assert by_name(said, "fit")["numbers"]["weights_bytes"] == model["file_bytes"]
    assert by_name(said, "expected-rate")["numbers"]["low_tps"] > 1
    assert by_name(said, "cores")["state"] == "ok"


@pytest.mark.engine
def test_a_running_proxy_does_not_matter(llama: RunningEngine, tmp_path: Path) -> None:
    with running_proxy(tmp_path / "proxy", llama.url) as proxy:
        beside = found(tmp_path, "--upstream", llama.url)
        assert proxy.get("/slowtok/requests") == []
        through = found(tmp_path, "--upstream", proxy.url)
    assert beside["engines"][0]["pid"] == llama.pid
    assert through["engines"][0]["is_slowtok"] is True
    assert "slowtok itself" in by_name(through, "found")["said"]


@pytest.mark.engine
def test_a_sleeping_model_is_not_woken(tmp_path: Path) -> None:
    with real_engine(sleep_idle_s=1) as engine:
        engine.wait_until_asleep()

        said = found(tmp_path, "--upstream", engine.url)

        engine.wait_until_asleep()  # at once: it still sleeps
    assert said["engines"][0]["slept"] is True
    assert "put away to sleep" in by_name(said, "model")["said"]


@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for NVML is built on Linux only")
def test_an_engine_on_a_gpu(llama: RunningEngine, tmp_path: Path) -> None:
    processes = {
        "ComputeRunningProcesses": f"{llama.pid}:{900 * MIB}",
        "GraphicsRunningProcesses": f"{os.getpid()}:{300 * MIB}",
    }
    script = Script(tmp_path / "nvml.txt", {**RTX_4090, **processes})
    hidden = {
        "NVML_STAND_IN": str(script.path),
        "LD_LIBRARY_PATH": str(stand_in.library().parent),
    }

    said = found(tmp_path, "--upstream", llama.url, env=hidden)

    [gpu] = said["gpus"]
    assert (gpu["name"], gpu["now"]["power_limit_w"]) == (RTX_4090["Name"], 400.0)
    assert by_name(said, "vram")["numbers"]["server_bytes"] == 900 * MIB
    assert by_name(said, "vram")["numbers"]["others_bytes"] == 300 * MIB
    assert by_name(said, "gpu-layers")["state"] == "warn"  # -ngl 0 beside a GPU
    assert by_name(said, "power-limit")["state"] == "note"
    assert by_name(said, "link")["state"] == "warn"  # at work, with 8 of 16 lanes
    assert by_name(said, "temperature")["state"] == "ok"


@pytest.mark.parametrize("kind", ["vllm", "ollama", "llama-server"])
async def test_an_engine_that_tells_little(kind: str, tmp_path: Path) -> None:
    async with listening(kind) as engine:
        said = await asyncio.to_thread(found, tmp_path, "--upstream", f"there={engine.url}")

        assert engine.count == 0  # no request that an engine would compute for
    assert said["engines"][0]["kind"] == kind
    assert by_name(said, "found")["about"] == "there"


async def test_a_model_file_that_cannot_be_read(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    async with listening("llama-server") as engine:
        props = engine.looks["/props"].replace(b'"build_info"', b'"model_path":"%s","build_info"')
        body = props.partition(b"\r\n\r\n")[2] % str(broken).encode()
        engine.looks["/props"] = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        said = await asyncio.to_thread(found, tmp_path, "--upstream", engine.url)

    fit = by_name(said, "fit")
    assert fit["state"] == "unknown"
    assert "broken.gguf" in fit["said"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX terminal's conventions")
def test_no_colour_where_there_is_no_terminal(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "slowtok.proxy", "doctor", "--state-dir", str(tmp_path)]
    plain = {k: v for k, v in environment().items() if k != "NO_COLOR"}

    ended = subprocess.run(
        [*command, "--upstream", url],
        capture_output=True,
        check=False,
        timeout=60,
        env={**plain, "COLUMNS": "80"},
    )

    assert b"\x1b" not in ended.stdout + ended.stderr
    assert max(map(len, ended.stdout.decode().splitlines())) <= 80
