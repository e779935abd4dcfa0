"""Who else uses the CPU; time, cost and processes are data, except for one real look."""

import os
import subprocess
import sys
from collections.abc import Iterable

import pytest

from slowtok.proxy.sampling.host.host import Fields
from slowtok.proxy.sampling.host.machine import Machine
from slowtok.proxy.sampling.host.others import (
    SHARE,
    SHORTEST_S,
    Others,
    Process,
    cores_used,
    largest,
    own_family,
    read_processes,
)

OWN = 100
PERIOD_S = 5.0
SECRET = "hunter2"


def process(pid: int, name: str, cpu_s: float, *, parent: int = 1, born: float = 1.0) -> Process:
    return Process(pid=pid, parent=parent, name=name, cpu_s=cpu_s, identity=born)


class Stage:
    """A machine whose time passes when it is told to; looking costs what it is told."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self.now_s = self.cpu_s = 1000.0
        self.cost_s, self.looks = cost_s, 0
        self.others = Others(OWN, self.look, lambda: self.now_s, lambda: self.cpu_s)

    def look(self) -> Iterable[Process]:
        self.looks += 1
        self.cpu_s += self.cost_s
        yield process(7, "build", 2.0 * self.now_s)
        yield process(8, "engine", 1.0 * self.now_s)

    def names(self, without: tuple[int, ...] = ()) -> list[str] | None:
        found = self.others.read(PERIOD_S)
        return None if found is None else [program["name"] for program in found(without)]

    def run(self, seconds: float, step_s: float = 0.2) -> None:
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            self.names()


def test_the_first_look_has_nothing_to_compare_with_and_the_second_names_them() -> None:
    stage = Stage()

    assert stage.names() is None
    stage.now_s += SHORTEST_S / 2
    assert stage.names() is None
    stage.now_s += SHORTEST_S
    assert stage.names(without=(8,)) == ["build"]
    assert stage.looks == 2


def test_a_look_long_ago_is_not_compared_with() -> None:
    stage = Stage()
    stage.names()
    stage.now_s += 60.0

    assert stage.names() is None
    stage.now_s += SHORTEST_S
    assert stage.names() == ["build", "engine"]


@pytest.mark.parametrize("cost_s", [0.001, 0.01, 0.1])
def test_looks_hold_to_their_share(cost_s: float) -> None:
    stage = Stage(cost_s)
    stage.run(1000.0)

    assert 2 <= stage.looks <= 1000 / PERIOD_S + 2
    assert stage.looks * cost_s <= SHARE * 1000 + 2 * cost_s


def test_a_request_that_begins_is_looked_at_soon_but_no_oftener_than_the_share_allows() -> None:
    cheap, slow_tier = Stage(), Stage(cost_s=0.01)
    for stage in (cheap, slow_tier):
        stage.run(6.0)
        looks = stage.looks
        for _ in range(10):
            stage.others.begin()
            stage.run(SHORTEST_S, step_s=SHORTEST_S)
        stage.looks -= looks

    assert cheap.looks >= 8
    assert slow_tier.looks <= 2


def test_processes_of_one_name_count_together_and_the_busiest_is_named() -> None:
    now = [process(1, "cc1", 3.0), process(2, "cc1", 5.0), process(3, "x", 1.0)]
    cores = cores_used([process(1, "cc1", 1.0), process(3, "x", 0.99)], now, 2.0)

    assert largest(now, cores, ()) == [{"name": "cc1", "pid": 2, "cpu_cores": 3.5, "processes": 2}]


def test_a_process_with_the_pid_of_another_began_at_zero() -> None:
    now = [process(1, "new", 1.0, born=9.0)]

    assert cores_used([process(1, "old", 50.0)], now, 2.0) == {1: 0.5}


def test_slowtok_is_not_among_the_others() -> None:
    processes = [
        process(OWN, "slowtok", 1.0), process(101, "sampling", 1.0, parent=OWN),
        process(7, "build", 1.0),
    ]  # fmt: skip

    assert own_family(processes, OWN) == {OWN, 101}


def test_all_that_slowtok_started_is_slowtok_in_whatever_order_it_is_listed() -> None:
    processes = [
        process(103, "python3", 1.0, parent=102), process(102, "python3", 1.0, parent=101),
        process(101, "python3", 1.0, parent=OWN), process(OWN, "slowtok", 1.0),
    ]  # fmt: skip

    assert own_family(processes, OWN) == {OWN, 101, 102, 103}


def test_another_slowtok_is_no_culprit_but_what_it_began_may_be() -> None:
    processes = [
        process(OWN, "python3", 1.0), process(200, "slowtok", 1.0),
        process(201, "stress-ng", 1.0, parent=200),
    ]  # fmt: skip

    assert own_family(processes, OWN) == {OWN, 200}


class Busy:
    """A machine of two cores; its server uses what it is told."""

    def __init__(self, **fields: float) -> None:
        self._fields = fields
        self.pids = [8]
        self.is_known = True

    def read(self, *, slow_tier: bool) -> Fields:
        return dict(self._fields)

    def changes(self) -> None:
        return None


@pytest.mark.parametrize(
    ("server_cores", "period_s", "named"),
    [(1.95, PERIOD_S, None), (1.0, None, None), (1.0, PERIOD_S, ["build"])],
    ids=["the server uses it all", "no request", "others use much"],
)
def test_only_beside_a_request_and_where_others_use_much(
    server_cores: float,
    period_s: float | None,
    named: list[str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    host, server = Busy(cpu_busy_cores=2.0), Busy(server_cpu_cores=server_cores)
    machine = Machine(host, lambda _: server, others=stage.others)
    monkeypatch.setattr("time.monotonic", lambda: stage.now_s)
    machine.watch([8080])
    found = None
    for _ in range(4):
        stage.now_s += SHORTEST_S
        for line in machine.sample(slow_tier=True, others_s=period_s):
            found = line.get("others") or found

    assert (found and [program["name"] for program in found]) == named


def test_a_real_process_is_seen_by_name_without_its_arguments() -> None:
    waiting = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waiting, SECRET], stdin=subprocess.PIPE) as one:
        found = {p.pid: p for p in read_processes()}
        one.communicate()

    assert found[one.pid].parent == os.getpid()
    assert found[one.pid].name
    assert SECRET not in repr(found[one.pid])
