"""What differs between two prompts of one conversation, told by its form."""

from typing import Any

import pytest

from slowtok.proxy.stream.prompt_fingerprint import compare, fingerprint_prompt


def words(count: int, word: str) -> str:
    """Text without repetition, so that a place in it is found only there."""
    return " ".join(f"{word}{i}." for i in range(count))


def chat(*contents: str, **more: Any) -> dict[str, Any]:
    roles = ["system", *["user", "assistant"] * len(contents)]
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    return {"model": "x", "messages": messages, **more}


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def answered_after(thought: str) -> dict[str, Any]:
    """A turn of the Responses API whose thoughts are sent back."""
    thoughts = {"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]}
    return {"input": [{"role": "user", "content": QUESTION}, thoughts]}


SYSTEM, QUESTION, ANSWER = words(400, "rule"), words(20, "ask"), words(200, "say")
ENV = f"{SYSTEM} The time is {{}}. {words(50, 'more')}"
PLAIN = f"{SYSTEM} Be kind to all of them, and say what you know."
TALK = [QUESTION, ANSWER, words(30, "next"), words(30, "then"), words(30, "last")]


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        pytest.param(
            chat(ENV.format("2026-11-20 07:00:01"), QUESTION),
            chat(ENV.format("2026-11-20 07:00:02"), QUESTION),
            "time",
            id="a time",
        ),
        pytest.param(
            chat(ENV.format("Friday, November 20"), QUESTION),
            chat(ENV.format("Saturday, November 21"), QUESTION),
            "time",
            id="a day's name",
        ),
        pytest.param(
            chat(f"x-anthropic-billing-header: cc_version=2.1.36; cch=a1b2c;\n{SYSTEM}"),
            chat(f"x-anthropic-billing-header: cc_version=2.1.36; cch=0f9e8;\n{SYSTEM}"),
            "attribution-header",
            id="Claude Code's header",
        ),
        pytest.param(
            chat(f"<total_tokens>{SYSTEM}</total_tokens>".replace("rule0.", "18201")),
            chat(f"<total_tokens>{SYSTEM}</total_tokens>".replace("rule0.", "18733")),
            "number",
            id="jundot/omlx#2881: a count of tokens",
        ),
        pytest.param(
            chat(f"Session 0199f3c2-77aa. {SYSTEM}"),
            chat(f"Session 0199f3c9-1b2c. {SYSTEM}"),
            "id",
            id="an identifier",
        ),
        pytest.param(
            chat(f"Be kind to all of them. {SYSTEM}"),
            chat(f"Be stern to all of them. {SYSTEM}"),
            "text",
            id="words",
        ),
        pytest.param(
            chat(SYSTEM, tools=tools("a", "b", "c")),
            chat(SYSTEM, tools=tools("a", "c", "b")),
            "tools-order",
            id="the order of the tools",
        ),
        pytest.param(
            chat(SYSTEM, tools=[{"name": "a", "strict": True}]),
            chat(SYSTEM, tools=[{"strict": True, "name": "a"}]),
            "tools-order",
            id="the order of a tool's members",
        ),
        pytest.param(
            chat(SYSTEM, tools=tools("a", "b")),
            chat(SYSTEM, tools=tools("a", "b", "c")),
            "tools",
            id="one tool more",
        ),
        pytest.param(
            chat(SYSTEM, QUESTION), chat(SYSTEM, QUESTION, tools=tools("a")), "tools", id="tools"
        ),
        pytest.param(
            chat(SYSTEM, *TALK), chat(SYSTEM, *TALK[2:], QUESTION), "trimmed", id="the first turns"
        ),
        pytest.param(
            chat(SYSTEM, *TALK),
            chat(SYSTEM, words(9, "summary"), *TALK[3:]),
            "trimmed",
            id="a summary of the first turns",
        ),
        pytest.param(
            chat(SYSTEM, *TALK),
            chat(SYSTEM, words(9, "found"), words(9, "fact"), *TALK),
            "inserted",
            id="text before the conversation",
        ),
        pytest.param(
            chat(PLAIN, "Tell me all that you know of it, please. " * 20),
            {"messages": [*chat(PLAIN)["messages"], {"role": "tool", "content": "found"}]},
            "text",
            id="a short result in place of a long question, not a result cut short",
        ),
        pytest.param(
            answered_after("first one thought"),
            answered_after("then another thought"),
            "reasoning",
            id="thoughts of Responses, an item of their own",
        ),
        pytest.param(chat(SYSTEM, *TALK[:3]), chat(SYSTEM, *TALK), None, id="it went on"),
        pytest.param(chat(SYSTEM, *TALK), chat(SYSTEM, *TALK), None, id="the same"),
    ],
)
def test_kind_of_the_difference(old: dict[str, Any], new: dict[str, Any], kind: str | None) -> None:
    one, other = fingerprint_prompt(new), fingerprint_prompt(old)

    assert one is not None
    assert other is not None
    assert compare(one, other, 1.0).difference_kind == kind
