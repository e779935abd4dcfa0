"""Xid errors, which come by themselves, through nvidia-ml-py and the stand-in library."""

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fakes.nvml import clock as clocks
from fakes.nvml import stand_in
from fakes.nvml.cards import H100
from fakes.nvml.stand_in import Script
from slowtok.proxy.sampling.nvidia import events as nvml_events
from slowtok.proxy.sampling.nvidia.devices import NvidiaDevices

SECOND = H100 | {"UUID": "GPU-2"}


@pytest.fixture
def cards() -> tuple[dict[str, Any], ...]:
    return (H100, SECOND)


@pytest.fixture
def script(script: Script, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setattr(nvml_events, "WAIT_MS", 20)
    monkeypatch.setattr(nvml_events, "PAUSE_S", 0.001)
    return script


def devices() -> NvidiaDevices:
    return NvidiaDevices(stand_in.binding(), lambda _: None)


def xids(gpus: NvidiaDevices) -> dict[int, tuple[int | None, int | None]]:
    lines = gpus.sample(slow_tier=True, servers=set())
    return {line["index"]: (line.get("xid"), line.get("xids")) for line in lines}


def until(true: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + 10.0
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "xid"]


def test_no_error_is_known_and_so_are_none_from_before(script: Script) -> None:
    script.gpu(0, {"Xids": "79 31"})

    assert xids(devices()) == {0: (None, 0), 1: (None, 0)}


def test_errors_are_counted_each_at_its_gpu(script: Script) -> None:
    gpus = devices()
    xids(gpus)
    script.gpu(1, {"Xids": "31 43"})
    until(lambda: xids(gpus) == {0: (None, 0), 1: (43, 2)})
    script.gpu(0, {"Xids": "79"})
    until(lambda: xids(gpus) == {0: (79, 1), 1: (43, 2)})


def test_only_dear_samples_tell(script: Script) -> None:
    gpus = devices()

    assert all("xids" not in line for line in gpus.sample(slow_tier=False, servers=set()))


def test_counts_go_on_over_a_loss(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clocks.stopped(monkeypatch)
    gpus = devices()
    xids(gpus)
    script.gpu(0, {"Xids": "31"})
    until(lambda: xids(gpus)[0] == (31, 1))
    script.set(gpu0="!15")
    assert xids(gpus) == {}
    script.set(gpu0=None)
    clock.now_s += 5.0
    assert xids(gpus)[0] == (31, 1)
    script.gpu(0, {"Xids": "31 13"})

    until(lambda: xids(gpus)[0] == (13, 2))


def test_a_loss_frees_what_listened(script: Script) -> None:
    gpus = devices()
    xids(gpus)
    live = gpus._nvml.nvmlLib.stand_in_live_events
    before = live()
    script.set(gpu0="!15")
    xids(gpus)

    assert live() == before - 1


@pytest.mark.parametrize("error", [None, "!3", "!4", "!999"])
def test_a_gpu_without_events_has_a_reason_and_the_other_goes_on(
    script: Script, error: str | None
) -> None:
    script.gpu(0, {"Xids": error})
    gpus = devices()
    assert xids(gpus) == {0: (None, None), 1: (None, 0)}
    assert gpus.facts is not None
    assert {"xid", "xids"} <= gpus.facts[0]["absent"].keys()
    assert not {"xid", "xids"} & gpus.facts[1]["absent"].keys()

    script.gpu(1, {"Xids": 8})
    until(lambda: xids(gpus)[1] == (8, 1))


def test_a_driver_without_sets_of_events_has_a_reason(script: Script) -> None:
    script.set(EventSetCreate="!4")
    gpus = devices()

    assert xids(gpus) == {0: (None, None), 1: (None, None)}
    assert gpus.facts is not None
    assert gpus.facts[1]["absent"]["xids"] == "no permission: run as root"


def test_other_systems_have_no_events(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    gpus = devices()

    assert xids(gpus) == {0: (None, None), 1: (None, None)}
    assert gpus.facts is not None
    assert gpus.facts[0]["absent"]["xids"] == "NVML reports Xid errors on Linux only"


@pytest.mark.parametrize("error", ["!15", "!1", "!999"])
def test_when_nobody_listens_any_more_nothing_is_known(script: Script, error: str) -> None:
    gpus = devices()
    xids(gpus)
    script.set(EventSetWait=error)

    until(lambda: xids(gpus) == {0: (None, None), 1: (None, None)})


def test_a_wait_that_does_not_end_holds_up_nothing(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_events, "STOP_S", 0.05)
    script.set(EventSetWait="~2000 0")
    gpus = devices()
    begun_s = time.monotonic()
    xids(gpus)
    script.set(gpu0="!15")
    xids(gpus)

    assert time.monotonic() - begun_s < 1.0
    assert gpus.reason == "GPU 0: GPU is lost"


def test_nobody_listens_for_gpus_that_nobody_has(script: Script) -> None:
    before = set(listeners())
    gpus = devices()
    xids(gpus)
    (mine,) = set(listeners()) - before
    assert mine.daemon
    del gpus
    gc.collect()

    until(lambda: not mine.is_alive())
