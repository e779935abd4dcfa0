"""Comparing a prompt with an earlier one without keeping any of it."""

import pickle
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowtok.detectors.case.case import DifferenceKind, PromptPrefix
from slowtok.proxy.stream.prompt_fingerprint import (
    COARSE_BLOCK_CHARS,
    FINE_BLOCK_CHARS,
    FINE_CHARS,
    MAX_PRINTED_CHARS,
    PromptFingerprint,
    compare,
    fingerprint_prompt,
    parts_of,
)


def words(count: int, word: str = "word") -> str:
    """Text without repetition, so that a place in it is found only there."""
    return " ".join(f"{word}{i}." for i in range(count))


def chat(*contents: Any, **more: Any) -> dict[str, Any]:
    roles = ["system", *["user", "assistant"] * len(contents)]
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    return {"model": "x", "messages": messages, **more}


def printed(said: dict[str, Any]) -> PromptFingerprint:
    taken = fingerprint_prompt(said)
    assert taken is not None
    return taken


def against(new: dict[str, Any], old: dict[str, Any]) -> PromptPrefix:
    return compare(printed(new), printed(old), age_s=2.5)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"messages": []},
        {"messages": None},
        {"messages": "text"},
        {"messages": 3},
        {"messages": [None, 7, "x", []]},
        {"messages": [{}, {"role": "user"}, {"role": "user", "content": ""}]},
        {"prompt": ""},
        {"prompt": None},
        {"tools": [], "messages": []},
        {"input": ""},
        {"input": [3, "x"]},
        {"input": "more", "previous_response_id": "resp_1"},  # the engine alone has the rest
        {"prompt": "more", "context": [1, 2, 3]},
    ],
)
def test_without_a_prompt_there_is_no_print(said: dict[str, Any]) -> None:
    assert fingerprint_prompt(said) is None


def items(*texts: str) -> list[dict[str, Any]]:
    """A conversation as Responses send it back: a question, a call, its result, an answer."""
    question, arguments, result, answer = texts
    return [
        {"role": "user", "content": question},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": result},
        {"type": "message", "id": "m", "role": "assistant", "content": [{"text": answer}]},
    ]


def test_responses_have_instructions_and_input() -> None:
    said = {"instructions": "Be short.", "input": items("What?", "{}", "7", "Seven.")}
    taken = printed(said)

    assert [span.role for span in taken.spans] == [
        "system", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert [span.role for span in printed({"input": "What?"}).spans] == ["user"]
    assert printed({"input": "What?"}) == printed({"messages": items("What?", "", "", "")[:1]})


@pytest.mark.parametrize(
    ("new", "message", "role"),
    [
        ({"instructions": "Be long.", "input": items("What?", "{}", "7", "Seven.")}, 0, "system"),
        ({"instructions": "Be short.", "input": items("What?", "{}", "8", "Eight.")}, 3, "tool"),
        (
            {
                "instructions": "Be short.",
                "input": [*items("What?", "{}", "7", "Seven."), *items("And?", "{}", "9", "Nine.")],
            },
            5,
            "user",
        ),
    ],
    ids=["other instructions", "another result", "the conversation went on"],
)
def test_where_two_responses_differ(new: dict[str, Any], message: int, role: str) -> None:
    old = {"instructions": "Be short.", "input": items("What?", "{}", "7", "Seven.")}
    found = against(new, old)

    assert (found.difference_message, found.difference_role) == (message, role)


def test_anthropics_system_and_blocks() -> None:
    said = {
        "system": [{"type": "text", "text": "Be short."}],
        "tools": [{"name": "f"}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}]}],
    }
    changed = {**said, "system": [{"type": "text", "text": "Be long."}]}

    assert [span.role for span in printed(said).spans] == ["system", "tools", "user"]
    assert against(changed, said).difference_role == "system"


def test_anthropics_results_of_tools_are_not_the_users_words() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "7"}
    said = {"messages": [{"role": "user", "content": [result]}, {"role": "user", "content": "So?"}]}

    assert [span.role for span in printed(said).spans] == ["tool", "user"]


SYSTEM, QUESTION, ANSWER = words(400, "rule"), words(20, "ask"), words(200, "say")
FIRST = chat(SYSTEM, QUESTION)


