"""The requests that a benchmark sends. Pure.

Strategy: decode and prefill are measured by different requests. A decode run has the short prompt
of the guides and a long answer; a prefill run has a long prompt and a few words of answer. A
prefill run's prompt begins with something that no earlier one began with, so that no prompt cache
knows it; a decode run's differs from run to run but not from benchmark to benchmark, so that an
engine that drafts tokens has the same ones to guess. A prompt of the user's own does both at once.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slowtok.proxy.cli.demo.shots import CHAT, Shot, rules

STANDARD_PROMPT = "Explain the transformer architecture in detail."
STANDARD_TOKENS, STANDARD_RUNS = 512, 3
"""The protocol of the usual guides: this prompt, 512 tokens, three runs, the median."""

PREFILL_TOKENS, MIN_PREFILL_TOKENS = 2048, 320
"""Several batches of an engine's usual 512; at least what a prefill is judged from (256)."""

PREFILL_S = 15.0
"""At most for one prefill run where the machine is slow. Heuristic."""

PREFILL_ANSWER_TOKENS = 8
FIRST_RULE = 100_000  # numbers of six digits all take the same tokens
WARM_UP_RULES, WARM_UP_TOKENS = 20, 48
SPARE_TOKENS = 160  # of the context: the chat template, and what the estimate may be off
IGNORES_EOS = ("llama-server", "vllm", "sglang")  # take `ignore_eos`; others might refuse it

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What is run. `rules` is how many sentences a prefill prompt has; 0 with an own prompt."""

    tokens: int = STANDARD_TOKENS
    runs: int = STANDARD_RUNS
    own_prompt: str | None = field(default=None, repr=False)
    rules: int | None = None

    @property
    def prompt_name(self) -> str:
        """Which prompt it is, without its text."""
        if self.own_prompt is None:
            return "standard"
        return f"sha256:{hashlib.sha256(self.own_prompt.encode()).hexdigest()[:16]}"

    def facts(self) -> dict[str, Any]:
        """Return what has to be the same where two results are compared."""
        own = self.own_prompt is not None
        return {
            "prompt": self.prompt_name,
            "tokens": self.tokens,
            "runs": self.runs,
            **({} if own else {"prefill_rules": self.rules}),
        }

    def sized(self, warm_up: Record, context_tokens: int | None) -> "Protocol":
        """Return the protocol with a prefill prompt that suits what the warm-up showed."""
        if self.rules is not None or self.own_prompt is not None:
            return self
        prompt_tokens = warm_up.get("tokens", {}).get("prompt") or WARM_UP_RULES * 24
        rate = warm_up.get("rate", {}).get("prefill_tps")
        wanted = PREFILL_TOKENS if rate is None else min(PREFILL_TOKENS, rate * PREFILL_S)
        wanted = max(wanted, MIN_PREFILL_TOKENS)
        if context_tokens is not None:
            wanted = min(wanted, max(context_tokens - SPARE_TOKENS, SPARE_TOKENS))
        return replace(self, rules=math.ceil(wanted * WARM_UP_RULES / prompt_tokens))

    def shots(self, nonce: str, engine_kind: str) -> list[Shot]:
        """Return the runs in their order: prefill and decode in turn, so that both see a drift."""
        steady = {"ignore_eos": True} if engine_kind in IGNORES_EOS else {}
        found = []
        for n in range(1, self.runs + 1):
            if self.own_prompt is not None:
                text = f"[{nonce}-{n}] {self.own_prompt}"
                found.append(_shot(f"run {n}", text, self.tokens, steady))
                continue
            found.append(_shot(f"prefill {n}", self._long(nonce, n), PREFILL_ANSWER_TOKENS))
            found.append(_shot(f"decode {n}", f"({n}) {STANDARD_PROMPT}", self.tokens, steady))
        return found

    def _long(self, nonce: str, run: int) -> str:
        """Return a prompt of which nothing was in an earlier one: each rule has a new number."""
        first = FIRST_RULE + (int(nonce, 16) * 1009 + run * 10_007) % FIRST_RULE * 8
        return f"[{nonce}-{run}] Read.\n{rules(self.rules or 0, first)}\nHow many are there?"


def warm_up(nonce: str) -> Shot:
    """Return the run that is not counted: it loads, fills caches, and tells the pace."""
    return _shot(
        "warm-up", f"[{nonce}] {rules(WARM_UP_RULES, FIRST_RULE)}\nSay it again.", WARM_UP_TOKENS
    )


def _shot(label: str, text: str, tokens: int, more: Mapping[str, Any] | None = None) -> Shot:
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
        "seed": 1,
        "stream": True,
        **(more or {}),
    }
    return Shot(label=label, path=CHAT, body=body)
