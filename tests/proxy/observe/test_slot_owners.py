"""Whose a slot is, and what that tells of prefills: looks and times are data."""

from typing import Any

import pytest

from slowtok.proxy.engines.counters.slots import SlotsLook, WorkingSlot
from slowtok.proxy.observe.slot_owners import SlotOwners
from slowtok.proxy.outputs.in_flight import running_entry
from slowtok.proxy.relay.exchange import Exchange, PromptEstimate, Queued, SlotProgress
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.meter import Meter

CHAT = find_api("POST", "/v1/chat/completions")
assert CHAT is not None
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


def request(name: str, sent_at_s: float, **more: Any) -> Exchange:
    return Exchange(
        request_id=name, method="POST", path="/v1/chat/completions", started_unix_s=0.0,
        accepted_at_s=sent_at_s, sent_at_s=sent_at_s, api=CHAT, model="m", engine_name="e",
        **{"stream": True, **more},
    )  # fmt: skip


def with_token(exchange: Exchange, at_s: float) -> Exchange:
    assert CHAT is not None
    exchange.meter = Meter(CHAT, "text/event-stream")
    exchange.observe(TOKEN, at_s)
    return exchange


def slot(task: int, computed: int = 0, decoded: int = 0, *, cached: int = 0) -> WorkingSlot:
    return WorkingSlot(task, computed + cached, computed, decoded, None)


def look(*working: WorkingSlot, slots: int = 4) -> SlotsLook:
    return SlotsLook(slots, len(working), working)


def task_of(exchange: Exchange) -> int | None:
    return exchange.slot.slot.task if isinstance(exchange.slot, SlotProgress) else None


def test_the_only_prefill_is_that_of_the_only_one_who_waits() -> None:
    decoding, waiting = with_token(request("a", 1.0), 2.0), request("b", 3.0)
    SlotOwners().note(look(slot(1, 50, 9), slot(2, 2048)), [decoding, waiting], 4.0)

    assert (task_of(decoding), task_of(waiting)) == (None, 2)


@pytest.mark.parametrize(
    ("working", "asked"),
    [
        ([slot(1), slot(2)], [request("a", 1.0)]),  # one of them is another's
        ([slot(1)], [request("a", 1.0), request("b", 1.0)]),
        ([slot(1, 50, 3)], [request("a", 1.0)]),  # a stream's answer would have been seen
        ([slot(1, 50, 3), slot(2, 50, 3)], [request("a", 1.0, stream=False)]),
        ([], [request("a", 1.0)]),
        ([slot(1)], [request("a", 9.0)]),  # sent after the look
        ([slot(1)], [with_token(request("a", 1.0), 2.0)]),
    ],
)
def test_where_it_could_be_another_nothing_is_said(
    working: list[WorkingSlot], asked: list[Exchange]
) -> None:
    SlotOwners().note(look(*working), asked, 4.0)

    assert [task_of(exchange) for exchange in asked] == [None] * len(asked)


def test_a_task_that_was_there_before_is_not_its() -> None:
    owners, waiting = SlotOwners(), request("b", 3.0)
    owners.note(look(slot(1)), [], 2.0)
    owners.note(look(slot(1)), [waiting], 4.0)

    assert task_of(waiting) is None


def test_a_task_once_known_stays_known_and_is_nobody_elses() -> None:
    owners, first, second = SlotOwners(), request("a", 1.0), request("b", 5.0)
    owners.note(look(slot(1, 0)), [first], 2.0)
    owners.note(look(slot(1, 2048), slot(2, 0)), [first, second], 6.0)
    assert (task_of(first), task_of(second)) == (1, 2)

    owners.note(look(slot(1, 4096), slots=1), [second], 7.0)  # the first client has hung up
    assert second.slot == Queued(slots=1)


def test_a_full_engine_that_reads_nothing_of_ours_lets_it_wait() -> None:
    owners, waiting, whole = SlotOwners(), request("a", 1.0), request("b", 1.0, stream=False)
    owners.note(look(slot(1, 9, 9), slot(2, 9, 9), slots=2), [waiting, whole], 2.0)

    assert (waiting.slot, whole.slot) == (Queued(slots=2), None)  # that may be one of them
    assert running_entry(waiting, 2.0)["phase"] == "queue"
    assert running_entry(waiting, 2.0)["queue_slots"] == 2
    owners.note(look(slot(2, 9, 9), slot(3, 0), slots=2), [waiting], 3.0)
    assert running_entry(waiting, 3.0)["phase"] == "prefill"


