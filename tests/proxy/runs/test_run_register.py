"""Which run a request belongs to, and the number and parent of its turn."""

from typing import Any

from fakes.conversations import body
from fakes.run_records import BEGAN_UNIX_S, run_record
from slowtok.proxy.http.run_clues import Clues
from slowtok.proxy.runs.chain import Messages, message_hashes_of
from slowtok.proxy.runs.run_register import (
    KEEP_OPEN,
    KEY_BYTES,
    MAX_IDLE_S,
    RunPosition,
    RunRegister,
)
from slowtok.proxy.stream.prompt_fingerprint import fingerprint_prompt

KEY = bytes(KEY_BYTES)


class Client:
    """Sends requests one after the other, each a second long."""

    def __init__(self, register: RunRegister | None = None) -> None:
        self.register = register or RunRegister(KEY)
        self.now_s = 1000.0
        self.sent = 0

    def ask(
        self, said: dict[str, Any] | None, clues: Clues | None = None, *, response: str = ""
    ) -> RunPosition:
        name = self.begin(said, clues)
        place = self.register.place_by_prompt(name, clues, prompt(said), self.now_s, self.now_s)
        self.now_s += 1.0
        self.register.end(name, self.now_s, response=response or None)
        self.now_s += 0.25
        return place

    def begin(self, said: dict[str, Any] | None, clues: Clues | None = None) -> str:
        self.sent += 1
        name = f"request-{self.sent}"
        self.register.place(name, clues, self.now_s, self.now_s)
        return name


def prompt(said: dict[str, Any] | None) -> Messages | None:
    printed = None if said is None else fingerprint_prompt(said)
    return None if printed is None else message_hashes_of(printed)


def session(name: str, **more: Any) -> Clues:
    return Clues(ids=(("session", name),), **more)


def trace(name: str) -> Clues:
    return Clues(ids=(("trace", name),))


def test_a_client_without_ids_is_followed_by_its_prompts() -> None:
    client = Client()
    places = [client.ask(body(steps)) for steps in range(3)]

    assert len({place.id for place in places}) == 1
    assert [place.turn for place in places] == [1, 2, 3]
    assert [place.parent for place in places] == [None, 1, 2]
    assert {place.by for place in places} == {"prompt"}


def test_two_agents_in_turn_are_two_runs() -> None:
    client = Client()
    one = [client.ask(body(steps)).id for steps in range(2)]
    other = [client.ask(body(steps, task="Write a poem on the sea.")).id for steps in range(2)]

    assert len(set(one)) == len(set(other)) == 1
    assert one[0] != other[0]


def test_a_session_is_one_run_whatever_its_prompts_are() -> None:
    client = Client()
    first, second = client.ask(body(0), session("s")), client.ask(body(0, task="x"), session("s"))
    other = client.ask(body(1), session("t"))

    assert first.id == second.id != other.id
    assert second.by == "session"


def test_ids_are_not_kept_as_they_are() -> None:
    place = Client().ask(body(0), session("secret-session"))

    assert "secret" not in repr(place)
    assert len(place.id) == 16
    assert (
        place.id != Client(RunRegister(b"1" * KEY_BYTES)).ask(body(0), session("secret-session")).id
    )


def test_a_name_that_somebody_gave_is_shown() -> None:
    assert Client().ask(body(0), Clues(ids=(("url", "night"),))).name == "night"


def test_sub_agents_are_children_of_the_turn_that_began_them() -> None:
    client = Client()
    client.ask(body(0), session("s"))
    child = client.ask(body(0, task="Look it up."), session("s", agent="a1"))
    again = client.ask(body(1, task="Look it up."), session("s", agent="a1"))
    grandchild = client.ask(body(0, task="More."), session("s", agent="a2", parent_agent="a1"))
    back = client.ask(body(1), session("s"))

    assert [place.parent for place in (child, again, grandchild, back)] == [1, 2, 3, 1]


def test_a_session_that_another_began_is_in_its_run() -> None:
    client = Client()
    main = client.ask(body(0), session("s"))
    child = client.ask(body(0, task="Look it up."), session("c", parent_session="s"))

    assert child.id == main.id
    assert child.parent == main.turn


def test_parallel_branches_have_one_parent() -> None:
    client = Client()
    client.ask(body(1))
    forks = [body(1), body(1)]
    for number, fork in enumerate(forks):
        fork["messages"].append({"role": "user", "content": f"Look at side {number} of it."})
    one, other = (client.ask(fork) for fork in forks)

    assert one.parent == other.parent == 1
    assert one.id == other.id


def test_an_answer_that_a_client_names() -> None:
    client = Client()
    first = client.ask(body(0), response="resp_1")
    second = client.ask(None, Clues(ids=(("previous_response_id", "resp_1"),)))

    assert second.id == first.id
    assert (second.by, second.turn) == ("previous_response_id", 2)


def test_a_trace_is_a_run() -> None:
    client = Client()
    first, second = client.ask(body(0), trace("t")), client.ask(body(0, task="x"), trace("t"))
    other = client.ask(body(1), trace("u"))

    assert first.id == second.id != other.id


def test_a_client_that_begins_a_trace_with_each_request_is_followed_by_its_prompts() -> None:
    client = Client()
    places = [client.ask(body(steps), trace(f"t{steps}")) for steps in range(4)]

    assert len({place.id for place in places}) == 1
    assert places[-1].by == "prompt"


def test_the_same_name_after_a_long_time_is_another_run() -> None:
    client = Client()
    before = client.ask(body(0), session("s"))
    client.now_s += MAX_IDLE_S + 1
    after = client.ask(body(0), session("s"))

    assert before.id != after.id
    assert client.ask(body(1), session("s")).id == after.id


def test_time_between_two_turns_is_the_clients() -> None:
    client = Client()
    client.ask(body(0))
    client.ask(body(1))

    assert client.register.since_previous_s("request-1") is None
    assert client.register.since_previous_s("request-2") == 0.25


def test_a_named_run_goes_on_after_a_restart() -> None:
    client = Client()
    before = client.ask(body(0), session("s"))
    told = {"id": before.id, "by": "session", "turn": 7}
    restarted = RunRegister(KEY)
    restarted.restore([run_record(7, 0.0, run=told)], client.now_s, BEGAN_UNIX_S + 5.0)
    client.register = restarted

    after = client.ask(body(1), session("s"))

    assert (after.id, after.turn, after.parent) == (before.id, 8, 7)


def test_records_of_another_shape_are_left_out() -> None:
    register = RunRegister(KEY)

    register.restore([{}, {"run": 3}, {"run": {"id": "x"}}, run_record(1, 0.0) | {"ts": "?"}], 1, 1)


def test_memory_is_bounded() -> None:
    client = Client()
    for number in range(KEEP_OPEN + 100):
        client.begin(None, session(str(number)))

    assert client.register.since_previous_s("request-1") is None
    assert client.ask(body(0), session("again")).turn == 1
