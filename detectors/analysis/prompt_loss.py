"""Prompt tokens from the cache and those computed again, and who lost them: client or engine.

The client loses what it changed: a cache ends where a prompt first differs from an earlier one, and
what stood behind that in the earlier one is shared and not kept. The engine loses what stands in
front of the difference and did not come from its cache.

Prompts are compared in characters, and engines count tokens: text in one part of a prompt may take
more of them a character than in another. What is certain is held against the least that follows.

How many came from the cache is told by the engine, by its counters, or by the clock. An engine that
does not tell had at most the time that it took: prompt tokens that it could not have computed at
the rate expected came from the cache. That says little of a few tokens and much of a long prompt:
one that was cached is over in a tenth of the time. It is a guess where the rate is not as expected,
so it is made only where decode is not slow, and never alone believed. A counter can be wrong: one
of vLLM's stayed at zero while the same prompt took a seventh of the time that it took at first
(vllm-project/vllm-ascend#16639). A count is not believed if the rest of the prompt was then read
far faster than this machine can.
"""

from dataclasses import dataclass
from typing import Literal

from slowtok.detectors.analysis.phase_loss import MIN_LOAD_S, is_telling_prefill, judge_decode
from slowtok.detectors.case.case import Case, ModelLoad, PromptPrefix
from slowtok.detectors.case.engine import LLAMA_CPP, PAGED_KV_CACHE
from slowtok.detectors.case.finding import Evidence, Finding, need, weigh
from slowtok.detectors.case.memo import cached_for_last_case
from slowtok.detectors.case.value import frozen_dataclass

IMPOSSIBLE_RATIO = 2.0
"""Heuristic: nobody reads a prompt at twice the highest rate expected, or at
twice what nine in ten healthy requests of the last month stayed below."""

MIN_LOST_TOKENS = 64
"""Heuristic: above the blocks that engines cache by (16 in vLLM) and chat templates."""

MIN_PREFIX_RATIO = 0.5
"""Of this prompt or of the earlier one; less in common is another conversation. Heuristic."""

MAX_CACHED_RATIO = 0.1
"""Of the common beginning, where nobody counted what came from the cache: time alone tells a loss
of all of it, and not of a part. Heuristic."""

DENSITY_SPREAD = 1.5
"""One part of a prompt may take so many times as many tokens a character as the rest: English takes
a token for some four characters, JSON and code for some three. Heuristic."""

IMAGE_SPREAD = 4.0
"""An image takes so many times more or fewer tokens than was thought. Heuristic."""

FULL_CONTEXT_RATIO = 0.97
"""A prompt that fills so much of its context has been cut to fit it. Heuristic."""

MAX_BEGIN_S = 0.5
"""A load begins so soon after the request that it is for. Heuristic."""

TAKEN_RATIO = 1.25
"""What others left of a conversation's cache is what they share with it, give or take so much of
it. Heuristic."""

MIN_BEGIN_TOKENS = 8
"""A template that renders turns anew leaves at least the system prompt's head as it was, which
other losses do not. Heuristic."""

MIN_SHARED_RATIO = 0.5
"""Of the prompt, wherever it stands; less in common is another conversation. Heuristic."""

BLOCK_TOKENS = 16
"""What prompt caches keep whole (vLLM's block): less is no loss."""

Why = Literal["off", "full", "unloaded", "state", "others", "template", "unknown"]
"""Why an engine lost a beginning that stayed the same: its cache is off, the prompt fills the
context, the model was put away in between, its state cannot be rewound, other conversations took
its place, its chat template rendered earlier turns anew; or nothing that is visible tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Prompt tokens from the cache; `is_told` where the engine counted them."""

    tokens: float
    is_told: bool = True


