"""Messages between two processes; both ends are in this one here."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from slowtok.proxy.workers import channel
from slowtok.proxy.workers.channel import Channel, Handlers

LONG_S = 30.0  # nothing takes nearly as long


async def late() -> None:
    await asyncio.Event().wait()


async def said_later(what: str) -> str:
    await asyncio.sleep(0)
    return what


def broken() -> None:
    raise RuntimeError("broken")


class Pair:
    """Two ends, of which the far one answers."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []
        self.failed: list[str] = []
        self._hears = asyncio.Event()

    def _hear(self, *said: object) -> None:
        self.heard.append(said)
        self._hears.set()

    def _work(self, number: int) -> None:
        """Take longer than one turn of the loop may."""
        until_s = time.monotonic() + 2 * channel.TURN_S
        while time.monotonic() < until_s:
            pass
        self.heard.append((number,))

    async def hears(self) -> None:
        """Wait until something was told."""
        async with asyncio.timeout(LONG_S):
            await self._hears.wait()

    async def connect(self) -> None:
        answers: Handlers = {
            "hear": self._hear,
            "same": lambda said: said,
            "later": said_later,
            "never": late,
            "broken": broken,
            "slow": self._work,
        }
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        self.near, self.far = Channel({}, self.failed.append), Channel(answers, self.failed.append)
        await loop.create_unix_connection(lambda: self.near, sock=near)
        await loop.create_unix_connection(lambda: self.far, sock=far)

    async def ask(self, name: str, *said: object, timeout_s: float = LONG_S) -> object:
        return await self.near.wait_for_answer(self.near.ask(name, *said), timeout_s)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    await made.connect()
    yield made
    made.near.close()
    made.far.close()


async def test_what_is_told_arrives_in_order(pair: Pair) -> None:
    for number in range(100):
        pair.near.tell("hear", number, b"x" * number * 1000)

    await pair.ask("same", 0)

    assert [said[0] for said in pair.heard] == list(range(100))


async def test_what_is_told_waits_for_company_and_goes_with_what_is_asked(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "GATHER_S", LONG_S)
    sent: list[bytes] = []
    transport = SimpleNamespace(write=sent.append, is_closing=lambda: False, close=lambda: None)
    transport.get_write_buffer_size = lambda: 0
    monkeypatch.setattr(pair.near, "_transport", transport)
    for number in range(3):
        pair.near.tell("hear", number)
        await asyncio.sleep(0)
    assert sent == []

    pair.near.ask("same", 0)
    await asyncio.sleep(0)
    assert len(sent) == 1


async def test_what_is_told_alone_goes_too(pair: Pair) -> None:
    pair.near.tell("hear", "alone")
    await pair.hears()

    assert pair.heard == [("alone",)]


async def test_questions_find_their_answers(pair: Pair) -> None:
    asked = [pair.near.ask("later", str(n)) for n in range(50)]
    asked.append(pair.near.ask("same", "at once"))

    found = [await pair.near.wait_for_answer(each, LONG_S) for each in asked]

    assert found == [*map(str, range(50)), "at once"]


async def test_handler_that_breaks_costs_its_message_only(pair: Pair) -> None:
    pair.near.tell("unknown")

    assert await pair.ask("broken") is None
    assert await pair.ask("same", 1) == 1
    assert pair.failed == ["unknown", "broken"]


async def test_answer_that_is_late_is_not_waited_for(pair: Pair) -> None:
    assert await pair.ask("never", timeout_s=0.01) is None
    assert pair.near.is_silent

    assert await pair.ask("same", 1) == 1
    assert not pair.near.is_silent


async def test_whoever_waits_is_told_when_the_other_end_is_gone(pair: Pair) -> None:
    asked = pair.near.ask("never")
    pair.far.close()

    assert await pair.near.wait_for_answer(asked, LONG_S) is None
    await pair.near.ended
    assert pair.near.is_full
    assert await pair.ask("same", 1) is None
    pair.near.tell("hear", 1)


async def test_end_that_does_not_read_fills_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slowtok.proxy.workers.channel.MAX_UNREAD_BYTES", 1 << 20)
    assert not pair.near.is_full
    pair.near.ask("same", b"x" * (8 << 20))
    await asyncio.sleep(0)  # what one turn of the loop asks is sent together

    assert pair.near.is_full
    assert await pair.ask("same", 1) is None


def _reading_of(end: Channel) -> asyncio.Transport:
    assert end._transport is not None
    return end._transport


async def test_who_is_far_ahead_waits_until_the_other_side_has_caught_up(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "FAR_BEHIND_BYTES", 1024)
    pair.near.close()
    await pair.connect()
    _reading_of(pair.far).pause_reading()
    pair.near.tell("hear", b"x" * 2**24)  # more than the sockets hold
    pair.near.flush()

    waiting = asyncio.ensure_future(pair.near.wait_until_caught_up(LONG_S))
    done, _ = await asyncio.wait((waiting,), timeout=0.05)
    assert not done
    _reading_of(pair.far).resume_reading()
    await waiting

    await pair.ask("same", 0)
    assert len(pair.heard) == 1


async def test_nobody_waits_longer_than_that_for_the_other_side(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "FAR_BEHIND_BYTES", 1024)
    pair.near.close()
    await pair.connect()
    _reading_of(pair.far).pause_reading()
    pair.near.tell("hear", b"x" * 2**24)
    pair.near.flush()

    async with asyncio.timeout(LONG_S):
        await pair.near.wait_until_caught_up(0.01)
    _reading_of(pair.far).resume_reading()


async def test_who_gave_up_waits_again_only_when_the_other_side_has_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "FAR_BEHIND_BYTES", 1024)
    monkeypatch.setattr(channel, "CAUGHT_UP_BYTES", 512)
    pair.near.close()
    await pair.connect()
    _reading_of(pair.far).pause_reading()
    pair.near.tell("hear", b"x" * 2**24)
    pair.near.flush()
    await pair.near.wait_until_caught_up(0.01)

    async with asyncio.timeout(LONG_S):
        await pair.near.wait_until_caught_up(10 * LONG_S)  # it is stopped: at once
    _reading_of(pair.far).resume_reading()
    await pair.hears()


async def test_many_messages_leave_room_for_others_in_each_turn_of_the_loop(pair: Pair) -> None:
    for number in range(5):
        pair.near.tell("slow", number)
    pair.near.flush()
    turns: list[int] = []
    while len(pair.heard) < 5:
        turns.append(len(pair.heard))
        await asyncio.sleep(0)

    assert {1, 2, 3, 4} <= set(turns)
    assert [said[0] for said in pair.heard] == list(range(5))


async def test_no_more_is_read_than_can_be_handled(pair: Pair) -> None:
    for number in range(20):
        pair.near.tell("slow", number)
        pair.near.tell("hear", b"x" * channel.READ_AHEAD_BYTES)
        pair.near.flush()
    was_paused = False
    async with asyncio.timeout(LONG_S):
        while len(pair.heard) < 40:
            was_paused = was_paused or not _reading_of(pair.far).is_reading()
            await asyncio.sleep(0)

    assert was_paused
    assert _reading_of(pair.far).is_reading()


async def test_what_is_still_here_is_handled_when_the_other_end_is_gone(pair: Pair) -> None:
    for number in range(10):
        pair.near.tell("slow", number)
    pair.near.close()
    await pair.far.ended

    assert [said[0] for said in pair.heard] == list(range(10))
