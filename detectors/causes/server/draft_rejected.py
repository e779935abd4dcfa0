"""Speculative decoding cost more than it brought: a step takes longer than its tokens are worth.

Signal:
The engine counts the tokens that it drafted and those that the model took. A step gives one token
and those that were taken, and takes the time to draft and to check all of them. Where a step takes
longer than the same tokens would without drafts, drafting costs time, however large the share that
was taken.

Not to be confused with:
- In prose fewer drafts fit than in code, and the rate falls; while it stays above that of the model
  without drafts, nothing is wrong.
- `long-context`: drafts bring less and less as the context grows, but they still bring some.
- With a draft model on the CPU or a driver's fault, drafts are accepted, but a step takes longer
  than drafting and checking explain.

Remedy:
Draft fewer tokens per step, draft only where the draft model is sure, use another draft model, or
use none.

Sources:
- ggml-org/llama.cpp#25908 (96 of 1,378 drafts taken with 64 per step: slower than without).
- ggml-org/llama.cpp#28196 (one card and model, 1, 2, 3 and 6 drafts per step; 6: 0.23 taken).
- ggml-org/llama.cpp#24508 (a model with experts on GB10: 0.34 of three per step taken, 23.5
  instead of 26.7 tokens/s; 0.94 of two: 30.5), ikawrakow/ik_llama.cpp#2369 (0.42, and slower).
- ggml-org/llama.cpp#3649 (a draft model that costs 0.11 of a token; below break-even).
"""

from slowtok.detectors.analysis.host_window import decode_tps, runs_on_cpu
from slowtok.detectors.analysis.phase_loss import decode_excess_s, judge_decode
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits, need, weigh
from slowtok.detectors.expectation.reads import expert_bytes, expert_union_ratio
from slowtok.detectors.expectation.speculation import Drafts, drafts_of, speculates

TITLE = "Drafted tokens were rejected"
TRAITS = Traits(phases=("decode",), in_exchange=True, persistent=True)

GPU_COST_RATIO = (0.11, 0.30)
"""What drafting and checking one token costs, in tokens without drafts: usually no less, and at
most. Published: 0.11 (#3649, a 160M draft model for 7B), 0.16 to 0.26 (#28196: 14.9 ms without,
steps of 18.8 ms with one draft, 21.9 with three, 31.6 with six); 0.30 for 0.6B beside 4B by their
bytes. Drafts that are looked up in the text cost nothing but the check, so that the least is only
usual, and rules nothing out."""

CPU_COST_RATIO = (0.70, 1.20)
"""A CPU checks a token about as slowly as it generates one: llama-server on two cores took 2.0, 2.9
and 3.2 times as long for 2, 3 and 4 sequences (SmolLM2-135M); the draft comes on top."""

MIN_DRAFTED = 32
"""Heuristic: fewer are luck."""

FEW_PER_STEP = 2
"""With mixed text 2 to 3 gain most (#28196); with 4, prose gained nothing more (qwen38-mtp#8)."""


def detect(case: Case) -> Finding | None:
    """Fire when the drafts that were thrown away cost more than the accepted ones saved."""
    if not speculates(case):
        return None
    if judge_decode(case).slow is False:
        return None
    drafts = need(drafts_of(case), "drafted and accepted tokens")
    tokens = need(case.timeline.tokens.completion, "number of generated tokens")
    if drafts.drafted < MIN_DRAFTED:
        return None
    usual, most = _cost_in_tokens(case, drafts, tokens)
    if most <= drafts.accepted:
        return None
    expected_tps = need(case.envelope.expected_tps, "decode rate expected without drafts")
    lost_s = min(decode_excess_s(case) or 0.0, (most - drafts.accepted) / expected_tps)
    if lost_s <= 0:
        return None
    return _finding(case, drafts, tokens, lost_s, doubted=usual <= drafts.accepted)


def _cost_in_tokens(case: Case, drafts: Drafts, tokens: int) -> tuple[float, float]:
    """Return what drafting and checking cost as tokens without drafts: usually, and at most.

    A model with experts reads for each step those of all tokens that it checks.
    """
    usual, most = CPU_COST_RATIO if runs_on_cpu(case) else GPU_COST_RATIO
    steps, model = _steps(drafts, tokens), case.model
    alone = expert_union_ratio(model.experts or 0, model.experts_used or 0, 1.0)
    checked = 1 + drafts.drafted / steps
    union = expert_union_ratio(model.experts or 0, model.experts_used or 0, checked)
    share = expert_bytes(model) / model.read_bytes if model.read_bytes else 0.0
    experts = steps * share * (union / alone - 1)
    return usual * drafts.drafted, most * drafts.drafted + experts


def _steps(drafts: Drafts, tokens: int) -> int:
    """Return how many steps there were: each gives one token that was not drafted."""
    return max(tokens - drafts.accepted, 1)


def _finding(case: Case, drafts: Drafts, tokens: int, lost_s: float, *, doubted: bool) -> Finding:
    rate_tps, expected_tps = decode_tps(case), case.envelope.expected_tps or 0.0
    taken, steps = 100 * drafts.acceptance_ratio, _steps(drafts, tokens)
    told, per_step = case.timeline.tokens.drafted is not None, tokens / steps
    return Finding(
        phase="decode",
        confidence=weigh("server" if told else "counter", "inference", against=int(doubted)),
        lost_s=lost_s,
        summary=(
            f"Of {drafts.drafted:,} tokens that were drafted ahead the model took only "
            f"{drafts.accepted:,} ({taken:.0f} %), so drafting cost more than it saved: "
            f"{rate_tps:.1f} tokens/s instead of about {expected_tps:.0f} without drafts; decode "
            f"lost about {{lost}}."
        ),
        remedy=_remedy(case, drafts.drafted / steps),
        evidence=(
            Evidence(
                name="time per step, in tokens without drafts",
                value=per_step * expected_tps / rate_tps,
                unit="tokens",
                limit=per_step,
            ),
            Evidence(name="accepted drafts", value=taken, unit="%"),
            Evidence(name="drafts per step", value=drafts.drafted / steps, unit="tokens"),
            Evidence(name="decode rate", value=rate_tps, unit="tokens/s", limit=expected_tps),
        ),
    )


def _remedy(case: Case, per_step: float) -> str:
    fewer = per_step > FEW_PER_STEP
    if case.server.kind == "llama-server":
        first = f"--spec-draft-n-max {FEW_PER_STEP} and " if fewer else ""
        return (
            f"Start llama-server with {first}--spec-draft-p-min 0.75, so that it drafts only what "
            "it is sure of; or take another draft model, or leave --spec-type and --model-draft "
            "out for text like this."
        )
    if case.server.kind == "vllm":
        fewest = f"Set num_speculative_tokens to {FEW_PER_STEP} in"
        first = fewest if fewer else "Change the method in"
        return (
            f"{first} --speculative-config, or leave --speculative-config out for text like this."
        )
    fewer_said = f"at most {FEW_PER_STEP} tokens" if fewer else "only what is sure"
    return f"Let the engine draft {fewer_said}, or turn speculative decoding off."
