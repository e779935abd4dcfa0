"""The engine had computed the prompt, but the model's state cannot go back to where it changed.

Signal:
The prompt begins like an earlier one, the engine took at least 64 tokens less of it from its cache,
and the model keeps a state that is of use only where it ended: recurrent layers (Mamba, gated delta
nets), or layers with a sliding window of which the engine keeps no more than that. Any change, also
one at the very end, then costs all that the state was made of, or all since the last checkpoint.
vLLM keeps such states at the ends of large blocks only.

Not to be confused with:
- `prompt-cache-miss`: the client changed the beginning, which costs time with any model.
- `cache-evicted`: as many other conversations as there are slots came in between.
- `template-rewrite`: the loss is the same, but the model's cache can be cut at any place.
- A model with a sliding window loses nothing where the engine keeps its whole cache (`--swa-full`).
- A conversation that goes on exactly where the state ended loses nothing.

Remedy:
In llama-server, set more and denser checkpoints (`--ctx-checkpoints`, `--checkpoint-min-step`, in
older builds `--checkpoint-every-n-tokens`); for sliding windows use `--swa-full`, which takes more
memory. Take a current build. In vLLM, use blocks that are not larger than the turns. Let the client
only append, and send the reasoning back: then nothing has to be rewound. Otherwise use a model with
plain attention.

Sources:
- ggml-org/llama.cpp#22940 (Jamba, Granite-Hybrid: 100 % computed again each turn, 95 % identical),
  ggml-org/llama.cpp#14157 (sliding windows), ggml-org/llama.cpp#13194 (`--swa-full`),
  spiritbuun/buun-llama-cpp#42 (3,433 of 3,664 tokens known, none reused),
  kyuz0/amd-strix-halo-toolboxes#99 (checkpoints cure it).
- vllm-project/vllm#42317, vllm-project/vllm#51198 (hybrids: no hits), vllm-project/vllm#40696
  (a block of 528 tokens: shorter prefixes never hit).
"""

from slowtok.detectors.analysis.prompt_loss import (
    MIN_LOST_TOKENS,
    cached_of,
    cannot_rewind,
    finding,
    prompt_loss,
    why_lost,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Finding, Traits, need

TITLE = "Cache cannot be rewound"
TRAITS = Traits(phases=("prefill",), in_exchange=True)


def detect(case: Case) -> Finding | None:
    """Fire when a model whose state cannot go back lost what it had computed."""
    loss = prompt_loss(case)
    if loss is None or not cannot_rewind(case):
        return None
    need(cached_of(case), "prompt tokens taken from the cache")
    if loss.by_engine < MIN_LOST_TOKENS or why_lost(case) != "state":
        return None
    return finding(case, loss, loss.by_engine, _why(case), _remedy(case))


def _why(case: Case) -> str:
    model, prompt = case.model, case.prompt
    if model.state_bytes:
        size = f"{model.state_bytes / 2**20:.0f} MiB"
        what = f"the model's layers keep a state ({size} a sequence) that cannot be taken back"
    else:
        window = f"{model.kv_window_tokens or 0:,}"
        what = f"the model's sliding window keeps {window} tokens, too few to go back"
    if prompt is not None and prompt.only_grew:
        how = "earlier turns were rendered differently from how they were generated"
        if "thinking" in (case.server.template_habits or ()):
            how = "the chat template leaves out earlier thoughts"
        return f"{what}, and {how}"
    return f"{what} to where the prompt differs from the earlier one"


def _remedy(case: Case) -> str:
    server, model = case.server, case.model
    if server.kind in ("llama-server", "ollama") and not model.state_bytes:
        where = "llama-server" if server.kind == "llama-server" else "Ollama's llama-server"
        return (
            f"Start {where} with --swa-full, which keeps the whole KV cache of a sliding-window "
            "model and takes more memory, or with more checkpoints (--ctx-checkpoints 64)."
            if server.kind == "llama-server"
            else "Take a llama-server of your own with --swa-full or --ctx-checkpoints 64, or a "
            "model with plain attention: Ollama has no setting for it."
        )
    if server.kind == "llama-server":
        return (
            "Take a current llama-server with more and denser checkpoints (--ctx-checkpoints 64 "
            "--checkpoint-min-step 256; older builds --checkpoint-every-n-tokens 256), let the "
            "client only append and send the reasoning back, or take a model with plain attention."
        )
    if server.kind == "vllm":
        block = server.cache_block_tokens
        blocks = "large blocks" if not block else f"blocks of {block:,} tokens"
        return (
            f"vLLM keeps such states at the ends of {blocks} only: take a current version, try "
            "--mamba-block-size or a smaller --max-num-batched-tokens, or take a model with plain "
            "attention."
        )
    return (
        "Let the client only append and send the reasoning back, take a newer version of the "
        "engine, or a model with plain attention."
    )
