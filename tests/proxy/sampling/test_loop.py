"""What the sampling process does when, on a clock of the test's own."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from slowtok.proxy.sampling.__main__ import FACTS_S, IDLE_S, Loop
from slowtok.proxy.sampling.gpus import AllGpus, Maker
from slowtok.proxy.sampling.host.machine import Machine
from slowtok.proxy.sampling.schedule import ALL, Extras

Line = dict[str, Any]


class Gpu:
    """One GPU that is always there."""

    def __len__(self) -> int:
        return 1

    def changes(self) -> Line | None:
        return {"kind": "gpus", "gpus": [{"index": 0}], "reason": None}

    def sample(
        self, *, slow_tier: bool, servers: set[int] | None, extras: Extras = ALL
    ) -> list[Line]:
        return [{"kind": "slow_tier" if slow_tier else "cheap", "index": 0, "extras": extras}]

    def sample_idle(self, servers: set[int] | None) -> list[Line]:
        return [{"kind": "idle", "index": 0}]

    def counts(self) -> Line:
        return {"gpu_errors": 4}


class Host:
    pids: list[int] = []  # noqa: RUF012
    is_known = True

    def read(self, *, slow_tier: bool) -> dict[str, float | int | None]:
        return {}

    def changes(self) -> Line | None:
        return None


class Stage:
    """A loop with its clock, the lines it wrote, and the machine's conditions."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.cpu_s = 0.0
        self.conditions: dict[str, bool | str | None] = {}
        self._lines: list[Line] = []

    def begin(self) -> None:
        machine = Machine(Host(), lambda _: Host(), read_conditions=lambda: dict(self.conditions))
        machine.changes()
        self.loop = Loop(machine, AllGpus([Maker(Gpu())]), self._lines.extend)

    def run(self, until_s: float, cpu_ratio: float = 0.0) -> None:
        """Tick whenever the loop wants to, and stop at `until_s` after the beginning."""
        while self.loop.next_at_s() <= 1000.0 + until_s:
            step_s = max(self.loop.next_at_s() - self.now_s, 0.0)
            self.now_s += step_s
            self.cpu_s += step_s * cpu_ratio
            self.loop.tick()
        self.now_s = 1000.0 + until_s

    def tell(self, **command: Any) -> None:
        self.loop.obey(command)

    def gpus(self) -> list[Line]:
        """Take the GPUs' samples that were written since the last time."""
        lines, self._lines[:] = list(self._lines), []
        return [line for line in lines if line["kind"] in ("cheap", "slow_tier")]

    def lines(self, *kinds: str) -> list[str]:
        """Take what was written since the last time, of these kinds."""
        lines, self._lines[:] = list(self._lines), []
        return [line["kind"] for line in lines if not kinds or line["kind"] in kinds]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    clock: Callable[[], float] = lambda: made.now_s  # noqa: E731
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(time, "process_time", lambda: made.cpu_s)
    made.begin()
    return made


def test_an_idle_machine_is_looked_at_every_2_s(stage: Stage) -> None:
    stage.tell(ports=[], active=False)
    stage.run(10.0)

    assert IDLE_S == 2.0
    assert stage.lines("idle", "cheap", "slow_tier") == ["idle"] * 6
    assert stage.loop.next_at_s() <= 1012.0


def test_while_active_gpus_are_read_at_10_hz_and_dearly_at_1_hz(stage: Stage) -> None:
    stage.tell(ports=[], active=False)
    stage.run(0.0)
    stage.lines()
    stage.tell(active=True)
    stage.run(2.05)
    kinds = stage.lines("idle", "cheap", "slow_tier")

    assert kinds.count("slow_tier") == 3
    assert len(kinds) == 21


def test_an_edge_has_the_gpus_counters_and_comes_after_its_samples(stage: Stage) -> None:
    stage.tell(ports=[], active=True)
    stage.run(0.66)
    stage.lines()
    stage.tell(now=True)

    assert stage.lines() == ["slow_tier", "host", "edge"]


def test_edges_at_one_moment_are_one(stage: Stage) -> None:
    stage.tell(ports=[], active=True)
    stage.run(0.65)
    stage.tell(now=True)
    stage.lines()
    stage.now_s += 0.04
    stage.tell(now=True)

    assert stage.lines() == ["edge"]


