"""What changed between a prompt and the earlier one, in words, and what to do about it."""

from collections.abc import Mapping

from slowtok.detectors.case import Case, DifferenceKind, PromptPrefix

_WHAT: Mapping[DifferenceKind, str] = {
    "attribution-header": "Claude Code's header x-anthropic-billing-header changes with every call",
    "time": "a date or time changes",
    "number": "a number changes",
    "id": "an identifier changes",
    "tools": "the list of tools changed",
    "tools-order": "the same tools came in another order",
    "trimmed": "earlier messages were left out",
    "inserted": "a message was put in before known ones",
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


def why_lost(case: Case, prompt: PromptPrefix) -> str:
    """Return why the engine may have lost a beginning that stayed the same."""
    if case.server.prefix_caching is False:
        return "the engine runs with its prefix cache turned off"
    if prompt.others_since:
        others = "1 prompt" if prompt.others_since == 1 else f"{prompt.others_since} prompts"
        return f"{others} of other conversations came in between"
    if case.model.kv_window_tokens:
        return "a model with sliding-window attention keeps too little to go on from there"
    return "the engine no longer had them in its cache"


def engine_remedy(case: Case, prompt: PromptPrefix) -> str:
    """Return how the engine keeps what it has computed."""
    kind, slots = case.server.kind, case.server.slots
    wanted = max((prompt.others_since or 0) + 1, 2 if slots is None else slots + 1)
    if kind == "llama-server" and not prompt.others_since and case.model.kv_window_tokens:
        return (
            "Start llama-server with more checkpoints (--ctx-checkpoints 64), or with --swa-full, "
            "which keeps the whole KV cache of a sliding-window model and takes more memory."
        )
    return {
        "llama-server": (
            "Keep llama-server's prompt cache on (--cache-ram 8192, no --no-cache-prompt), give it "
            f"a slot for each conversation (--parallel {wanted}; they share --ctx-size), or pin "
            "each conversation to one (id_slot in the request)."
        ),
        "vllm": (
            "Keep prefix caching on (no --no-enable-prefix-caching) and leave it more KV cache: "
            "raise --gpu-memory-utilization or lower --max-model-len."
        ),
        "ollama": (
            f"Set OLLAMA_NUM_PARALLEL={wanted}, one for each conversation that runs at the same "
            "time (each takes a context of its own), or send them one after the other."
        ),
    }.get(kind, "Keep the engine's prompt cache on, with a slot for each conversation; update it.")