def cached_of(case: Case) -> Cached | None:
    """Return the cached tokens, None where nothing tells.

    Counters count where this request was alone.
    """
    activity, told = case.activity, case.timeline.tokens.cached
    if case.server.prefix_caching is False:
        return Cached(tokens=0)
    if told is not None:
        return Cached(tokens=told)
    counted = activity.cached_tokens if activity is not None and activity.alone else None
    if counted is not None and not _is_impossible(case, counted):
        return Cached(tokens=counted)
    return _by_time(case)


def _is_impossible(case: Case, cached: int) -> bool:
    """Return True if the rest of the prompt cannot have been computed in the time that it took."""
    total, took_s, band = case.timeline.tokens.prompt, case.phases.prefill_s, case.envelope.prefill
    fastest_tps = max(band.high if band else 0.0, case.history.best_prefill_tps or 0.0)
    if not (total and took_s and fastest_tps):
        return False
    return (total - cached) / took_s > IMPOSSIBLE_RATIO * fastest_tps


def _by_time(case: Case) -> Cached | None:
    total, took_s = case.timeline.tokens.prompt, case.phases.prefill_s
    expected_tps = case.envelope.expected_prefill_tps or case.history.best_prefill_tps
    if not (total and took_s and expected_tps) or not is_telling_prefill(case):
        return None
    if judge_decode(case).slow is not False:
        return None  # what holds decode up may hold prefill up, too
    return Cached(tokens=max(total - expected_tps * took_s, 0.0), is_told=False)


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class PromptLoss:
    """What a prompt lost, in tokens: `kept` of `total` could have come from the cache.

    `by_client` are shared with the earlier prompt and stand behind a change, `by_engine` stand
    before it and were computed all the same; 0 where that is not certain.
    """

    total: int
    kept: float
    cached: Cached | None
    by_client: float
    by_engine: float


@cached_for_last_case
def prompt_loss(case: Case) -> PromptLoss | None:
    """Return what was computed again; None where there is no earlier prompt to go by.

    Raises:
        Missing: the prompt's tokens are not known.
    """
    prompt = case.prompt
    if prompt is None:
        return None
    total = need(case.timeline.tokens.prompt, "number of prompt tokens")
    if total < MIN_LOST_TOKENS or _is_new(case, prompt):
        return None
    cached, kept = cached_of(case), kept_ratio(prompt) * total
    reached = max(kept, cached.tokens if cached is not None else 0.0)
    return PromptLoss(
        total=total,
        kept=kept,
        cached=cached,
        by_client=0.0 if prompt.only_grew else max(prompt.shared_ratio * total - reached, 0.0),
        by_engine=_lost_by_engine(prompt, cached, total, kept),
    )


def kept_ratio(prompt: PromptPrefix) -> float:
    """Return the share of the prompt that a cache could have kept.

    Some chat templates put the tools before the system's word: what differs in them counts from
    where they begin.
    """
    return _common_chars(prompt) / prompt.chars if prompt.chars else 0.0


def least_kept_ratio(prompt: PromptPrefix) -> float:
    """Return the least share of the tokens that the common beginning can be."""
    common, images = _common_chars(prompt), prompt.common_image_chars
    later_images = prompt.image_chars - images
    least = max(common - images, 0) + images / IMAGE_SPREAD
    rest = max(prompt.chars - common - later_images, 0) * DENSITY_SPREAD
    rest += later_images * IMAGE_SPREAD
    return least / (least + rest) if least + rest else 0.0


@cached_for_last_case
def why_lost(case: Case) -> Why:
    """Return why the engine lost a beginning that stayed the same."""
    server, prompt, loss = case.server, case.prompt, prompt_loss(case)
    if server.prefix_caching is False:
        return "off"
    if prompt is None or loss is None:
        return "unknown"
    if _was_unloaded(case):
        return "unloaded"
    if server.context_tokens and loss.total >= FULL_CONTEXT_RATIO * server.context_tokens:
        return "full"
    return _why_forgotten(case, prompt, loss)