@pytest.mark.parametrize(
    "said",
    [
        FIRST,
        chat("short"),
        chat("x" * FINE_BLOCK_CHARS),
        chat(words(20_000)),
        chat(
            [
                {"type": "text", "text": SYSTEM},
                {"type": "image_url", "image_url": {"url": "data:,"}},
            ]
        ),
        chat(SYSTEM, None, tools=[{"type": "function", "function": {"name": "f"}}]),
        chat("åß水🎉 \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16") * 100),
        {"prompt": SYSTEM},
        {"prompt": [SYSTEM, QUESTION]},
        {"prompt": [1, 2, 3]},
        {"system": SYSTEM, "prompt": QUESTION},
    ],
)
def test_the_same_prompt_has_no_difference(said: dict[str, Any]) -> None:
    same = against(said, said)

    assert same.chars > 0
    assert same.common_prefix_chars == same.chars
    assert same.shared_ratio == 1.0
    assert (same.first_difference, same.difference_message, same.difference_role) == (None,) * 3
    assert same.previous_age_s == 2.5


def test_another_prompt_has_nothing_in_common() -> None:
    other = against(chat(words(100, "a")), chat(words(100, "b")))

    assert (other.common_prefix_chars, other.shared_ratio) == (0, 0.0)
    assert (other.first_difference, other.difference_message, other.difference_role) == (
        0,
        0,
        "system",
    )


def test_a_growing_conversation_keeps_its_beginning() -> None:
    grown = against(chat(SYSTEM, QUESTION, ANSWER, words(9, "next")), FIRST)
    before = len(SYSTEM) + len(QUESTION)

    assert before - FINE_BLOCK_CHARS < grown.common_prefix_chars <= before
    assert grown.shared_ratio == pytest.approx(before / grown.chars, abs=0.01)


@pytest.mark.parametrize("at", [0, 1, 15, 16, 79, 80, 1000])
def test_a_changed_place_in_the_system_message_is_found(at: int) -> None:
    """As with a header that counts up: character 79 is from a real report."""
    changed = SYSTEM[:at] + "#" + SYSTEM[at + 1 :]
    found = against(chat(changed, QUESTION), FIRST)

    assert found.first_difference is not None
    assert found.first_difference <= at < found.first_difference + found.granularity_chars
    assert found.granularity_chars == FINE_BLOCK_CHARS
    assert found.common_prefix_chars == found.first_difference
    assert (found.difference_message, found.difference_role) == (0, "system")
    assert found.shared_ratio > 0.99


NAMES = ("table", "number", "river", "stone", "cloud", "paper", "window", "garden", "letter")
SERIES = [n * 7919 % 1009 for n in range(4000)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(" ".join(NAMES[n % 9] for n in SERIES), id="words without a sentence"),
        pytest.param("".join(f'"{NAMES[n % 9]}":{n},' for n in SERIES), id="JSON on one line"),
        pytest.param(",".join(map(str, SERIES)), id="numbers"),
        pytest.param("".join(f"第{n}个字。" for n in SERIES), id="Chinese sentences"),
    ],
)
def test_what_is_inserted_in_front_leaves_the_rest_known(text: str) -> None:
    """A clock that reads 10:00 after 9:59 moves all that follows by a character."""

    found = against(chat("10:00 " + text, QUESTION), chat("9:59 " + text, QUESTION))

    assert found.common_prefix_chars == 0
    assert found.shared_ratio > 0.9


def test_a_changed_place_far_into_the_prompt_is_found_more_coarsely() -> None:
    long = words(20_000)
    at = FINE_CHARS + 50_000
    found = against(chat(long[:at] + "#" + long[at + 1 :]), chat(long))

    assert found.granularity_chars == COARSE_BLOCK_CHARS
    assert found.common_prefix_chars <= at < found.common_prefix_chars + COARSE_BLOCK_CHARS


def test_a_difference_is_told_by_its_message_and_the_place_in_it() -> None:
    new = chat(SYSTEM, QUESTION, ANSWER[:500] + "#" + ANSWER[501:], words(9, "next"))
    found = against(new, chat(SYSTEM, QUESTION, ANSWER, words(9, "next")))

    assert (found.difference_message, found.difference_role) == (2, "assistant")
    assert found.first_difference is not None
    assert 500 - FINE_BLOCK_CHARS < found.first_difference <= 500


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def test_tools_stand_behind_the_system_message() -> None:
    found = against(
        chat(SYSTEM, QUESTION, tools=tools("get_time", "get_weather")),
        chat(SYSTEM, QUESTION, tools=tools("get_weather", "get_time")),
    )

    assert (found.difference_message, found.difference_role) == (1, "tools")
    assert len(SYSTEM) - FINE_BLOCK_CHARS < found.common_prefix_chars < len(SYSTEM) + 80
    assert found.shared_ratio > 0.9


