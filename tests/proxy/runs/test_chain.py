"""What a prompt goes on from: the rule's own cases, and those that only look like one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.conversations import SYSTEM, TASK, body, step
from slowtok.proxy.runs.chain import (
    KEEP_REQUESTS,
    MAX_LINK_AGE_S,
    Chain,
    EarlierRequest,
    Messages,
    best_of,
    message_hashes_of,
    new_chars,
)
from slowtok.proxy.stream.prompt_fingerprint import fingerprint_prompt


def messages(said: dict[str, Any]) -> Messages:
    printed = fingerprint_prompt(said)
    assert printed is not None
    return message_hashes_of(printed)


def link(said: dict[str, Any], name: str = "a", at_s: float = 1.0, **facts: Any) -> EarlierRequest:
    return EarlierRequest(name, at_s, messages(said), seen_s=at_s, **{"ended": True, **facts})


def found(
    said: dict[str, Any], *links: EarlierRequest, at_s: float = 100.0
) -> tuple[str, str] | None:
    chain = Chain()
    for one in links:
        chain.add(one)
    best = chain.find(messages(said), at_s)
    return None if best is None else (best.link.request, best.how)


def few_shot(question: str) -> dict[str, Any]:
    """A prompt with examples, as batch jobs send thousands."""
    examples = [
        {"role": "user", "content": "Is this good: I like it very much"},
        {"role": "assistant", "content": "It is good, by all means."},
        {"role": "user", "content": "Is this good: I hate it very much"},
        {"role": "assistant", "content": "It is bad, by all means."},
    ]
    system = {"role": "system", "content": SYSTEM}
    return {"messages": [system, *examples, {"role": "user", "content": question}]}


def test_the_same_task_begun_again_is_another_run() -> None:
    assert found(body(0), link(body(0))) is None


def test_another_task_is_another_run() -> None:
    assert found(body(1, task="Write a poem about the sea."), link(body(0))) is None


def test_prompts_with_the_same_examples_are_no_run() -> None:
    assert found(few_shot("Is this good: so so"), link(few_shot("Is this good: oh yes"))) is None


def test_short_answers_that_many_give_tie_nothing_together() -> None:
    def chat(task: str, more: str) -> dict[str, Any]:
        said = [("user", task), ("assistant", "Yes."), ("user", more)]
        return {"messages": [{"role": role, "content": text} for role, text in said]}

    assert found(chat("Is it late in Rome?", "And now?"), link(chat("Is it warm?", "Why?"))) is None


def test_what_is_too_long_ago_is_another_run() -> None:
    before = link(body(0))

    assert found(body(1), before, at_s=2.0 + MAX_LINK_AGE_S) is None


def test_a_short_text_continues_nothing() -> None:
    assert found({"prompt": "Hello you"}, link({"prompt": "Hello"})) is None


def test_a_conversation_that_goes_on() -> None:
    assert found(body(3), link(body(2)), link(body(1), "b")) == ("a", "continued")


def test_of_two_runs_of_one_task_the_newer_one_goes_on() -> None:
    older = [link(body(n), f"old-{n}", n, continued=n < 3) for n in range(4)]
    newer = link(body(0), "new", 50.0)

    assert found(body(1), *older, newer) == ("new", "continued")


def test_the_agent_of_its_own_system_prompt_goes_on() -> None:
    writer, critic = link(body(0, system="Write."), "writer"), link(body(0, system="Judge."), "c")

    assert found(body(1, system="Write."), writer, critic) == ("writer", "continued")


@pytest.mark.parametrize("steps", [1, 5])
def test_a_clock_in_the_system_prompt(steps: int) -> None:
    before = link(body(steps - 1, system=f"It is 12:00:{steps}. {SYSTEM}"))

    assert found(body(steps, system=f"It is 12:01:{steps}. {SYSTEM}"), before) == ("a", "changed")


def test_a_clock_in_the_first_message() -> None:
    assert found(body(1, task=f"12:01 {TASK}"), link(body(0, task=f"12:00 {TASK}"))) == (
        "a",
        "changed",
    )


def test_tools_in_another_order() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("weather", "search")]

    assert found(body(2) | {"tools": tools}, link(body(1) | {"tools": tools[::-1]})) == (
        "a",
        "changed",
    )


def test_two_that_continue_the_same_one_are_branches() -> None:
    fork = body(2)
    fork["messages"].append({"role": "user", "content": "Now look at the other side of it."})

    assert found(fork, link(body(2), continued=True)) == ("a", "branched")


def test_the_same_again_after_a_failure() -> None:
    assert found(body(0), link(body(0), failed=True)) == ("a", "repeated")


def refused_its_tools() -> tuple[dict[str, Any], dict[str, Any]]:
    """A request with tools, and the next one, which has them in text, as CrewAI sends them."""
    tools = [{"type": "function", "function": {"name": "weather"}}]
    said = {"role": "user", "content": "Tools cannot be called here: write Action: and its input."}
    return body(0) | {"tools": tools}, {"messages": [*body(0)["messages"], said]}


def test_without_tools_after_they_were_refused() -> None:
    before, after = refused_its_tools()

    assert found(after, link(before, failed=True)) == ("a", "changed")


def test_without_tools_after_a_reply() -> None:
    before, after = refused_its_tools()

    assert found(after, link(before)) is None


def test_an_answer_asked_for_again() -> None:
    assert found(body(2), link(body(2))) == ("a", "repeated")


def test_a_conversation_that_lost_its_beginning() -> None:
    whole = body(4)
    cut = {"messages": [whole["messages"][0], *whole["messages"][4:], *step(4)]}

    assert found(cut, link(whole)) == ("a", "compacted")


def test_a_summary_in_place_of_most_of_it() -> None:
    whole = body(6)
    summary = {"role": "user", "content": "Summary: it was warm."}
    cut = {"messages": [whole["messages"][0], summary, *whole["messages"][-2:], *step(6)]}

    assert found(cut, link(whole)) == ("a", "compacted")


def test_a_text_that_grows() -> None:
    text = "Once upon a time there was a language model that was slow, and nobody knew why. " * 2

    assert found({"prompt": f"{text}Then somebody asked."}, link({"prompt": text})) == (
        "a",
        "continued",
    )


def test_what_is_new_in_a_prompt() -> None:
    printed = fingerprint_prompt(body(2))
    assert printed is not None

    assert new_chars(printed, None).keys() == {"system", "user", "assistant", "tool"}
    assert new_chars(printed, messages(body(1))).keys() == {"assistant", "tool"}


def test_the_memory_is_bounded() -> None:
    chain = Chain()
    for number in range(2 * KEEP_REQUESTS):
        chain.add(link(body(1, of=f"{number}-"), str(number), float(number)))

    assert chain.find(messages(body(2, of="0-")), 2000.0) is None
    assert chain.find(messages(body(2, of=f"{2 * KEEP_REQUESTS - 1}-")), 2000.0)


SAYINGS = st.tuples(
    st.sampled_from(["user", "assistant", "tool"]),
    st.sampled_from(["one of the few texts", "another of the few", "and a third one here"]),
)


@st.composite
def few_words(draw: st.DrawFn) -> dict[str, Any]:
    """A prompt of so few texts that many of them have some in common."""
    system = draw(st.sampled_from([[], [("system", SYSTEM)], [("system", SYSTEM + " Be brief.")]]))
    said = [*system, *draw(st.lists(SAYINGS, min_size=1, max_size=4))]
    return {"messages": [{"role": role, "content": text} for role, text in said]}


@given(few_words(), st.lists(few_words(), max_size=12))
def test_no_request_is_overlooked(said: dict[str, Any], earlier: list[dict[str, Any]]) -> None:
    links = [link(one, str(number), at_s=1.0 + number) for number, one in enumerate(earlier)]
    best = best_of(links, messages(said), 100.0)

    assert found(said, *links) == (None if best is None else (best.link.request, best.how))
