"""What slots tell, on a recorded reply, and their counts in a window."""

from typing import Any

import orjson
import pytest

from fakes import recordings
from slowtok.proxy.engines.counters.slots import (
    BusySlots,
    SlotLog,
    SlotsLook,
    WorkingSlot,
    read_slots,
)
from slowtok.proxy.engines.probing.reply import ProbeReply

RECORDED = recordings.unframe(recordings.load("llama-server-2026.10.slots")).body


def answer(body: bytes, status: int = 200) -> ProbeReply:
    return ProbeReply(status=status, headers={}, body=body)


def test_recorded_idle_slots() -> None:
    assert read_slots(answer(RECORDED)) == SlotsLook(2, 0, ())


def working(**said: Any) -> SlotsLook | None:
    slots = orjson.loads(RECORDED)
    slots[1] |= {"is_processing": True, **said}
    return read_slots(answer(orjson.dumps(slots)))


AT_WORK = {
    "id_task": 7,
    "n_prompt_tokens": 5000,  # what is in the slot: it grows on with the answer
    "n_prompt_tokens_processed": 4096,
    "n_prompt_tokens_cache": 100,
    "next_token": [{"has_next_token": True, "n_remain": 90, "n_decoded": 10}],
}


def test_busy_slots() -> None:
    assert working(**AT_WORK) == SlotsLook(2, 1, (WorkingSlot(7, 4196, 4096, 10, 90),))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"next_token": {"n_decoded": 3, "n_remain": -1}}, (WorkingSlot(7, 4196, 4096, 3, None),)),
        ({"n_prompt_tokens_processed": None}, None),  # before b9276
        ({"next_token": []}, None),
        ({"id_task": -1}, None),
        ({"n_prompt_tokens_cache": "many"}, None),
    ],
)
def test_slots_that_tell_less(
    change: dict[str, Any], found: tuple[WorkingSlot, ...] | None
) -> None:
    assert working(**{**AT_WORK, **change}) == SlotsLook(2, 1, found)


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
def test_what_tells_nothing(reply: ProbeReply | None) -> None:
    assert read_slots(reply) is None


def test_window() -> None:
    log = SlotLog()
    for at_s, count in ((1.0, 1), (2.0, 3), (3.0, 2)):
        log.note(at_s, SlotsLook(4, count, None))

    assert log.window(1.5, 3.0) == (BusySlots(2.0, 3, 4), BusySlots(3.0, 2, 4))
    assert log.window(4.0, 5.0) == ()


def test_a_slot_reads_its_prompt_until_it_answers() -> None:
    answering, reading, unstarted = (
        WorkingSlot(task, computed, computed, decoded, None)
        for task, computed, decoded in ((7, 40, 3), (8, 2048, 0), (9, 0, 0))
    )
    log = SlotLog()
    log.note(1.0, SlotsLook(4, 3, (answering, reading, unstarted)))

    assert log.window(0.0, 2.0) == (
        BusySlots(1.0, 3, 4, frozenset({9}), frozenset({8}), frozenset({7})),
    )
