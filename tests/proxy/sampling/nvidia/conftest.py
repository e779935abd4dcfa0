"""What the tests of NVML share."""

from pathlib import Path
from typing import Any

import pytest

from fakes.nvml import clock as clocks
from fakes.nvml import stand_in
from fakes.nvml.cards import RTX_4090
from fakes.nvml.clock import Clock
from fakes.nvml.stand_in import Script
from slowtok.proxy.sampling.nvidia.calls import Device


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the clock for each test: on a busy machine a real sample may stall, and is dropped."""
    return clocks.stopped(monkeypatch)


@pytest.fixture
def cards() -> tuple[dict[str, Any], ...]:
    """The cards of the machine, for a module to replace."""
    return (RTX_4090,)


@pytest.fixture
def script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cards: tuple[dict[str, Any], ...]
) -> Script:
    """The file from which the stand-in reads what its cards say."""
    script = Script(tmp_path / "nvml.txt", *cards)
    monkeypatch.setenv("NVML_STAND_IN", str(script.path))
    return script


@pytest.fixture
def device(script: Script) -> Device:
    """The first card."""
    pynvml = stand_in.binding()
    pynvml.nvmlInit()
    return Device(pynvml, 0)
