"""What is held is counted to the byte, for all together and for each exchange."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slowtok.config.settings import load
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.memory_budget import MemoryBudget
from slowtok.proxy.relay.settings import relay_settings
from slowtok.proxy.server.edge import make_relay

ANY = cast(Any, None)


def exchange() -> Exchange:
    return Exchange(request_id="a", method="POST", path="/", started_unix_s=0.0, accepted_at_s=0.0)


@pytest.mark.parametrize(
    ("limit_bytes", "sizes", "taken", "now_bytes"),
    [
        (10, [], [], 0),
        (10, [10], [True], 10),
        (10, [11], [False], 0),
        (10, [4, 6], [True, True], 10),
        (10, [4, 7, 6], [True, False, True], 10),
        (10, [10, 1], [True, False], 10),
        (0, [0, 1], [True, False], 0),
    ],
)
def test_no_more_is_taken_than_there_is_room_for(
    limit_bytes: int, sizes: list[int], taken: list[bool], now_bytes: int
) -> None:
    held, one = MemoryBudget(limit_bytes), exchange()

    assert [held.reserve(one, size) for size in sizes] == taken
    assert held.now_bytes == one.held_bytes == now_bytes
    assert held.summary() == {"now_bytes": now_bytes, "most_bytes": now_bytes}


@pytest.mark.parametrize(
    ("given", "left"),
    [([], 6), ([None], 0), ([2], 4), ([2, 4], 0), ([2, None], 0), ([7], 0), ([None, 6], 0)],
)
def test_an_exchange_gives_back_its_own_and_no_more(given: list[int | None], left: int) -> None:
    held, one, other = MemoryBudget(10), exchange(), exchange()
    assert held.reserve(one, 6)
    assert held.reserve(other, 3)

    for size_bytes in given:
        held.release(one, size_bytes)

    assert (one.held_bytes, other.held_bytes, held.now_bytes) == (left, 3, left + 3)
    assert held.most_bytes == 9


def test_slow_readers_leave_half_of_the_room_to_others() -> None:
    held, reader, other = MemoryBudget(10), exchange(), exchange()

    assert held.reserve_for_reader(reader, 5)
    assert not held.reserve_for_reader(reader, 1)
    assert held.reserve(other, 5)


def test_what_was_given_back_is_room_again() -> None:
    held, one, other = MemoryBudget(10), exchange(), exchange()
    assert held.reserve(one, 8)
    assert not held.reserve(other, 3)

    held.release(one)

    assert held.reserve(other, 3)
    assert held.summary() == {"now_bytes": 3, "most_bytes": 8}


def test_who_is_refused_makes_room_at_once_and_is_told_the_setting() -> None:
    held, one = MemoryBudget(10), exchange()
    assert held.reserve(one, 8)

    error = held.release_and_refuse(one, "this request")

    assert held.now_bytes == one.held_bytes == 0
    assert (error.status, error.ended) == (503, "overloaded")
    assert "max_held_bytes" in error.check


@pytest.mark.parametrize(
    ("given", "limit_bytes", "max_body_bytes", "max_reply_bytes"),
    [
        ({}, 512 << 20, 64 << 20, 32 << 20),
        ({"workers": 4}, 128 << 20, 64 << 20, 32 << 20),
        ({"workers": 256}, 2 << 20, 2 << 20, 2 << 20),
        ({"max_held_bytes": 1000}, 1000, 1000, 1000),
        ({"max_held_bytes": 0}, 0, 0, 0),
    ],
)
async def test_each_process_has_its_share_and_holds_nothing_that_is_more(
    given: dict[str, int], limit_bytes: int, max_body_bytes: int, max_reply_bytes: int
) -> None:
    watch: Any = SimpleNamespace(failures=Counter())
    relay = make_relay(relay_settings(load(given, {})), ANY, ANY, watch)

    assert relay.memory_budget.limit_bytes == limit_bytes
    assert (relay._max_body_bytes, relay._max_reply_bytes) == (max_body_bytes, max_reply_bytes)
