"""Learned baselines through real stores: PostgreSQL, and Valkey or Redis."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import redis

from fakes.baselines import with_baseline
from fakes.cases import with_timeline
from fakes.learning import learn, rate
from fakes.sharing import on
from fakes.stores import (
    PASSWORD,
    Clock,
    Running,
    postgresql_program,
    running_postgresql,
    running_valkey,
    valkey_program,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.cli.demo.children import free_port
from slowtok.proxy.history.baselines import Baselines
from slowtok.proxy.history.learned_store import LearnedStore
from slowtok.proxy.history.peers.peer_key import PeerKey
from slowtok.proxy.history.peers.peers import Peers
from slowtok.proxy.history.peers.store import (
    LIMIT_S,
    MAX_CARDS,
    Store,
    in_words,
    open_store,
    pack,
    unpack,
)
from slowtok.proxy.history.rates import LearnedRate

HAS_VALKEY = pytest.mark.skipif(valkey_program() is None, reason="no valkey-server or redis-server")
HAS_POSTGRESQL = pytest.mark.skipif(
    postgresql_program("postgres") is None or postgresql_program("initdb") is None,
    reason="PostgreSQL's server is not installed",
)
KINDS = (
    pytest.param("valkey", marks=HAS_VALKEY),
    pytest.param("postgresql", marks=HAS_POSTGRESQL),
)
PLACE = PeerKey(setup="a setup", card="mine")
DAY_S = 86_400.0


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with running_valkey() as running:
        yield running


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Running]:
    with running_postgresql() as running:
        yield running


@pytest.fixture(params=KINDS)
def running(request: pytest.FixtureRequest) -> Running:
    found: Running = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def url(running: Running) -> str:
    """The URL of an empty store."""
    found = running.url
    if found.startswith("redis"):
        with redis.Redis.from_url(found) as client:
            client.flushall()
    else:
        with psycopg.connect(found, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS slowtok_rates")
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with opened(url) as store:
        yield store


@contextlib.contextmanager
def opened(url: str) -> Iterator[Store]:
    store = open_store(url)
    store.check()
    try:
        yield store
    finally:
        store.close()


def now(tps: float = 150.0) -> bytes:
    """A row with one rate of this moment."""
    return pack([rate_now(tps)])


def rate_now(tps: float = 150.0, *, later_s: float = 0.0) -> LearnedRate:
    return replace(rate(tps), at_unix_s=time.time() + later_s)


def test_an_empty_store_has_no_rows(store: Store) -> None:
    assert store.read(PLACE) == {}


def test_what_one_writes_the_other_reads(url: str, store: Store) -> None:
    other = PeerKey(setup=PLACE.setup, card="theirs")
    with opened(url) as theirs:
        theirs.write(other, now(140.0), at_unix_s=time.time())
        store.write(PLACE, now(150.0), at_unix_s=time.time())
        store.write(PLACE, now(151.0), at_unix_s=time.time())

        found = {c: unpack(r, now_unix_s=time.time()) for c, r in theirs.read(PLACE).items()}

    assert {card: [rate.tps for rate in rates] for card, rates in found.items()} == {
        "mine": [151.0],
        "theirs": [140.0],
    }
    assert store.read(PeerKey(setup="another", card="mine")) == {}


def test_of_many_cards_some_are_read_and_always_the_own_one(store: Store) -> None:
    store.write(PLACE, now(), at_unix_s=time.time() - DAY_S)
    for number in range(MAX_CARDS + 20):
        place = PeerKey(setup=PLACE.setup, card=f"card {number}")
        store.write(place, now(), at_unix_s=time.time())

    found = store.read(PLACE)

    assert "mine" in found
    assert MAX_CARDS <= len(found) <= MAX_CARDS + 1


def test_what_is_forgotten_is_gone(store: Store) -> None:
    store.write(PLACE, now(), at_unix_s=time.time())

    store.forget(PLACE.setup, [PLACE.card, "never there"])

    assert store.read(PLACE) == {}


def test_it_has_a_clock_of_its_own(store: Store) -> None:
    assert abs(store.now_unix_s() - time.time()) < 60.0


def test_many_at_once_begin_and_write(url: str) -> None:
    failed: list[Exception] = []

    def replica(number: int) -> None:
        try:
            with opened(url) as store:
                for _ in range(20):
                    place = PeerKey(setup=PLACE.setup, card=f"card {number}")
                    store.write(place, now(), at_unix_s=time.time())
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is to see it
            failed.append(error)

    threads = [threading.Thread(target=replica, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    with opened(url) as store:
        assert len(store.read(PLACE)) == 8


def test_a_new_machine_learns_from_the_others(url: str) -> None:
    fleet = [Peers(open_store(url), named="x", now_s=Clock()) for _ in range(4)]
    places = [PeerKey(setup=PLACE.setup, card=f"card {number}") for number in range(4)]
    for number in range(3):
        fleet[number].tell(places[number], [rate_now(150.0 + n, later_s=n) for n in (1, 2)])
        fleet[number].sync()

    assert fleet[3].of(places[3]).others == ()
    fleet[3].sync()

    told = fleet[3].of(places[3])
    assert told.mine == ()
    assert [[rate.tps for rate in card] for card in told.others] == [[151.0, 152.0]] * 3
    assert {peers.status()["state"] for peers in fleet} == {"answers"}
    for peers in fleet:
        peers.close()


def test_a_slow_new_machine_is_seen_by_what_its_peers_gave(url: str, tmp_path: Path) -> None:
    def machine(name: str) -> tuple[Baselines, Peers, LearnedStore]:
        kept, peers = (
            LearnedStore(tmp_path / name),
            Peers(open_store(url), named="x", now_s=Clock()),
        )
        return Baselines(kept, peers=peers, made_by="1"), peers, kept

    def request(card: str, tps: float) -> Case:
        return with_timeline(on(card, tps), started_unix_s=time.time())

    fleet = [machine(name) for name in ("a", "b", "c", "new")]
    for (baselines, peers, _), card in zip(fleet, "abc", strict=False):
        learn(baselines, *[request(card, 150.0 + n) for n in range(4)])
        peers.sync()
    slow, (baselines, peers, _) = request("new", 100.0), fleet[3]
    baselines.find(slow)
    peers.sync()
    judged = with_baseline(slow, baselines.find(slow))
    for _, each, kept in fleet:
        each.close()
        kept.close()

    assert diagnose(slow).verdict == "normal"
    assert diagnose(judged).verdict == "slow"
    assert "12 healthy requests on 3 peers with the same card" in str(judged.envelope.because)


def test_the_thread_does_it_by_itself(url: str) -> None:
    peers = Peers(open_store(url), named="x")
    peers.start()
    peers.tell(PLACE, [rate_now()])
    peers.close()  # writes what waits

    with opened(url) as store:
        assert list(store.read(PLACE)) == [PLACE.card]


def test_a_wrong_password_is_said_without_it(url: str) -> None:
    store = open_store(url.replace(PASSWORD, "wr0ng"))
    with pytest.raises((redis.RedisError, psycopg.Error)) as raised:
        store.check()
    store.close()

    assert in_words(raised.value) == "it refuses the user or the password"


@HAS_VALKEY
def test_a_setup_in_valkey_goes_by_itself(valkey: Running) -> None:
    with opened(valkey.url) as store, redis.Redis.from_url(valkey.url) as client:
        store.write(PLACE, now(), at_unix_s=time.time())
        [key] = client.keys("*")

        assert key == b"slowtok:rates:a setup"
        assert 29 * DAY_S < int(str(client.ttl(key))) <= 30 * DAY_S


@HAS_POSTGRESQL
def test_old_rows_in_postgresql_are_deleted(postgresql: Running) -> None:
    with opened(postgresql.url) as store, psycopg.connect(postgresql.url) as connection:
        connection.execute("DELETE FROM slowtok_rates")
        connection.commit()
        for number, age_days in enumerate((31, 29)):
            place = PeerKey(setup="pruned", card=f"card {number}")
            store.write(place, now(), at_unix_s=time.time() - age_days * DAY_S)

    with opened(postgresql.url) as later:
        later.write(PeerKey(setup="any", card="any"), now(), at_unix_s=time.time())
        assert list(later.read(PeerKey(setup="pruned", card="mine"))) == ["card 1"]


@HAS_POSTGRESQL
def test_a_user_who_may_not_create_uses_the_table_that_is_there(postgresql: Running) -> None:
    other = postgresql.url.replace("slowtok:", "guest:")
    with opened(postgresql.url), psycopg.connect(postgresql.url, autocommit=True) as connection:
        connection.execute(f"CREATE USER guest PASSWORD '{PASSWORD}'")
        connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON slowtok_rates TO guest")

    with opened(other) as store:
        store.write(PLACE, now(), at_unix_s=time.time())
        assert PLACE.card in store.read(PLACE)


@pytest.mark.skipif(sys.platform == "win32", reason="stops a process with a signal")
def test_a_server_that_has_stopped_costs_its_time_limit(running: Running, url: str) -> None:
    peers = Peers(open_store(url), named="x", now_s=Clock())
    running.process.send_signal(signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        peers.tell(PLACE, [rate_now()])
        took_to_tell_s = time.monotonic() - began_s
        peers.sync()
        took_s = time.monotonic() - began_s
    finally:
        running.process.send_signal(signal.SIGCONT)

    assert took_to_tell_s < LIMIT_S / 2
    assert took_s < 5 * LIMIT_S
    assert peers.failure == f"no answer within {LIMIT_S:g} s"
    peers.close()


@HAS_POSTGRESQL
def test_a_table_that_is_locked_costs_the_time_limit(postgresql: Running) -> None:
    with opened(postgresql.url) as store, psycopg.connect(postgresql.url) as other:
        other.execute("LOCK TABLE slowtok_rates IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(psycopg.Error) as raised:
            store.read(PLACE)
        other.rollback()

        assert in_words(raised.value) == f"no answer within {LIMIT_S:g} s"
        assert store.read(PLACE) is not None  # with a new connection


@pytest.mark.parametrize("scheme", ["redis", "valkey", "postgresql"])
def test_where_nobody_listens_is_said_so(scheme: str) -> None:
    store = open_store(f"{scheme}://user:{PASSWORD}@127.0.0.1:{free_port()}/0")
    with pytest.raises((redis.RedisError, psycopg.Error)) as raised:
        store.check()

    assert in_words(raised.value) == "nothing listens there"