def test_a_whole_reply_waits_where_all_slots_are_known_to_be_others() -> None:
    owners, first, whole = SlotOwners(), request("a", 1.0), request("b", 5.0, stream=False)
    owners.note(look(slot(1, 0), slots=1), [first], 2.0)
    owners.note(look(slot(1, 2048), slots=1), [first, whole], 6.0)
    assert running_entry(whole, 6.0)["phase"] == "queue"

    owners.note(look(slot(2, 0), slots=1), [whole], 7.0)
    assert (running_entry(whole, 7.0)["phase"], task_of(whole)) == ("whole", 2)


def reading(*computed_at: tuple[int, float], guess: PromptEstimate | None = None) -> Exchange:
    owners, one = SlotOwners(), request("a", 0.0, prompt_estimate=guess)
    for computed, at_s in computed_at:
        owners.note(look(slot(1, computed, cached=1000)), [one], at_s)
    return one


def test_progress_of_a_long_prompt() -> None:
    guess = PromptEstimate(tokens=21_000, new_tokens=20_000, tps=None)
    one = reading((0, 0.5), (2048, 2.0), (2048, 2.5), (4096, 4.0), guess=guess)

    found = running_entry(one, 5.0)["prefill"]

    assert found == {
        "tokens": 5096, "about_tokens": 21_000, "tps": 1024.0, "source": "slots",
        "eta_s": pytest.approx((21_000 - 5096) / 1024 - 1, abs=0.01),
        "silent_s": 1.0, "step_s": 2.0,
    }  # fmt: skip


def test_a_guess_that_was_too_short_is_not_held_against_what_is_told() -> None:
    guess = PromptEstimate(tokens=100, new_tokens=100, tps=None)
    found = running_entry(reading((4096, 4.0), guess=guess), 5.0)["prefill"]

    assert (found["about_tokens"], found["eta_s"]) == (5096, 0.0)


def test_without_a_guess_no_end_is_foretold() -> None:
    found = running_entry(reading((4096, 4.0)), 5.0)["prefill"]

    assert found.keys() == {"tokens", "tps", "silent_s", "step_s", "source"}


def test_before_its_first_step_the_rate_is_that_of_earlier_requests() -> None:
    guess = PromptEstimate(tokens=5000, new_tokens=5000, tps=1000.0)
    found = running_entry(reading((0, 0.5), guess=guess), 1.0)["prefill"]

    assert (found["tps"], found["eta_s"], found["source"]) == (
        1000.0,
        3.0,
        "estimate",
    )  # 1,000 were cached


def test_an_engine_without_slots_leaves_an_estimate() -> None:
    guess = PromptEstimate(tokens=5000, new_tokens=2000, tps=1000.0)
    one = request("a", 0.0, prompt_estimate=guess)
    found = running_entry(one, 0.5)

    assert found["phase"] == "waiting"
    assert found["prefill"] == {
        "about_tokens": 5000, "tps": 1000.0, "eta_s": 1.5, "source": "estimate",
    }  # fmt: skip
    assert "prefill" not in running_entry(with_token(one, 1.0), 1.5)
    assert "prefill" not in running_entry(request("a", 0.0), 0.5)


def test_a_whole_reply_that_is_alone_shows_its_answer() -> None:
    owners, one = SlotOwners(), request("a", 0.0, stream=False)
    for decoded, at_s in ((5, 1.0), (25, 2.0), (45, 3.0)):
        owners.note(look(slot(1, 50, decoded)._replace(remaining_tokens=99)), [one], at_s)

    found = running_entry(one, 4.0)

    assert (found["phase"], found["tokens"], found["remaining_tokens"]) == ("whole", 45, 99)
    assert (found["decode_tps"], found["silent_s"]) == (20.0, 1.0)
    assert "prefill" not in found
