"""Who else was at the engine while one request was there, from the requests themselves."""

from dataclasses import replace

import pytest

from slowtok.detectors.case.case import Neighbours, Phases
from slowtok.proxy.observe.concurrency import Look, count_neighbours, with_looks
from slowtok.proxy.observe.occupancy import Occupancy, OccupancyLog, in_flight_at
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.meter import Meter

NOW_S = 100.0
PATH = "/v1/chat/completions"
API = find_api("POST", PATH)
MINE = Phases(
    source="engine",
    total_s=20.0,
    prefill_from_at_s=15.0,
    decode_from_at_s=20.0,
    decode_to_at_s=30.0,
)


def exchange(
    sent_at_s: float | None,
    end_s: float | None = None,
    *,
    first_at_s: float | None = None,
    stream: bool = True,
    engine: str = "a",
) -> Exchange:
    made = Exchange(
        request_id="x",
        method="POST",
        path=PATH,
        started_unix_s=0.0,
        accepted_at_s=0.0,
        api=API,
        stream=stream,
        engine_name=engine,
        sent_at_s=sent_at_s,
        last_byte_at_s=end_s,
    )
    assert API is not None
    made.meter = Meter(API, "text/event-stream")
    made.meter.first_at_s = first_at_s
    return made


def count(*others: Exchange, phases: Phases = MINE, sent_at_s: float | None = 10.0) -> Neighbours:
    met = OccupancyLog().overlapping(exchange(sent_at_s), others, NOW_S)
    return count_neighbours(in_flight_at(sent_at_s, met), phases, met)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(exchange(1.0, 10.0, first_at_s=2.0), id="gone when I came"),
        pytest.param(exchange(30.0, 40.0, first_at_s=31.0), id="came when I was done"),
        pytest.param(exchange(9.0, 90.0, first_at_s=9.0, engine="b"), id="at another engine"),
        pytest.param(exchange(None, 90.0), id="never sent"),
    ],
)
def test_does_not_count(other: Exchange) -> None:
    assert count(other) == Neighbours()


def test_decode_of_no_length_has_no_mean() -> None:
    phases = replace(MINE, decode_from_at_s=20.0, decode_to_at_s=20.0)

    assert count(exchange(1.0, 90.0, first_at_s=2.0), phases=phases).decode_mean == 0.0


def test_what_is_no_generation_does_not_count() -> None:
    other = exchange(9.0, 90.0, first_at_s=9.0)
    other.api = None

    assert count(other) == Neighbours()


def test_request_that_was_never_sent_met_nobody() -> None:
    never = Phases(source="estimate", total_s=20.0)

    assert count(exchange(1.0, 90.0, first_at_s=2.0), phases=never, sent_at_s=None) == Neighbours()


def test_one_that_was_there_all_the_time() -> None:
    assert count(exchange(5.0, 40.0, first_at_s=6.0)) == Neighbours(
        in_flight_at_send=1, decode_mean=1.0, decode_max=1
    )


def test_one_that_left_while_this_one_waited() -> None:
    assert count(exchange(5.0, 11.0, first_at_s=6.0)) == Neighbours(in_flight_at_send=1)


def test_decodes_only_from_its_own_first_token_on() -> None:
    met = count(exchange(19.0, 40.0, first_at_s=25.0))

    assert (met.decode_mean, met.decode_max, met.in_flight_at_send) == (0.5, 1, 0)


def test_one_that_still_waits_does_not_decode() -> None:
    met = count(exchange(19.0, first_at_s=None))

    assert (met.decode_mean, met.decode_max) == (0.0, 0)


def test_reply_that_is_not_streamed_decodes_from_its_sending_on() -> None:
    assert count(exchange(28.0, 40.0, stream=False)).decode_mean == pytest.approx(0.2)


def test_one_that_goes_on_is_counted_until_now() -> None:
    assert count(exchange(5.0, first_at_s=6.0)).decode_mean == 1.0


def test_one_that_broke_off_is_counted_until_its_end() -> None:
    other = exchange(5.0, first_at_s=6.0)
    other.ended_at_s = 25.0

    assert count(other).decode_mean == 0.5