def test_many_edges_have_counters_only_four_times_a_second(stage: Stage) -> None:
    stage.tell(ports=[], active=True)
    stage.run(0.0)
    stage.lines()
    for _ in range(9):
        stage.now_s += 0.1
        stage.tell(now=True)
    kinds = stage.lines("slow_tier", "cheap", "edge")

    assert kinds.count("edge") == 9
    assert kinds.count("slow_tier") == 3


def test_an_edge_on_an_idle_machine_is_the_idle_look(stage: Stage) -> None:
    stage.tell(ports=[], active=False)
    stage.run(0.5)
    stage.lines()
    stage.tell(now=True)

    assert stage.lines() == ["idle", "host", "edge"]


def test_conditions_are_looked_at_every_15_s(stage: Stage) -> None:
    stage.tell(ports=[], active=False)
    stage.run(FACTS_S - 0.1)
    stage.conditions["on_battery"] = True
    assert stage.lines("host_facts") == []
    stage.run(FACTS_S + IDLE_S)
    assert stage.lines("host_facts") == ["host_facts"]
    stage.run(3 * FACTS_S)
    assert stage.lines("host_facts") == []


def test_the_report_has_the_gpus_counts(stage: Stage) -> None:
    written: list[Line] = []
    stage.loop._emit = written.extend
    stage.tell(ports=[], active=False)
    stage.run(1.0)
    (overhead,) = [line for line in written if line["kind"] == "overhead"]

    assert (overhead["gpu_errors"], overhead["gpu_hung"]) == (4, 0)


def test_sampling_that_costs_too_much_is_slowed_and_says_so(stage: Stage) -> None:
    written: list[Line] = []
    stage.tell(ports=[], active=True)
    stage.run(30.0, cpu_ratio=0.05)
    stage.gpus()
    stage.loop._emit = written.extend
    stage.run(40.0)

    samples = [line for line in written if line["kind"] in ("cheap", "slow_tier")]
    assert len(samples) <= 10.0 / 0.4 + 1
    assert sum(line["kind"] == "slow_tier" for line in samples) <= 3
    slowed = [line["slowed"] for line in written if line["kind"] == "overhead"]
    assert slowed[-1]["gpu_s"] == 0.4


def test_what_an_idle_machine_costs_slows_nothing(stage: Stage) -> None:
    stage.tell(ports=[], active=False)
    stage.run(60.0, cpu_ratio=0.05)
    stage.lines()
    stage.tell(active=True)
    stage.run(61.05)

    assert len(stage.gpus()) >= 10


def test_room_brings_the_rates_back(stage: Stage) -> None:
    stage.tell(ports=[], active=True)
    stage.run(30.0, cpu_ratio=0.05)
    stage.run(300.0)
    stage.gpus()
    stage.run(302.0)

    assert len(stage.gpus()) >= 19


def test_slowed_sampling_still_has_all_counters_at_both_ends_of_a_request(stage: Stage) -> None:
    stage.tell(ports=[], active=True)
    stage.run(30.0, cpu_ratio=0.05)
    stage.tell(active=False)
    stage.run(33.0)
    stage.gpus()
    stage.tell(active=True)
    stage.run(33.0)
    (first,) = stage.gpus()
    stage.run(34.3)
    stage.gpus()
    stage.tell(now=True)
    (last,) = stage.gpus()

    assert first["kind"] == last["kind"] == "slow_tier"
    assert first["extras"].energy
    assert last["extras"].energy


def test_while_a_server_is_not_known_no_process_on_a_gpu_is_surely_none() -> None:
    known, unknown = Host(), Host()
    unknown.is_known = False
    ports = {8080: known, 11434: unknown}
    machine = Machine(Host(), lambda port: ports[port])
    machine.watch([8080])
    listed = [{"pid": 7, "is_server": False}, {"pid": 8, "is_server": True}]
    machine.doubt([{"processes": listed}, {"processes": None}, {}])
    told = [process["is_server"] for process in listed]
    machine.watch([8080, 11434])
    machine.doubt([{"processes": listed}])

    assert told == [False, True]
    assert [process["is_server"] for process in listed] == [None, True]
