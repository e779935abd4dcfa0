"""What is known of other machines, and when the store is asked; the store is in memory."""

import threading

import pytest

from fakes.learning import NOW_UNIX_S, rate
from fakes.stores import Clock, Memory, peers_at
from slowtok.proxy.history.peers import peers as module
from slowtok.proxy.history.peers.peer_key import PeerKey
from slowtok.proxy.history.peers.peers import LONGEST_PAUSE_S, MAX_PLACES, REFRESH_S, Breaker, Told
from slowtok.proxy.history.peers.store import MAX_OF_A_CARD, pack, unpack

MINE, THEIRS = PeerKey(setup="s", card="mine"), PeerKey(setup="s", card="theirs")


@pytest.fixture
def store() -> Memory:
    return Memory(NOW_UNIX_S)


def stored(store: Memory, place: PeerKey) -> list[float]:
    row = store.rows[place.setup][place.card]
    return [rate.tps for rate in unpack(row, now_unix_s=store.time_unix_s)]


def test_nothing_is_asked_in_the_requests_way(store: Memory) -> None:
    peers = peers_at(store)
    peers.tell(MINE, [rate()])

    assert peers.of(MINE) == Told()
    assert store.calls == 0


def test_a_row_is_read_by_the_others(store: Memory) -> None:
    mine, theirs = peers_at(store), peers_at(store)
    theirs.tell(THEIRS, [rate(140.0), rate(141.0, days_ago=1)])
    theirs.sync()
    mine.of(MINE)
    mine.sync()

    told = mine.of(MINE)
    assert told.mine == ()
    assert [[r.tps for r in card] for card in told.others] == [[141.0, 140.0]]


def test_it_is_not_asked_again_before_time(store: Memory) -> None:
    clock = Clock()
    peers = peers_at(store, clock)
    peers.of(MINE)
    peers.sync()
    before = store.calls

    clock.now_s += REFRESH_S - 1
    peers.of(MINE)
    peers.sync()
    assert store.calls == before

    clock.now_s += 1
    peers.of(MINE)
    peers.sync()
    assert store.calls > before


def test_a_card_that_begins_anew_keeps_what_it_had_told(store: Memory) -> None:
    store.rows["s"] = {"mine": pack([rate(140.0, days_ago=n) for n in range(1, 9)])}
    peers = peers_at(store)
    peers.tell(MINE, [rate(150.0)])
    peers.sync()

    assert stored(store, MINE) == [140.0] * (MAX_OF_A_CARD - 1) + [150.0]
    assert len(peers.of(MINE).mine) == MAX_OF_A_CARD


def test_a_store_that_is_away_costs_one_try_a_pause(store: Memory) -> None:
    clock = Clock()
    peers = peers_at(store, clock)
    store.fault = ConnectionError("Connection refused")
    for _ in range(100):
        peers.of(MINE)
        peers.tell(MINE, [rate()])
        peers.sync()

    assert store.calls == 1
    assert peers.failures == 1
    assert peers.failure == "nothing listens there"
    assert peers.status()["retry_in_s"] == 1.0


def test_what_was_learned_meanwhile_is_told_when_it_is_back(store: Memory) -> None:
    clock = Clock()
    peers = peers_at(store, clock)
    store.fault = TimeoutError()
    peers.tell(MINE, [rate(150.0)])
    peers.sync()
    peers.tell(MINE, [rate(150.0), rate(151.0, days_ago=-0.1)])
    assert peers.status()["rows_waiting"] == 1

    store.fault, clock.now_s = None, clock.now_s + 1
    peers.sync()

    assert stored(store, MINE) == [150.0, 151.0]
    assert peers.failure is None
    assert peers.status()["state"] == "answers"
    assert peers.status()["rows_waiting"] == 0
    assert "retry_in_s" not in peers.status()


def test_what_is_known_stays_while_it_is_away(store: Memory) -> None:
    clock = Clock()
    peers = peers_at(store, clock)
    store.rows["s"] = {"theirs": pack([rate()])}
    peers.of(MINE)
    peers.sync()
    store.fault, clock.now_s = TimeoutError(), clock.now_s + 10 * REFRESH_S
    peers.of(MINE)
    peers.sync()

    assert peers.failure is not None
    assert len(peers.of(MINE).others) == 1


def test_a_setup_that_always_fails_does_not_hold_up_the_others(
    store: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, read = Clock(), store.read
    peers = peers_at(store, clock)

    def broken(place: PeerKey) -> dict[str, bytes]:
        if place == MINE:
            raise TypeError("WRONGTYPE")
        return read(place)

    monkeypatch.setattr(store, "read", broken)
    peers.tell(MINE, [rate()])
    peers.tell(PeerKey(setup="t", card="mine"), [rate(99.0)])
    for _ in range(2):
        peers.sync()
        clock.now_s += 1

    assert stored(store, PeerKey(setup="t", card="mine")) == [99.0]


@pytest.mark.parametrize("row", [b"nonsense", pack([rate(days_ago=40)]), b"[]"])
def test_rows_of_no_use_are_cleared_away(row: bytes, store: Memory) -> None:
    store.rows["s"] = {"theirs": row, "good": pack([rate()])}
    peers = peers_at(store)
    peers.of(MINE)
    peers.sync()

    assert list(store.rows["s"]) == ["good"]
    assert len(peers.of(MINE).others) == 1
    assert peers.status()["rows_unreadable"] == (row == b"nonsense")


def test_memory_is_bounded(store: Memory) -> None:
    peers = peers_at(store)
    for number in range(MAX_PLACES + 50):
        place = PeerKey(setup=str(number), card="mine")
        peers.of(place)
        peers.tell(place, [rate()])
    assert peers.status()["rows_waiting"] == MAX_PLACES

    peers.sync()
    assert len(store.rows) == MAX_PLACES


def test_its_thread_sends_what_waits_before_the_end(store: Memory) -> None:
    peers = peers_at(store)
    peers.start()
    peers.tell(MINE, [rate()])
    peers.close()

    assert stored(store, MINE) == [150.0]
    assert store.closed


def test_the_end_waits_for_no_store(store: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    monkeypatch.setattr(store, "check", hanging.wait)
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    peers = peers_at(store)
    peers.start()

    peers.close()
    hanging.set()


def test_it_is_closed_at_first() -> None:
    assert Breaker(Clock()).left_s == 0.0


def test_each_failure_doubles_the_pause_up_to_a_limit() -> None:
    clock = Clock()
    breaker, pauses = Breaker(clock), []
    for _ in range(11):
        breaker.failed()
        pauses.append(breaker.left_s)
        clock.now_s += breaker.left_s
        assert breaker.left_s == 0.0

    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_success_begins_anew() -> None:
    breaker = Breaker(Clock())
    breaker.failed()
    breaker.failed()
    breaker.succeeded()
    assert breaker.left_s == 0.0

    breaker.failed()
    assert breaker.left_s == 1.0
