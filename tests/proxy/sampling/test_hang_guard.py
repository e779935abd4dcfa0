"""A reader whose readings hang, and come back."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from slowtok.proxy.sampling import hang_guard
from slowtok.proxy.sampling.hang_guard import PatientGpus
from slowtok.proxy.sampling.schedule import ALL, Extras


class Devices:
    """One GPU; a reading waits until it is let go, and raises what it is told to."""

    reason: str | None = None
    facts = ({"index": 0},)

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.done = threading.Event()
        self.error: Exception | None = None

    def __len__(self) -> int:
        return 1

    def sample(
        self, *, slow_tier: bool, servers: set[int] | None, extras: Extras = ALL
    ) -> list[dict[str, Any]]:
        self.free.wait(10)
        self.done.set()
        if self.error is not None:
            raise self.error
        return [{"index": 0, "slow_tier": slow_tier, "servers": servers}]

    def look_s(self) -> float | None:
        return None

    def look(self) -> None: ...

    def sample_idle(self, servers: set[int] | None) -> list[dict[str, Any]]:
        return self.sample(slow_tier=False, servers=servers)

    def counts(self) -> dict[str, Any]:
        return {"gpu_errors": 3}


@pytest.fixture
def devices() -> Iterator[Devices]:
    made = Devices()
    yield made
    made.free.set()


def test_answers_are_passed_on(devices: Devices) -> None:
    gpus = PatientGpus(devices, "hung", patience_s=10)
    assert (len(gpus), gpus.changes()) == (0, None)

    assert gpus.sample(slow_tier=True, servers={7}) == [
        {"index": 0, "slow_tier": True, "servers": {7}}
    ]
    assert gpus.sample_idle(None) == [{"index": 0, "slow_tier": False, "servers": None}]
    assert len(gpus) == 1
    assert gpus.changes() == {"kind": "gpus", "gpus": [{"index": 0}], "reason": None}
    assert gpus.changes() is None
    assert gpus.counts() == {"gpu_errors": 3, "gpu_hung": 0}


def test_an_error_is_the_callers_and_the_next_reading_works(devices: Devices) -> None:
    gpus = PatientGpus(devices, "hung", patience_s=10)
    devices.error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        gpus.sample(slow_tier=False, servers=set())
    devices.error = None

    assert gpus.sample(slow_tier=False, servers=set())


def test_a_reading_that_hangs_is_not_waited_for_and_comes_later(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = PatientGpus(devices, "hung", patience_s=0.01)
    devices.free.clear()
    assert gpus.sample(slow_tier=True, servers=set()) == []
    assert gpus.sample(slow_tier=False, servers=set()) == []
    assert gpus.changes() is None
    monkeypatch.setattr(hang_guard, "HUNG_S", 0.0)
    changes = gpus.changes()
    assert changes is not None
    assert changes["reason"] == "hung"
    assert gpus.counts()["gpu_hung"] == 1

    devices.free.set()
    lines: list[dict[str, Any]] = []
    while not lines:
        lines = gpus.sample(slow_tier=False, servers=set())

    assert lines[0]["slow_tier"] is True
    assert gpus.counts()["gpu_hung"] >= 1
