"""Drivers that do not start and GPUs that are lost, through nvidia-ml-py; time is data."""

from pathlib import Path
from typing import Any

import pytest

from fakes.nvml import stand_in
from fakes.nvml.cards import RTX_4090
from fakes.nvml.clock import Clock
from fakes.nvml.stand_in import Script
from slowtok.proxy.sampling.nvidia.devices import NvidiaDevices

SECOND = RTX_4090 | {"UUID": "GPU-2", "Name": "NVIDIA RTX A4000"}


def nobody(_: int) -> None:
    """No process has a name."""


def devices() -> NvidiaDevices:
    return NvidiaDevices(stand_in.binding(), process_name=nobody)


def sample(gpus: NvidiaDevices, *, slow_tier: bool = False) -> dict[str, Any]:
    (line,) = gpus.sample(slow_tier=slow_tier, servers={7})
    return line


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script(tmp_path / "nvml.txt", RTX_4090, SECOND)
    monkeypatch.setenv("NVML_STAND_IN", str(script.path))
    return script


def uuids(gpus: NvidiaDevices) -> dict[int, str]:
    return {facts["index"]: facts["uuid"] for facts in gpus.facts or ()}


def test_no_library_is_not_tried_again(script: Script, clock: Clock) -> None:
    gpus = devices()
    script.set(Init="!12")
    assert gpus.sample(slow_tier=True, servers=set()) == []
    assert (gpus.facts, gpus.reason) == (None, "NVML library not found")

    script.set(Init=None)
    clock.now_s += 1000
    assert gpus.sample(slow_tier=True, servers=set()) == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("!9", "NVIDIA driver not loaded"),
        ("!18", "NVIDIA driver and library versions differ (restart needed)"),
        ("!4", "Insufficient Permissions"),
    ],
)
def test_a_driver_that_does_not_start_is_tried_again(
    script: Script, clock: Clock, error: str, reason: str
) -> None:
    gpus = devices()
    script.set(Init=error)
    assert gpus.sample(slow_tier=True, servers=set()) == []
    assert (gpus.facts, gpus.reason) == (None, reason)

    script.set(Init=None)
    assert gpus.sample(slow_tier=False, servers=set()) == []
    clock.now_s += 5.0
    assert sample(gpus)["busy_ratio"] == 0.97
    assert gpus.reason is None


def test_a_machine_without_gpus_has_none_which_is_known(script: Script) -> None:
    script.set(Count=0)
    gpus = devices()

    assert gpus.sample(slow_tier=True, servers=set()) == []
    assert (gpus.facts, gpus.reason, len(gpus)) == ([], None, 0)


@pytest.mark.parametrize("error", ["!15", "!16", "!28", "!18", "!9", "!1"])
def test_a_lost_gpu_is_reported_and_comes_back(script: Script, clock: Clock, error: str) -> None:
    gpus = devices()
    sample(gpus)
    script.set(gpu0=error)
    assert gpus.sample(slow_tier=False, servers=set()) == []
    assert gpus.reason is not None
    assert gpus.reason.startswith("GPU 0: ")
    assert len(gpus) == 0

    script.set(gpu0=None)
    clock.now_s += 5.0
    assert sample(gpus)["busy_ratio"] == 0.97
    assert gpus.reason is None


def test_pauses_grow_while_a_gpu_stays_lost(script: Script, clock: Clock) -> None:
    pynvml = stand_in.binding()
    inits_s = []
    init = pynvml.nvmlInit

    def note_init() -> None:
        inits_s.append(clock.now_s - 1000.0)
        init()

    pynvml.nvmlInit = note_init
    gpus = NvidiaDevices(pynvml, nobody)
    sample(gpus)
    script.gpu(0, {"UtilizationRates": "!15"})  # it opens again, but does not work
    for _ in range(200):
        assert gpus.sample(slow_tier=False, servers=set()) == []
        clock.now_s += 1.0

    assert inits_s == [0.0, 5.0, 15.0, 35.0, 75.0, 135.0, 195.0]


def test_a_gpu_is_known_by_its_uuid_wherever_it_is_listed(two: Script, clock: Clock) -> None:
    gpus = devices()
    gpus.sample(slow_tier=False, servers=set())
    assert uuids(gpus) == {0: RTX_4090["UUID"], 1: "GPU-2"}

    two.set(gpu0="!15")
    gpus.sample(slow_tier=False, servers=set())
    two.set(gpu0=None, Count=1)  # the first fell off the bus: the second is listed first now
    two.gpu(0, SECOND | {"PerformanceState": 5})
    clock.now_s += 5.0
    (line,) = gpus.sample(slow_tier=False, servers=set())

    assert (line["index"], line["pstate"]) == (1, 5)
    assert uuids(gpus) == {1: "GPU-2"}
    assert gpus.reason == "GPU 0: not listed by the driver any more"

    two.set(Count=2)
    two.gpu(1, RTX_4090)
    clock.now_s += 10.0
    lines = gpus.sample(slow_tier=False, servers=set())
    assert {line["index"]: line["pstate"] for line in lines} == {0: 2, 1: 5}
    assert gpus.reason is None


def test_one_gpu_that_does_not_open_does_not_hide_the_other(two: Script) -> None:
    two.set(gpu1="!15")
    gpus = devices()

    assert sample(gpus)["index"] == 0
    assert gpus.reason == "GPU 1: GPU is lost"


def test_a_gpu_that_is_lost_on_the_way_leaves_the_samples_before_it(two: Script) -> None:
    gpus = devices()
    gpus.sample(slow_tier=False, servers=set())
    two.set(gpu1="!15")

    assert [line["index"] for line in gpus.sample(slow_tier=False, servers=set())] == [0]
    assert gpus.reason == "GPU 1: GPU is lost"
