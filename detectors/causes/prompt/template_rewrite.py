"""The client only added messages, but the engine's chat template rendered earlier turns anew.

Signal:
The messages begin with all messages of an earlier request, byte for byte, and no other conversation
took the engine's cache in between. Still the engine took at least 64 tokens less of them from its
cache than the earlier prompt had, because what it read was another text. Templates do this that
leave thoughts out of earlier turns, put the tools before the last question, or write the time.
Where the engine shows its own template (llama-server in `/props`), slowtok says which of these it
is.

Not to be confused with:
- `prompt-cache-miss`: the client itself changed earlier messages.
- `cache-not-rewindable`: the model cannot go back, so any change costs everything.
- `cache-evicted`: other conversations took the place in the cache.
- The last answer is computed again where its thoughts are not sent back, because it was no part of
  the earlier prompt.

Remedy:
Use a template that renders turns as they were: give a corrected one with `--chat-template-file`,
or, in Qwen3.5 and later, set `preserve_thinking` among the template's arguments. Let the client
send the model's reasoning back. For Mistral's models, use a template with the tools before the
history.

Sources:
- QwenLM/Qwen3#1826 (16,000 tokens each turn; 90 times faster with a corrected template),
  QwenLM/Qwen3.8#131 (back to the first turn of a chain of tools), jundot/omlx#1784 (all is kept
  with preserve_thinking and reasoning_content sent back).
- llama-server README (`--chat-template-file`, `--chat-template-kwargs`).
"""

from slowtok.detectors.analysis.prompt_loss import (
    MIN_LOST_TOKENS,
    cached_of,
    finding,
    prompt_loss,
    why_lost,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Finding, Traits, need

TITLE = "Chat template renders history anew"
TRAITS = Traits(phases=("prefill",), in_exchange=True)


def detect(case: Case) -> Finding | None:
    """Fire when messages that only grew did not come from the cache, and nothing else tells why."""
    loss = prompt_loss(case)
    if loss is None or case.prompt is None or not case.prompt.only_grew:
        return None
    need(cached_of(case), "prompt tokens taken from the cache")
    if loss.by_engine < MIN_LOST_TOKENS or why_lost(case) != "template":
        return None
    why = f"the client only added messages at the end, but {_habit(case)}"
    return finding(case, loss, loss.by_engine, why, _remedy(case))


def _habit(case: Case) -> str:
    habits = case.server.template_habits or ()
    if "tools-last" in habits and case.prompt_parts is not None and case.prompt_parts.tools_chars:
        return (
            "the engine's chat template puts the tools before the last question, which moves them"
        )
    if "thinking" in habits:
        return "the engine's chat template leaves the thoughts out of earlier turns"
    if "clock" in habits:
        return "the engine's chat template writes the date or time into the prompt"
    return "the engine's chat template rendered earlier turns differently from before"


def _remedy(case: Case) -> str:
    kind, habits = case.server.kind, case.server.template_habits or ()
    arguments = {
        "llama-server": "--chat-template-kwargs '{\"preserve_thinking\":true}'",
        "vllm": "--default-chat-template-kwargs '{\"preserve_thinking\":true}'",
    }.get(kind, "preserve_thinking among the template's arguments")
    file = {
        "llama-server": "--jinja --chat-template-file FILE",
        "vllm": "--chat-template FILE",
        "sglang": "--chat-template FILE",
        "ollama": "TEMPLATE in its Modelfile",
    }.get(kind, "the engine's option for it")
    if "thinking" in habits or not habits:
        return (
            f"Give the engine a chat template that renders earlier turns as they were ({file}), or "
            f"{arguments} where the model's template knows it, and let the client send "
            "reasoning_content back."
        )
    return f"Give the engine a chat template that leaves earlier turns as they were ({file})."
