"""The examples of docs/clients.md, run as they stand against a real engine."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from fakes.engine import real_engine
from fakes.frameworks import ENVIRONMENT_OF, python_of
from fakes.ollama import MODEL, ollama_stand_in
from fakes.running import RunningProxy, keep_ram_bandwidth, running_proxy

pytestmark = pytest.mark.engine

PAGE = (Path(__file__).resolve().parents[2] / "docs/clients.md").read_text(encoding="utf-8")
ADDRESS, NAME = "http://127.0.0.1:4141", "small"
SHORT_CONTEXT = 256  # the examples set no limit to their answers: this one does
NODE, MODULES = shutil.which("node"), Path(sys.prefix) / "node" / "node_modules"


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def imported(example: str) -> list[str]:
    return re.findall(r"^(?:from|import) (\w+)", example, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def small(
    tmp_path_factory: pytest.TempPathFactory, ram_bytes_per_s: float
) -> Iterator[dict[str, RunningProxy]]:
    """Proxies before a real engine, and before a stand-in for Ollama that it answers for."""
    states = [tmp_path_factory.mktemp(name) for name in ("openai", "ollama")]
    for state in states:
        keep_ram_bandwidth(state, ram_bytes_per_s)
    with (
        real_engine(threads=1, slots=1, context=SHORT_CONTEXT, alias=NAME) as engine,
        ollama_stand_in(engine.url) as ollama,
        running_proxy(states[0], engine.url) as proxy,
        running_proxy(states[1], ollama) as before_ollama,
    ):
        yield {"openai": proxy, "ollama": before_ollama}


def said_by(command: list[str], example: str, proxy: RunningProxy, **env: str) -> str:
    ended = subprocess.run(
        [*command, example.replace(ADDRESS, proxy.url)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("example", examples("python"), ids=lambda e: "-".join(imported(e)))
def test_python(example: str, small: dict[str, RunningProxy]) -> None:
    of_own = [name for name in imported(example) if name in ENVIRONMENT_OF]
    python = python_of(of_own[0]) if of_own else sys.executable
    missing = [name for name in imported(example) if not of_own and find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    is_ollama = "ollama" in imported(example)
    asked = example.replace(f'"{NAME}"', f'"{MODEL}"') if is_ollama else example
    proxy = small["ollama" if is_ollama else "openai"]
    # else litellm fetches a list of prices at import, and CrewAI tells its makers of the call
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "CREWAI_DISABLE_TELEMETRY": "true"}

    said = said_by([python, "-c"], asked, proxy, **quiet)

    assert re.search(r"^(normal|unknown|slow)|(normal|unknown|slow)$", said, re.MULTILINE), said


@pytest.mark.skipif(not (NODE and MODULES.is_dir()), reason="make clients installs it")
@pytest.mark.parametrize("example", examples("js"))
def test_node(example: str, small: dict[str, RunningProxy]) -> None:
    assert NODE is not None

    said = said_by([NODE, "-e"], example, small["openai"], NODE_PATH=str(MODULES))

    assert said.partition("\n")[0].partition(";")[0] in ("normal", "unknown", "slow")
