"""Prefill computed again what the engine had computed for an earlier request.

Signal:
The prompt has text in common with an earlier one behind the place where the two first differ, and
all of that has to be computed again: the client changed something in front of it. How much it is,
in tokens and in time, decides, whatever its share of the prompt. slowtok recognises what changed by
its form: a header, a time, a number, an identifier, the tools or their order, messages left out or
put in, a tool result that was cut down, a reminder that moved, reasoning that is no longer sent
back, or blanks. Or the prompt begins like an earlier one, the engine took less of that from its
cache, and no cause with a name of its own explains why. Engines that do not report their cache
(Ollama before 0.34) are judged by the time that they took. Images count by their size in tokens.

Not to be confused with:
- `cache-not-rewindable`, `template-rewrite`, `cache-evicted`: the client changed nothing in front.
- `slow-prefill`: the engine computes the same tokens, but each one takes longer.
- `model-load`: after a load the cache is empty, and slowtok names the load instead.
- Engines never take a chat template or a cache block at the end of the prompt from the cache.
- A new conversation with the same system prompt, or a summary in place of the old turns, is new
  text.

Remedy:
In the client, keep the beginning of the prompt the same from call to call, and put times, counters
and session numbers at its end. For Claude Code, set CLAUDE_CODE_ATTRIBUTION_HEADER=0. In the
engine, keep prompt caching on, and set a context that holds the whole prompt. With
`--cache-reuse 256` llama-server also keeps what stands behind messages that a client left out.

Sources:
- llama-server README (`cache_n`, `--cache-prompt`) and its server-context.cpp (`--cache-reuse`),
  vLLM docs (automatic prefix caching).
- musistudio/claude-code-router#1220, tale-project/tale#3400 (74-93 s per turn, differs at character
  79), jundot/omlx#2881 (8-12 minutes per turn), ikawrakow/ik_llama.cpp#1436 (20 s per tool call).
- Mintplex-Labs/anything-llm#6398 and earendil-works/pi#1873 (time in the system prompt),
  anomalyco/opencode#37489 (tools differ by mode), anomalyco/opencode#23595 (a reminder that moves),
  openclaw/openclaw#51952 (tool results cut down), Yanyutin753/LambChat#371 (an injected memory).
"""

from slowtok.detectors.analysis.prompt_change import client_remedy, what_changed
from slowtok.detectors.analysis.prompt_loss import (
    MIN_LOST_TOKENS,
    MIN_PREFIX_RATIO,
    MIN_SHARED_RATIO,
    PromptLoss,
    cached_of,
    cannot_rewind,
    finding,
    kept_ratio,
    prompt_loss,
    why_lost,
)
from slowtok.detectors.case.case import Case, PromptPrefix
from slowtok.detectors.case.finding import Finding, Traits, need

TITLE = "Prompt cache not used"
TRAITS = Traits(phases=("prefill",), in_exchange=True)

MIN_MOVED_RATIO = 0.3
"""Of the prompt, known behind the change, where its form does not tell that it is the same
conversation. Heuristic: what two conversations have in common (the same file read twice) is
less."""

NAMELESS = frozenset({"off", "full", "unknown"})
"""Why an engine lost a beginning, where no cause of its own tells it."""


def detect(case: Case) -> Finding | None:
    """Fire when known text was computed again, and say which side could have avoided it."""
    loss = prompt_loss(case)
    if loss is None:
        return None  # the first prompt of its kind: there is nothing that it could have missed
    by_client = loss.by_client if _is_changed(case) else 0.0
    if by_client >= max(MIN_LOST_TOKENS, loss.by_engine):
        return _changed_by_client(case, loss, by_client)
    if case.prompt is not None and kept_ratio(case.prompt) >= MIN_PREFIX_RATIO:
        need(cached_of(case), "prompt tokens taken from the cache")
    if loss.by_engine >= MIN_LOST_TOKENS and why_lost(case) in NAMELESS:
        return _lost_by_engine(case, loss)
    return None


def _is_changed(case: Case) -> bool:
    """Return True if the client changed an earlier prompt of the same conversation."""
    prompt = case.prompt
    if prompt is None or prompt.only_grew or prompt.shared_ratio < MIN_SHARED_RATIO:
        return False
    if prompt.difference_kind in (None, "text"):
        return prompt.shared_ratio - kept_ratio(prompt) >= MIN_MOVED_RATIO
    return True


def _changed_by_client(case: Case, loss: PromptLoss, lost: float) -> Finding | None:
    """Told by the prompts alone; the cached tokens only say how much of it was lost."""
    prompt = case.prompt
    if prompt is None:
        return None
    remedy = client_remedy(prompt)
    if _can_move(case, prompt):
        remedy += f" {_MOVE}"
    return finding(case, loss, lost, what_changed(prompt), remedy)


def _can_move(case: Case, prompt: PromptPrefix) -> bool:
    """Return True if llama-server could keep what stands behind messages that were left out.

    It looks in its cache for what stands where the prompt differs: nothing that was put in or
    changed there is found. It does not for images and for states that cannot be rewound.
    """
    if prompt.difference_kind != "trimmed" or prompt.image_chars:
        return False
    return case.server.kind == "llama-server" and not cannot_rewind(case)


def _lost_by_engine(case: Case, loss: PromptLoss) -> Finding:
    why, kind = why_lost(case), case.server.kind
    same = 0.0 if case.prompt is None else 100 * kept_ratio(case.prompt)
    said = f"the first {same:.0f} % are the same as in an earlier request, but "
    if why == "off":
        said += "the engine runs with its prefix cache turned off"
        return finding(case, loss, loss.by_engine, said, _TURN_ON.get(kind, _ON))
    if why == "full":
        said += "the prompt fills the context, so that its beginning was cut to make it fit"
        remedy = "Give the engine a longer context, or let the client compact the conversation"
        return finding(case, loss, loss.by_engine, said, f"{remedy} before it is full.")
    said += "the engine no longer had them in its cache"
    return finding(case, loss, loss.by_engine, said, _KEEP.get(kind, _ON))


_MOVE = (
    "Or start llama-server with --cache-reuse 256: it then keeps what stands behind messages that "
    "were left out (which it read with them before it, so that answers may differ a little)."
)
_ON = "Keep the engine's prompt cache on, with a slot for each conversation; update it."
_TURN_ON = {
    "llama-server": "Start llama-server without --no-cache-prompt.",
    "vllm": "Start vLLM without --no-enable-prefix-caching.",
    "sglang": "Start SGLang without --disable-radix-cache.",
}
_KEEP = {
    "llama-server": (
        "Keep llama-server's prompt cache on (--cache-ram 8192, no cache_prompt: false in the "
        "request), give it a slot for each conversation (--parallel; they share --ctx-size), or "
        "pin each conversation to one (id_slot in the request)."
    ),
    "vllm": (
        "Keep prefix caching on and leave it more KV cache: raise --gpu-memory-utilization or "
        "lower --max-model-len."
    ),
    "ollama": (
        "Set OLLAMA_NUM_PARALLEL to the number of conversations that run at the same time (each "
        "takes a context of its own), or send them one after the other."
    ),
}
