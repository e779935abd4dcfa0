"""Node's `openai` through the proxy (`make clients` puts it beside the virtual environment)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.both import Both

NODE = shutil.which("node")
MODULES = Path(sys.prefix) / "node" / "node_modules"
SCRIPT = Path(__file__).parent / "node" / "ask.cjs"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(NODE is None, reason="there is no node"),
    pytest.mark.skipif(not (MODULES / "openai").is_dir(), reason="make clients installs it"),
]


def ask(url: str, how: str) -> Any:
    assert NODE is not None
    ended = subprocess.run(
        [NODE, str(SCRIPT), f"{url}/v1", how],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("how", ["stream", "helper", "list", "error"])
def test_the_same_as_directly(both: Both, how: str) -> None:
    found = both.same(lambda url: ask(url, how))

    assert all(found.values())


def test_whole_reply_with_its_diagnosis(both: Both) -> None:
    def without_verdict(url: str) -> Any:
        return {k: v for k, v in ask(url, "whole").items() if k != "verdict"}

    found = both.same(without_verdict)

    assert found["text"]
    assert found["tokens"] == 12
    assert ask(both.proxy.url, "whole")["verdict"].partition(";")[0] in (
        "normal",
        "unknown",
        "slow",
    )


def test_the_lock_names_no_index() -> None:
    lock = json.loads((SCRIPT.parent / "package-lock.json").read_text(encoding="utf-8"))
    asked = json.loads((SCRIPT.parent / "package.json").read_text(encoding="utf-8"))
    package = lock["packages"]["node_modules/openai"]

    assert package["integrity"].startswith("sha512-")
    assert "resolved" not in package
    assert asked["dependencies"] == {"openai": package["version"]}