def test_a_system_message_counts_as_such_wherever_the_api_has_it() -> None:
    said = {"system": SYSTEM, "messages": chat(SYSTEM, QUESTION)["messages"], "tools": [{"a": 1}]}

    assert [s.role for s in printed(said).spans] == ["system", "system", "tools", "user"]


def test_reordered_messages_share_their_text_and_not_their_beginning() -> None:
    found = against(chat(SYSTEM, ANSWER, QUESTION), chat(QUESTION, ANSWER, SYSTEM))

    assert found.common_prefix_chars == 0
    assert found.shared_ratio > 0.95


def test_a_message_that_was_cut_out_in_the_middle() -> None:
    found = against(chat(SYSTEM, QUESTION, words(9)), chat(SYSTEM, ANSWER, QUESTION, words(9)))

    assert len(SYSTEM) - FINE_BLOCK_CHARS < found.common_prefix_chars <= len(SYSTEM)
    assert found.shared_ratio > 0.95


def test_a_prompt_that_is_the_beginning_of_an_earlier_one() -> None:
    found = against(chat(SYSTEM), FIRST)

    assert len(SYSTEM) - FINE_BLOCK_CHARS < found.common_prefix_chars <= len(SYSTEM)
    assert found.shared_ratio > 0.99


def test_a_long_prompt_is_compared_as_far_as_it_is_printed() -> None:
    long = words(300_000)
    assert len(long) > MAX_PRINTED_CHARS
    same = against(chat(long), chat(long + "and more"))
    found = against(chat("#" + long[1:]), chat(long))

    assert same.chars == same.common_prefix_chars == MAX_PRINTED_CHARS
    assert same.first_difference is None
    assert found.common_prefix_chars == 0
    assert found.shared_ratio > 0.99


def test_messages_beyond_what_is_printed_have_no_size_and_are_not_compared() -> None:
    beyond = chat("rules", words(300_000), "answer", "question")
    parts = parts_of(printed(beyond))
    same = against(beyond, chat("rules", words(300_000), "answer", "another"))

    assert parts.chars == MAX_PRINTED_CHARS
    assert parts.last_user_chars == 0 < parts.system_chars
    assert parts.messages == 4
    assert same.common_prefix_chars == MAX_PRINTED_CHARS
    assert same.difference_message is None


def test_a_long_line_without_a_sentence_in_it() -> None:
    same = against({"prompt": "x" * MAX_PRINTED_CHARS}, {"prompt": "x" * MAX_PRINTED_CHARS})

    assert same.common_prefix_chars == MAX_PRINTED_CHARS


def reachable(value: Any) -> Iterator[Any]:
    """Everything that a value holds, however deep."""
    yield value
    if is_dataclass(value):
        for field in fields(value):
            yield from reachable(getattr(value, field.name))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from (*reachable(key), *reachable(inner))
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from reachable(inner)


def test_nothing_of_the_prompt_can_be_reached_from_its_print() -> None:
    secret = "Zebra7"
    said = chat(f"{secret}\n", [{"type": "text", "text": secret}], secret, tools=[{"name": secret}])
    said["messages"] += [{"role": secret, "content": secret, "name": secret}]
    said["messages"] += [{"role": [secret], "tool_calls": [{"id": secret}]}]
    taken = printed(said)
    texts = {value for value in reachable(taken) if isinstance(value, str | bytes)}

    roles = {"tools", "system", "user", "assistant", "other"}
    assert texts <= roles | set(get_args(DifferenceKind))
    assert secret not in repr(taken)
    assert secret.encode() not in pickle.dumps(taken)
    assert secret not in repr(compare(taken, printed(chat(secret)), 1.0))


CONTENTS = st.lists(st.text(max_size=60) | st.none(), min_size=1, max_size=5)


@given(new=CONTENTS, old=CONTENTS)
def test_any_two_prompts_compare_soundly(new: list[str | None], old: list[str | None]) -> None:
    one, two = fingerprint_prompt(chat(*new)), fingerprint_prompt(chat(*old))
    if one is None or two is None:
        return
    found = compare(one, two, 1.0)
    a, b = ("".join(text or "" for text in texts) for texts in (new, old))
    really = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )

    assert found.chars == len(a)
    assert really - FINE_BLOCK_CHARS < found.common_prefix_chars <= really
    assert 0.0 <= found.shared_ratio <= 1.0
    assert (found.first_difference is None) == (found.common_prefix_chars == found.chars)