def _why_forgotten(case: Case, prompt: PromptPrefix, loss: PromptLoss) -> Why:
    """Return why a cache that is on, and large enough for the prompt, did not have it."""
    has_state, is_rewritten = cannot_rewind(case), _is_rendered_anew(case, prompt, loss)
    taken = _others_took_all if has_state else _others_took_it
    if prompt.others_since and taken(case, prompt, loss):
        return "others"
    if has_state and (case.server.kind in _REWINDING or not is_rewritten):
        return "state"
    return "template" if is_rewritten else "unknown"


def cannot_rewind(case: Case) -> bool:
    """Return True if the model's state is of use only where it ended: recurrent, short window."""
    model, server = case.model, case.server
    if model.state_bytes:
        return True
    return bool(model.kv_window_tokens) and server.kind in LLAMA_CPP and server.swa_full is not True


_REWINDING = frozenset({"llama-server", "ollama", "vllm", "sglang"})
"""Engines with a remedy of their own for states that cannot be rewound; in others (MLX's) a
template that renders turns as they were was the cure (QwenLM/Qwen3#1826)."""


def finding(case: Case, loss: PromptLoss, lost: float, why: str, remedy: str) -> Finding:
    """Return the finding on tokens that were lost because of `why`."""
    prefill_s = need(case.phases.prefill_s, "prefill time")
    is_told = loss.cached is not None and loss.cached.is_told
    reused = 0.0 if loss.cached is None else loss.cached.tokens
    computed = max(loss.total - reused, lost, 1.0)
    return Finding(
        phase="prefill",
        confidence=weigh("server" if is_told else "inference", "gauge"),
        lost_s=prefill_s * lost / computed,
        summary=(
            f"About {lost:,.0f} of {loss.total:,} prompt tokens were computed again although they "
            f"were known: {why}; prefill lost about {{lost}}."
        ),
        remedy=f"{remedy} Each such turn would be about {{lost}} faster.",
        evidence=(
            Evidence(
                name="tokens from the cache" if loss.cached is not None else "common beginning",
                value=round(reused if loss.cached is not None else loss.kept),
                unit="tokens",
            ),
            Evidence(
                name="tokens computed again",
                value=round(lost),
                unit="tokens",
                limit=MIN_LOST_TOKENS,
            ),
            Evidence(name="prefill", value=prefill_s, unit="s"),
            *_place(case.prompt),
        ),
    )


def _place(prompt: PromptPrefix | None) -> tuple[Evidence, ...]:
    """Return where the prompt first differs from the earlier one; nothing where it does not."""
    if prompt is None or prompt.first_difference is None or prompt.difference_message is None:
        return ()
    if prompt.only_grew:
        return ()
    unit = f"characters into message {prompt.difference_message + 1}"
    return (Evidence(name="first difference", value=prompt.first_difference, unit=unit),)


def _common_chars(prompt: PromptPrefix) -> int:
    chars = prompt.common_prefix_chars
    if prompt.difference_role == "tools" and prompt.first_difference is not None:
        chars = min(chars, prompt.first_difference)
    return chars


def _lost_by_engine(prompt: PromptPrefix, cached: Cached | None, total: int, kept: float) -> float:
    """Return what the engine lost of the common beginning, as far as that is certain."""
    if cached is None or not _is_same_conversation(prompt):
        return 0.0
    if not cached.is_told and cached.tokens > MAX_CACHED_RATIO * kept:
        return 0.0
    least = least_kept_ratio(prompt) * total - cached.tokens
    return kept - cached.tokens if least >= MIN_LOST_TOKENS else 0.0


def _is_same_conversation(prompt: PromptPrefix) -> bool:
    common, before = prompt.common_prefix_chars, prompt.previous_chars
    if common >= MIN_PREFIX_RATIO * prompt.chars:
        return True
    return before is not None and common >= MIN_PREFIX_RATIO * before


