"""What a machine takes from its peers, and what never: end to end, with a store in memory."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.baselines import with_baseline
from fakes.cases import with_server
from fakes.learning import NOW_UNIX_S, kept_at, learn
from fakes.sharing import on
from fakes.stores import Memory, peers_at
from slowtok.detectors.case.case import Baseline, Case
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.detectors.expectation.envelope import REFINE_AFTER
from slowtok.proxy.history.baselines import Baselines
from slowtok.proxy.history.learned_store import LearnedStore
from slowtok.proxy.history.peers.peers import Peers

Machine = Callable[[], tuple[Baselines, Peers]]


@pytest.fixture
def store() -> Memory:
    return Memory(NOW_UNIX_S)


@pytest.fixture
def machine(store: Memory, tmp_path: Path) -> Iterator[Machine]:
    """Makes a machine with nothing on its disk that shares through the store."""
    kept: list[LearnedStore] = []

    def make() -> tuple[Baselines, Peers]:
        kept.append(kept_at(tmp_path / f"{len(kept)}.sqlite3"))
        peers = peers_at(store)
        return Baselines(kept[-1], peers=peers, made_by="1"), peers

    yield make
    for each in kept:
        each.close()


def served(machine: Machine, card: str, *rates: float) -> None:
    """A machine that has served these requests."""
    baselines, peers = machine()
    for number, tps in enumerate(rates):
        case = on(card, tps, days_ago=(len(rates) - number) / 100)
        baselines.find(case)
        learn(baselines, case)
    peers.sync()


def found(machine: Machine, case: Case) -> Baseline:
    """What a new machine knows, once the store has answered."""
    baselines, peers = machine()
    baselines.find(case)
    peers.sync()
    return baselines.find(case)


def test_a_machine_without_peers_has_no_baseline(machine: Machine) -> None:
    assert found(machine, on("new")) == Baseline()


def test_without_a_store_nothing_changes(tmp_path: Path) -> None:
    kept = kept_at(tmp_path / "alone.sqlite3")
    baselines = Baselines(kept, made_by="1")
    learn(baselines, *[on("a")] * REFINE_AFTER)

    assert baselines.find(on("a")) == Baseline(
        count=REFINE_AFTER,
        decode_tps=150.0,
        decode_p10_tps=150.0,
        usual_decode_tps=150.0,
        healthy_here=REFINE_AFTER,
    )
    kept.close()


def test_a_new_machine_knows_what_healthy_peers_do(machine: Machine) -> None:
    for card in ("a", "b", "c"):
        served(machine, card, 148.0, 150.0, 152.0, 150.0)

    baseline = found(machine, on("new"))

    assert baseline == Baseline(count=12, decode_tps=150.0, decode_p10_tps=148.0, peers=3)
    told = with_baseline(on("new"), baseline).envelope.because
    assert any("12 healthy requests on 3 peers with the same card" in line for line in told)


def test_a_slow_new_machine_is_seen_at_its_first_request(machine: Machine) -> None:
    slow = on("new", 100.0)  # inside the band of first principles: alone it would be normal
    assert diagnose(slow).verdict == "normal"
    served(machine, "a", *[150.0] * REFINE_AFTER)

    judged = with_baseline(slow, found(machine, slow))

    assert diagnose(judged).verdict == "slow"


def test_what_is_slow_against_peers_is_not_learned_as_healthy(
    machine: Machine, store: Memory
) -> None:
    served(machine, "a", *[150.0] * REFINE_AFTER)
    baselines, peers = machine()
    baselines.find(on("new", 100.0))
    peers.sync()
    for _ in range(3 * REFINE_AFTER):
        case = with_baseline(on("new", 100.0), baselines.find(on("new", 100.0)))
        assert learn(baselines, case) == [False]
    peers.sync()

    assert baselines.find(on("new")).peers == 1
    assert [len(rows) for rows in store.rows.values()] == [1]


@pytest.mark.parametrize("tps", [40.0, 5.0])
def test_a_fleet_that_was_always_slow_teaches_nothing(
    tps: float, machine: Machine, store: Memory
) -> None:
    served(machine, "a", *[tps] * 9)

    assert store.rows == {}
    assert found(machine, on("new")) == Baseline()


def test_rates_that_physics_does_not_allow_are_not_used(machine: Machine) -> None:
    served(machine, "a", *[150.0] * REFINE_AFTER)
    baseline = found(machine, on("new"))
    lying = Baseline(count=9, decode_tps=20.0, decode_p10_tps=20.0, peers=3)

    assert with_baseline(on("new"), lying).envelope.decode == on("new").envelope.decode
    assert with_baseline(on("new"), baseline).envelope.decode != on("new").envelope.decode


def test_own_measurements_win_once_there_are_enough(machine: Machine) -> None:
    served(machine, "a", *[150.0] * REFINE_AFTER)
    baselines, peers = machine()
    baselines.find(on("new"))
    peers.sync()
    for number in range(REFINE_AFTER):
        assert baselines.find(on("new")).peers == 1
        learn(baselines, on("new", 140.0, days_ago=-number / 1000))

    assert baselines.find(on("new")) == Baseline(
        count=REFINE_AFTER,
        decode_tps=140.0,
        decode_p10_tps=140.0,
        usual_decode_tps=140.0,
        healthy_here=REFINE_AFTER,
    )


def test_too_few_requests_of_peers_say_nothing(machine: Machine) -> None:
    served(machine, "a", 150.0, 150.0)
    served(machine, "b", 150.0, 150.0)

    assert found(machine, on("new")) == Baseline()


def test_a_machine_that_lost_its_disk_has_its_own_again(machine: Machine) -> None:
    served(machine, "a", *[150.0] * REFINE_AFTER)
    served(machine, "b", *[130.0] * REFINE_AFTER)

    assert found(machine, on("a")) == Baseline(
        count=REFINE_AFTER, decode_tps=150.0, decode_p10_tps=150.0
    )


def test_another_build_of_the_engine_has_no_peers(machine: Machine) -> None:
    served(machine, "a", *[150.0] * REFINE_AFTER)

    assert found(machine, with_server(on("new"), version="b2")) == Baseline()


def test_a_store_that_is_away_leaves_what_this_machine_learned(
    machine: Machine, store: Memory
) -> None:
    store.fault = ConnectionError("Connection refused")
    baselines, peers = machine()
    for _ in range(REFINE_AFTER):
        baselines.find(on("a"))
        learn(baselines, on("a"))
        peers.sync()

    assert baselines.find(on("a")).count == REFINE_AFTER
    assert peers.failure == "nothing listens there"


def test_neither_names_nor_addresses_reach_the_store(machine: Machine, store: Memory) -> None:
    case = on("a")
    served(machine, "a", 150.0)
    everything = str(store.rows)

    words = (case.model.name, case.server.url, "GPU-a", "RTX", case.timeline.request_id)
    assert [word for word in words if word and word in everything] == []
    assert store.rows != {}