def test_most_at_once_are_those_that_overlap() -> None:
    met = count(
        exchange(19.0, 24.0, first_at_s=19.0),
        exchange(24.0, 30.0, first_at_s=24.0),
        exchange(23.0, 26.0, first_at_s=23.0),
    )

    assert met.decode_max == 2
    assert met.decode_mean == pytest.approx((4 + 6 + 3) / 10)


@pytest.mark.parametrize(
    "phases", [replace(MINE, decode_from_at_s=None), replace(MINE, decode_to_at_s=None)]
)
def test_decode_that_is_not_known_has_no_neighbours(phases: Phases) -> None:
    met = count(exchange(5.0, 40.0, first_at_s=6.0), phases=phases)

    assert (met.decode_mean, met.decode_max) == (0.0, 0)


def looks(*seen: tuple[float, int]) -> list[Look]:
    return [Look(at_s, busy) for at_s, busy in seen]


BUSY = looks((15.0, 4), (21.0, 3), (25.0, 2), (29.0, 1), (31.0, 4))
ONE_LOOK = looks((25.0, 4))


def test_slots_show_neighbours_that_went_past_the_proxy() -> None:
    found = with_looks(Neighbours(decode_mean=0.2, decode_max=1), MINE, BUSY, slots=4, own_slots=1)

    assert found.decode_mean == pytest.approx(1.0)
    assert found.decode_max == 2
    assert found.counted


def test_slots_show_that_a_neighbour_only_waited() -> None:
    alone = looks((21.0, 1), (25.0, 1))

    found = with_looks(Neighbours(decode_mean=1.0, decode_max=1), MINE, alone, slots=1, own_slots=1)

    assert (found.decode_mean, found.decode_max) == (0.0, 0)


def test_the_slots_of_my_own_choices_are_no_neighbours() -> None:
    both = looks((21.0, 2), (25.0, 2))

    assert with_looks(Neighbours(), MINE, both, slots=2, own_slots=2).decode_mean == 0.0


@pytest.mark.parametrize(("slots", "mean"), [(None, 2.5), (4, 2.5), (2, 1.0), (1, 0.0)])
def test_without_enough_looks_the_guess_is_cut_to_the_other_slots(
    slots: int | None, mean: float
) -> None:
    guessed = Neighbours(decode_mean=2.5, decode_max=3)

    assert with_looks(guessed, MINE, ONE_LOOK, slots=slots, own_slots=1).decode_mean == mean


def test_there_from_its_sending_until_its_end() -> None:
    met = [Occupancy(1.0, 2.0, 5.0)]

    assert [in_flight_at(at_s, met) for at_s in (0.5, 1.0, 5.0)] == [0, 1, 0]


def ended(number: int, sent_at_s: float, end_s: float, *, engine: str = "a") -> Exchange:
    other = exchange(sent_at_s, end_s, stream=False, engine=engine)
    other.request_id = f"{number}"
    return other


def test_those_that_ended_after_a_request_came_were_there_with_it() -> None:
    stays, mine = OccupancyLog(), ended(0, 10.0, 15.0)
    mine.accepted_at_s = 10.0
    before, beside, elsewhere = (
        ended(1, 1.0, 9.0),
        ended(2, 2.0, 11.0),
        ended(3, 2.0, 12.0, engine="b"),
    )
    for other in (before, beside, elsewhere, mine):
        stays.note(other, NOW_S)

    assert stays.overlapping(mine, (), NOW_S) == [Occupancy(2.0, 2.0, 11.0, "2")]


def test_one_that_a_slow_client_held_up_hides_nobody() -> None:
    stays, mine = OccupancyLog(), ended(0, 50.0, 65.0)
    mine.accepted_at_s = 50.0
    stays.note(ended(1, 2.0, 60.0), 60.0)
    stays.note(ended(2, 1.0, 9.0), 61.0)  # read to its end long after its last byte had come

    assert stays.overlapping(mine, (), NOW_S) == [Occupancy(2.0, 2.0, 60.0, "1")]


def test_a_request_is_no_neighbour_of_its_own() -> None:
    mine = exchange(10.0, first_at_s=11.0)

    assert OccupancyLog().overlapping(mine, (mine,), NOW_S) == []