def _is_new(case: Case, prompt: PromptPrefix) -> bool:
    """Return True if the engine was started or loaded since the earlier prompt, not for this one.

    What was loaded for this request had been put away: it had the prompt until then.
    """
    age_s, loads = prompt.previous_age_s, case.history.loads
    if _was_unloaded(case):
        return False
    if age_s is None:
        return bool(case.server.slept)
    uptime_s = case.server.uptime_s
    loaded = bool(loads) and loads[0].age_s < age_s and not _was_its_own(loads[0], age_s)
    return loaded or (uptime_s is not None and uptime_s < age_s) or bool(case.server.slept)


def _was_its_own(load: ModelLoad, age_s: float) -> bool:
    """Return True if the earlier prompt itself waited for a load, which began when it came."""
    return load.load_s is not None and load.age_s + load.load_s >= age_s - MAX_BEGIN_S


def _was_unloaded(case: Case) -> bool:
    """Return True if an engine that loads on demand loaded the model anew for this request."""
    prompt, uptime_s = case.prompt, case.server.uptime_s
    if case.server.kind != "ollama" or (case.phases.load_s or 0.0) < MIN_LOAD_S:
        return False
    age_s = None if prompt is None else prompt.previous_age_s
    return age_s is not None and (uptime_s is None or uptime_s >= age_s)


def _others_took_all(case: Case, prompt: PromptPrefix, _loss: PromptLoss) -> bool:
    """Return True if others came in all slots since, whatever they share with this conversation."""
    others, slots = prompt.others_since or 0, case.server.slots
    return others >= (1 if slots is None else max(slots, 1))


def _others_took_it(case: Case, prompt: PromptPrefix, loss: PromptLoss) -> bool:
    """Return True if what is left of the cache is what other conversations left of it."""
    others, room = prompt.others_since or 0, case.server.kv_cache_tokens
    if case.server.kind in PAGED_KV_CACHE:
        return room is None or not prompt.only_grew or (others + 1) * loss.total > room
    if prompt.others_common_chars is None or not prompt.chars or loss.cached is None:
        return True
    if not loss.cached.is_told:  # time tells that next to nothing was left, and not how much
        return _others_took_all(case, prompt, loss)
    left = prompt.others_common_chars / prompt.chars * loss.total
    return loss.cached.tokens <= TAKEN_RATIO * left + MIN_LOST_TOKENS


def _is_rendered_anew(case: Case, prompt: PromptPrefix, loss: PromptLoss) -> bool:
    """Return True if only the chat template can have changed what the engine read."""
    if not prompt.only_grew or loss.cached is None or not loss.cached.is_told:
        return False
    if case.activity is not None and case.activity.alone is False:
        return False  # others who are not seen here may have taken its place
    if cannot_rewind(case):
        return True  # whatever is rendered anew leaves nothing
    return loss.cached.tokens >= MIN_BEGIN_TOKENS or bool(case.server.template_habits)


def recomputed_of(case: Case) -> int | None:
    """Return how many prompt tokens were computed although an earlier request had computed them.

    What the earlier prompt and this one begin with could come from the cache. Where a change stands
    early in the prompt, what follows it and is known counts, too: without the change it would have.
    None where the engine does not count, or nothing went before.
    """
    prompt, tokens = case.prompt, case.timeline.tokens
    if prompt is None or tokens.prompt is None or tokens.cached is None:
        return None
    again = known_ratio(prompt) * tokens.prompt - tokens.cached
    if prompt.only_grew and least_kept_ratio(prompt) * tokens.prompt < tokens.cached + BLOCK_TOKENS:
        return 0  # characters are no tokens, and the engine may have had all that there was
    return round(again) if again >= BLOCK_TOKENS else 0


def known_ratio(prompt: PromptPrefix) -> float:
    """Return the share of a prompt that an earlier one had: of its beginning, or of all of it.

    Where the conversation only went on, what is new in it may repeat what was said before (an agent
    that calls the same tool again): no cache could have had it.
    """
    begins = prompt.common_prefix_chars / prompt.chars if prompt.chars else 0.0
    if prompt.only_grew or prompt.shared_ratio < MIN_SHARED_RATIO:
        return begins
    return max(begins, prompt.shared_ratio)
