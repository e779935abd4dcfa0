"""Finding the library: under WSL2, and a compiler for the one that stands in for it."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.nvml import stand_in
from fakes.nvml.cards import RTX_4090
from fakes.nvml.stand_in import Script
from slowtok.proxy.sampling.nvidia import library as nvml_library

LOOK = """
from pathlib import Path
from slowtok.proxy.sampling.nvidia import library, nvml

library.WSL_LIBRARY = Path({path!r})
gpus = nvml.open_gpus(lambda _: None)
gpus._patience_s = 10.0
line, = gpus.sample(slow_tier=True, servers=set())
print(line["busy_ratio"], line["processes"], gpus.news()["gpus"][0]["absent"]["processes"])
"""


def test_wsl_is_told_by_the_library_that_windows_puts_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_library, "WSL_LIBRARY", tmp_path / "libnvidia-ml.so.1")
    assert not nvml_library.is_wsl()
    nvml_library.load_wsl_library()  # what is not there is no error

    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"not a library")
    assert nvml_library.is_wsl()
    nvml_library.load_wsl_library()


def test_the_library_is_found_where_the_loader_does_not_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVML_STAND_IN", str(Script(tmp_path / "nvml.txt", RTX_4090).path))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    look = LOOK.format(path=str(stand_in.library()))
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.startswith("0.97 None not available under WSL2")


def test_without_a_compiler_of_the_system_the_package_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)

    assert stand_in.compiler() == (sys.executable, "-m", "ziglang", "cc")


def test_without_any_compiler_tests_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(pytest.skip.Exception):
        stand_in.compiler()
