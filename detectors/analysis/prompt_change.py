"""Describes what changed between a prompt and the earlier one, and what to do about it."""

from collections.abc import Mapping

from slowtok.detectors.case.case import DifferenceKind, PromptPrefix

_WHAT: Mapping[DifferenceKind, str] = {
    "attribution-header": "Claude Code's header x-anthropic-billing-header changes with every call",
    "time": "a date or time changes",
    "number": "a number changes",
    "id": "an identifier changes",
    "tools": "the list of tools changed",
    "tools-order": "the same tools came in another order",
    "trimmed": "earlier messages were left out",
    "inserted": "a message was put in before known ones",
    "pruned": "an earlier tool result was cut down",
    "reminder": "a tagged block (a reminder, an injected memory) moved or changed",
    "reasoning": "the model's reasoning was sent back before and is left out now",
    "whitespace": "only blanks changed",
    "text": "the text changed",
}

_CLIENT_REMEDY: Mapping[DifferenceKind, str] = {
    "attribution-header": (
        "Set CLAUDE_CODE_ATTRIBUTION_HEADER=0 in the environment of Claude Code, which takes the "
        "changing header out of the prompt."
    ),
    "time": (
        "Take date and time out of the system prompt, or move them to the end of the last message; "
        "a date without the time of day changes once a day only."
    ),
    "number": (
        "Move counters, token counts and other numbers that change with each call to the end of "
        "the last message."
    ),
    "id": (
        "Move session and request identifiers out of the prompt, or to the end of the last message."
    ),
    "tools": (
        "Send the same tools with every request of a conversation, and let the client choose among "
        "them another way (tool_choice)."
    ),
    "tools-order": "Let the client sort its tools by name before it sends them.",
    "trimmed": (
        "Let the client drop old messages seldom and many at once instead of a few in each turn, "
        "or give the engine a longer context so that none have to go."
    ),
    "inserted": (
        "Let the client add what it looked up (files, search results, reminders) after the "
        "conversation instead of before it."
    ),
    "pruned": (
        "Let the client leave earlier tool results as they are, or cut many of them at once and "
        "seldom (opencode: compaction.prune; OpenClaw: toolResultContextGuard.compaction=false)."
    ),
    "reminder": (
        "Let the client append a new reminder or memory at the end and leave the earlier ones "
        "where they stand."
    ),
    "reasoning": (
        "Let the client send the model's reasoning back with every turn, or with none of them."
    ),
    "whitespace": (
        "Let the client send earlier messages byte for byte as they were: do not trim or re-wrap "
        "them."
    ),
    "text": (
        "Keep the beginning of the prompt identical from call to call: move whatever changes to "
        "its end (Claude Code: set CLAUDE_CODE_ATTRIBUTION_HEADER=0)."
    ),
}


def what_changed(prompt: PromptPrefix) -> str:
    """Return what changed and where, as the end of a sentence."""
    what = _WHAT[prompt.difference_kind or "text"]
    if prompt.first_difference is None or prompt.difference_message is None:
        return f"{what} early on, and a cache ends where a prompt first differs"
    near = "at" if prompt.granularity_chars == 1 else "near"
    role = f" (role {prompt.difference_role})" if prompt.difference_role else ""
    return (
        f"{what} {near} character {prompt.first_difference} of message "
        f"{prompt.difference_message + 1}{role}, and a cache ends where a prompt first differs"
    )


def client_remedy(prompt: PromptPrefix) -> str:
    """Return how the client keeps the beginning of its prompts the same."""
    return _CLIENT_REMEDY[prompt.difference_kind or "text"]
