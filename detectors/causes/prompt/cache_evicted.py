"""The engine had computed the prompt, but other conversations took its place in the cache.

Signal:
The prompt begins like an earlier one, the engine took at least 64 tokens less of that from its
cache, and prompts of other conversations came in between. What was left is what they share with
this one: a slot of llama-server went to another conversation, or vLLM needed the blocks for others.
Or Ollama loaded the model again for this request, because it had unloaded the model, and the cache
with it.

Not to be confused with:
- `prompt-cache-miss`: the client changed the beginning.
- `template-rewrite`, `cache-not-rewindable`: the cache is of no use even without other
  conversations.
- If the others found a slot or blocks of their own, this conversation's cache is still there.
- The first request after the start of the engine finds no cache at all.

Remedy:
In llama-server, use a slot for each conversation (`--parallel`), and `--cache-ram` for those that
have none. If conversations that begin alike take each other's slots, set `--slot-prompt-similarity`
higher, or use `id_slot`. In vLLM, make room for more KV cache. In Ollama, set OLLAMA_NUM_PARALLEL
and a longer keep_alive.

Sources:
- llama-server README (`--parallel`, `--slot-prompt-similarity`: 0.10, `--cache-ram`, `id_slot`).
- vLLM docs (automatic prefix caching: blocks that were not used for longest go first).
- Ollama FAQ (OLLAMA_KEEP_ALIVE: 5 minutes, OLLAMA_NUM_PARALLEL: 1).
"""

from slowtok.detectors.analysis.prompt_loss import MIN_LOST_TOKENS, finding, prompt_loss, why_lost
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import PAGED_KV_CACHE
from slowtok.detectors.case.finding import Finding, Traits

TITLE = "Prompt cache taken by others"
TRAITS = Traits(phases=("prefill",), in_exchange=True)


def detect(case: Case) -> Finding | None:
    """Fire when others came in between, or the model was put away, and the beginning was lost."""
    loss = prompt_loss(case)
    if loss is None or case.prompt is None or loss.by_engine < MIN_LOST_TOKENS:
        return None
    why = why_lost(case)
    if why == "unloaded":
        said = "the engine had unloaded the model since then, and its cache with it"
        return finding(case, loss, loss.by_engine, said, _KEEP_ALIVE)
    if why != "others":
        return None
    others = case.prompt.others_since or 0
    came = (
        "1 prompt of another conversation"
        if others == 1
        else f"{others:,} prompts of other conversations"
    )
    said = f"{came} came in between and took their place{_where(case, others)}"
    return finding(case, loss, loss.by_engine, said, _remedy(case, others))


def _where(case: Case, others: int) -> str:
    slots, room = case.server.slots, case.server.kv_cache_tokens
    if case.server.kind == "vllm" and room:
        return f" in a KV cache of {room:,} tokens"
    if slots is None:
        return ""
    named = "its one slot" if slots == 1 else f"its {slots} slots"
    if others < slots:
        return f", though the engine has {slots} slots: it gives a prompt to the slot most like it"
    return f" in {named}"


_KEEP_ALIVE = (
    "Set OLLAMA_KEEP_ALIVE=-1 (or keep_alive: -1 in the request), so that the model and its cache "
    "stay."
)


def _remedy(case: Case, others: int) -> str:
    kind, slots = case.server.kind, case.server.slots
    wanted = max(others + 1, 2 if slots is None else slots + 1)
    if kind == "llama-server" and slots is not None and others < slots:
        return (
            "Raise --slot-prompt-similarity to 0.5 (its default is 0.1), so that a conversation "
            "takes a slot only if at least half of its prompt is in there, or pin each "
            "conversation to a slot (id_slot in the request); and leave --cache-ram on."
        )
    if kind == "llama-server":
        return (
            f"Give llama-server a slot for each conversation (--parallel {wanted}; they share "
            "--ctx-size, so raise that too), or room for those that have none (--cache-ram 8192), "
            "or pin each conversation to a slot (id_slot in the request)."
        )
    if kind == "ollama":
        return (
            f"Set OLLAMA_NUM_PARALLEL={wanted}, one for each conversation that runs at the same "
            "time (each takes a context of its own), or send them one after the other."
        )
    if kind in PAGED_KV_CACHE:
        more = (
            "raise --gpu-memory-utilization, take an 8-bit KV cache (--kv-cache-dtype fp8)"
            if kind == "vllm"
            else "raise --mem-fraction-static"
        )
        return f"Leave the engine more KV cache: {more}, or send fewer conversations at once."
    return "Give the engine a slot, or cache, for each conversation, or send fewer at once."