PNG = "iVBORw0KGgoAAAANSUhEUgAABAAAAAMACAIAAAA"  # the head of one of 1024 x 768 pixels
PHOTO = "data:image/png;base64," + PNG + "A" * 2_000_001


def looked_at(*urls: str, text: str = QUESTION) -> list[dict[str, Any]]:
    """A message's content with images."""
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"type": "text", "text": text}, *images]


def test_an_image_counts_by_its_size_in_tokens() -> None:
    without, taken = printed(chat(SYSTEM, QUESTION)), printed(chat(SYSTEM, looked_at(PHOTO)))
    tokens = (taken.chars - without.chars) / 4

    assert tokens == pytest.approx(1024 * 768 / 28**2, rel=0.05)
    assert parts_of(taken).image_chars == pytest.approx(4 * tokens, rel=0.05)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": QUESTION, "images": [PNG + "A" * 4000]},
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "data": PNG + "A" * 4001}},
                {"type": "text", "text": QUESTION},
            ],
        },
        {"role": "user", "content": [{"type": "input_image", "image_url": PHOTO}]},
    ],
    ids=["Ollama", "Anthropic", "Responses"],
)
def test_images_of_every_api(message: dict[str, Any]) -> None:
    taken = printed({"messages": [message]})

    assert 3000 < taken.chars < 6000
    assert parts_of(taken).image_chars > 3000


def test_the_same_image_is_the_same_and_another_is_not() -> None:
    first, other = chat(SYSTEM, looked_at(PHOTO)), chat(SYSTEM, looked_at(PHOTO + "A"))

    assert against(first, first).common_prefix_chars == printed(first).chars
    found = against(other, first)
    assert found.difference_role == "user"
    assert found.common_prefix_chars < len(SYSTEM) + len(QUESTION) + 200
    assert (found.image_chars > 0, found.common_image_chars) == (True, 0)


def test_markers_that_no_engine_reads_are_no_difference() -> None:
    """Claude Code moves its cache markers from message to message."""
    marked = {"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}

    assert printed(chat(SYSTEM, [marked])) == printed(chat(SYSTEM, QUESTION))


REMINDER = "<system-reminder>\nBe careful with the files.\n</system-reminder>"
RESULT = {"role": "tool", "content": ANSWER}


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (chat(SYSTEM, QUESTION), chat(SYSTEM, f"{QUESTION}\n"), "whitespace"),
        (chat(SYSTEM, QUESTION + REMINDER), chat(SYSTEM, QUESTION), "reminder"),
        (
            chat(SYSTEM, f"<memory_context>likes tea</memory_context>\n{QUESTION}"),
            chat(SYSTEM, f"<memory_context>likes rain</memory_context>\n{QUESTION}"),
            "reminder",
        ),
        (
            {"messages": [{"role": "assistant", "content": "Yes.", "reasoning_content": ANSWER}]},
            {"messages": [{"role": "assistant", "content": "Yes."}]},
            "reasoning",
        ),
        (
            {"messages": [RESULT]},
            {"messages": [{**RESULT, "content": "[Old tool result content cleared]"}]},
            "pruned",
        ),
        (chat("Tell a story."), chat("Sing a song."), "text"),
        (
            chat(f"It is 08:00:01. {SYSTEM}{REMINDER}"),
            chat(f"It is 08:00:02. {SYSTEM}"),
            "time",
        ),
    ],
)
def test_what_kind_of_change_it_was(old: dict[str, Any], new: dict[str, Any], kind: str) -> None:
    assert against(new, old).difference_kind == kind


def test_a_conversation_that_goes_on_only_grew() -> None:
    grown = against(chat(SYSTEM, QUESTION, ANSWER, "And?"), chat(SYSTEM, QUESTION))
    changed = against(chat(SYSTEM, "Other", ANSWER, "And?"), chat(SYSTEM, QUESTION))

    assert grown.previous_chars == len(SYSTEM) + len(QUESTION)
    assert (grown.only_grew, changed.only_grew) == (True, False)


def test_whose_a_prompt_is() -> None:
    taken = parts_of(printed(chat(SYSTEM, QUESTION, ANSWER, "And?", tools=tools("f"))))

    assert taken.system_chars == len(SYSTEM)
    assert taken.tools_chars > 10
    assert taken.last_user_chars == len("And?")
    assert taken.messages == 5


def test_many_tags_that_are_never_closed_cost_no_more_than_one_look() -> None:
    taken = printed(chat("<a-b>" * 100_000 + "</c-d>"))

    assert taken.chars == 500_006
