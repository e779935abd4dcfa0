"""Cases of prompts that were computed again, of requests that were left, and of what follows.

They rest on the healthy case: a real llama-server on two cores.
"""

from dataclasses import replace
from typing import Any

from fakes.cases import (
    case,
    prompt_cache_miss,
    queued,
    with_envelope,
    with_phases,
    with_prompt,
    with_server,
    with_tokens,
)
from slowtok.detectors.case.case import Abandoned, Case, Neighbours, PromptParts, Repeat

CHARS, TOKENS = 12_000, 2800


def grown(*, cached: int | None, prefill_s: float = 4.0, **prompt: Any) -> Case:
    """A conversation that only grew: nine tenths of it are an earlier prompt, byte for byte."""
    before = with_tokens(prompt_cache_miss(), prompt=TOKENS, cached=cached)
    before = with_phases(before, prefill_s=prefill_s)
    known = {
        "common_prefix_chars": 10_800,
        "previous_chars": 10_800,
        "shared_ratio": 0.9,
        "first_difference": 0,
        "difference_message": 9,
        "difference_role": "user",
        "others_since": 0,
    }
    return with_prompt(before, **{**known, **prompt})


def changed_late(*, cached: int | None, **prompt: Any) -> Case:
    """A conversation of which the client changed something nine tenths in."""
    known = {"previous_chars": 11_500, "difference_kind": "reminder", "shared_ratio": 0.95}
    return grown(cached=cached, **{**known, **prompt})


def with_state(before: Case, **model: Any) -> Case:
    """The case on a model with a recurrent state of 40 MiB."""
    return replace(before, model=replace(before.model, **{"state_bytes": 40 * 2**20, **model}))


def cache_not_rewindable() -> Case:
    """spiritbuun/buun-llama-cpp#42: the state stands at the end, what differs does so before it."""
    return with_state(changed_late(cached=0))


def template_rewrite() -> Case:
    """QwenLM/Qwen3.8#131: back to the first turn of the chain of tools."""
    return with_server(grown(cached=300), template_habits=("thinking",))


def cache_evicted() -> Case:
    """Three other conversations came to an engine with two slots; they share its system prompt."""
    return grown(cached=210, others_since=3, others_common_chars=900)


def kernel_compile() -> Case:
    """vllm-project/vllm#39790: the first prompt takes 1.5 s and more, later ones a twentieth."""
    before = with_tokens(case(prefill_s=12.0), prompt=560, cached=0)
    before = with_envelope(replace(before, prompt=None), expected_prefill_tps=None, prefill=None)
    before = with_phases(before, prefill_tps=560 / 12.0)
    before = with_server(before, kind="vllm", slots=None, started_unix_s=1.8e9 - 60.0)
    history = replace(before.history, best_prefill_tps=2000.0)
    return replace(before, history=history)


def engine_regression(*, rate_tps: float = 80.0) -> Case:
    """ggml-org/llama.cpp#20835: a half to a third since another build."""
    slow = with_server(case(ms_per_token=1000 / rate_tps), version="b8323")
    history = replace(
        slow.history,
        other_version="b8322",
        other_version_decode_tps=150.0,
        other_version_count=6,
    )
    return replace(slow, history=history)


def abandoned_request(**left: Any) -> Case:
    """A client left, the engine went on, and the next request waited for its one slot."""
    told = {"count": 1, "request_id": "0199f3c2-0000-7000-8000-000000000002", "left_s": 1.0}
    waited = with_server(queued(), slots=1)
    abandoned = Abandoned(**{**told, "seen_s": 2.4, **left})
    return replace(waited, neighbours=Neighbours(abandoned=abandoned))


def oversized_prompt(**parts: int) -> Case:
    """magnusoverli/opencode#77: two minutes for "hello" behind 22,500 tokens of tools."""
    long = with_tokens(case(prefill_s=117.0), prompt=22_500, cached=0)
    long = with_phases(long, prefill_tps=22_500 / 117.0)
    known = {"system_chars": 35_000, "tools_chars": 54_000, "last_user_chars": 5}
    made = PromptParts(chars=90_000, messages=3, **{**known, **parts})
    return replace(with_server(long, context_tokens=32_768), prompt=None, prompt_parts=made)


def long_thinking(*, reasoning: int = 3000) -> Case:
    """A reasoning model thinks for 3,000 of its 3,300 tokens."""
    long = with_tokens(case(), completion=3300, reasoning=reasoning)
    return with_phases(long, decode_s=22.0, total_s=22.1)


def retried_request(*, count: int = 2) -> Case:
    """The client gave up twice after 215 s, and asked the same again."""
    return replace(case(), repeat=Repeat(count=count, spent_s=215.0 * count, ended="client-gone"))
