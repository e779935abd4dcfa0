"""Reads from a chat template's text how it treats earlier turns. Pure.

The text of a template is the model's, not a user's; still only the habits found in it are kept.

- `thinking`: thoughts are left out of earlier turns (Qwen3 and its successors compare with the last
  question's place, DeepSeek's and others split at the closing tag).
- `tools-last`: the tools, or the system's word, stand before the last question (Mistral's).
- `clock`: the date is written into the prompt (Llama 3.1 and later, gpt-oss).

Sources: the templates in the repositories of these models; QwenLM/Qwen3#1826.
"""

import re

HABITS = {
    "thinking": re.compile(
        r"last_query_index|(?:split|rsplit)\(\s*['\"]</think>|not\s+loop\.last[^%]*think|"
        r"future_final_message|last_tool_call\.name\s+is\s+none.{0,400}analysis",
        re.DOTALL,
    ),
    "tools-last": re.compile(
        r"(?:loop\.last|messages\s*\|\s*length|messages\[-1\]|user_messages\[-1\])"
        r"[^%]{0,200}%\}.{0,400}AVAILABLE_TOOLS",
        re.DOTALL,
    ),
    "clock": re.compile(r"strftime_now"),
}


def habits_of(template: object) -> tuple[str, ...] | None:
    """Return what a template does to earlier turns; None where there is no text of one."""
    if not isinstance(template, str) or not template:
        return None
    return tuple([habit for habit, pattern in HABITS.items() if pattern.search(template)])
