"""Counting the slots at work, on a recorded reply and in a window."""

import orjson
import pytest

from fakes import recordings
from slowtok.proxy.servers.reply import Reply
from slowtok.proxy.servers.slots import BusySlots, SlotLog, read_busy

RECORDED = recordings.unframe(recordings.load("llama-server-2026.10.slots")).body


def answer(body: bytes, status: int = 200) -> Reply:
    return Reply(status=status, headers={}, body=body)


def test_recorded_idle_slots() -> None:
    assert read_busy(answer(RECORDED)) == 0


def test_busy_slots() -> None:
    slots = orjson.loads(RECORDED)
    slots[1]["is_processing"] = True

    assert read_busy(answer(orjson.dumps(slots))) == 1


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(None, id="no answer"),
        pytest.param(answer(b'{"error":{"code":501}}', 501), id="switched off"),
        pytest.param(answer(b"[]", 404), id="no such path"),
        pytest.param(answer(b"{}"), id="no list"),
        pytest.param(answer(b"[{}]"), id="no flag"),
        pytest.param(answer(b"no JSON"), id="no JSON"),
    ],
)
def test_what_tells_nothing(reply: Reply | None) -> None:
    assert read_busy(reply) is None


def test_window() -> None:
    log = SlotLog()
    for at_s, count in ((1.0, 1), (2.0, 3), (3.0, 2)):
        log.note(at_s, count)

    assert log.window(1.5, 3.0) == (BusySlots(2.0, 3), BusySlots(3.0, 2))
    assert log.window(4.0, 5.0) == ()
