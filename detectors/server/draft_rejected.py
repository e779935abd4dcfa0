"""Speculative decoding cost more than it brought: too few of the drafted tokens were accepted.

Signal:
The engine counts the tokens that it drafted and those that the model took. So few were taken that
drafting and checking the others cost more time than they saved, and the rate is below what the
model gives without drafts.

Not to be confused with:
- Prose instead of code: fewer drafts fit, and the rate falls; while it stays above that of the
  model without drafts nothing is wrong.
- `long-context`: drafts bring less and less there, but some.
- A draft model on the CPU or a driver's fault: drafts are accepted, and it is slow all the same.

Remedy:
Fewer drafts per step, drafts only where the draft model is sure, another draft model, or none.

Sources:
- ggml-org/llama.cpp#25908 (96 of 1,378 drafts taken with 64 per step: slower than without).
- ggml-org/llama.cpp#28196 (one card and model, 1, 2, 3 and 6 drafts per step; 6: 0.23 taken).
- ggml-org/llama.cpp#3649 (a draft model that costs 0.11 of a token; below break-even).
"""

from slowtok.detectors.case import Case
from slowtok.detectors.drafts import Drafts, drafts_of, speculates
from slowtok.detectors.finding import Evidence, Finding, need, weigh
from slowtok.detectors.phases import judge_decode
from slowtok.detectors.window import decode_tps, runs_on_cpu

TITLE = "Drafted tokens were rejected"

GPU_COST_RATIO = (0.11, 0.30)
"""What drafting and checking one token costs, in tokens without drafts. Published: 0.11 (#3649, a
160M draft model for 7B), 0.16 to 0.26 (#28196: 14.9 ms without, steps of 18.8 ms with one draft,
21.9 with three, 31.6 with six); 0.30 for 0.6B beside 4B by their bytes."""

CPU_COST_RATIO = (0.70, 1.20)
"""A CPU checks a token about as slowly as it generates one: llama-server on two cores took 2.0, 2.9
and 3.2 times as long for 2, 3 and 4 sequences (SmolLM2-135M); the draft comes on top."""

MIN_DRAFTED = 32
"""No published source: fewer are luck."""

FEW_PER_STEP = 2
"""With mixed text 2 to 3 gain most (#28196); with 4, prose gained nothing more (qwen38-mtp#8)."""


def detect(case: Case) -> Finding | None:
    """Fire when the drafts that were thrown away cost more than the accepted ones saved."""
    if not speculates(case):
        return None
    judged = judge_decode(case)
    if judged.slow is False:
        return None
    drafts = need(drafts_of(case), "drafted and accepted tokens")
    tokens = need(case.timeline.tokens.completion, "number of generated tokens")
    low, high = CPU_COST_RATIO if runs_on_cpu(case) else GPU_COST_RATIO
    if drafts.drafted < MIN_DRAFTED or drafts.acceptance_ratio >= high:
        return None
    expected_tps = need(case.envelope.expected_tps, "decode rate expected without drafts")
    least_s = max(low * drafts.drafted - drafts.accepted, 0) / expected_tps
    most_s = (high * drafts.drafted - drafts.accepted) / expected_tps
    lost_s = min(max(judged.lost_s, least_s), most_s)
    return _finding(case, drafts, _per_step(drafts, tokens), lost_s, break_even_ratio=high)


def _per_step(drafts: Drafts, tokens: int) -> float:
    """Return the drafts per step: each step gives one token that was not drafted."""
    return drafts.drafted / max(tokens - drafts.accepted, 1)


def _finding(
    case: Case, drafts: Drafts, per_step: float, lost_s: float, *, break_even_ratio: float
) -> Finding:
    rate_tps, expected_tps = decode_tps(case), case.envelope.expected_tps or 0.0
    taken = 100 * drafts.acceptance_ratio
    told = case.timeline.tokens.drafted is not None
    return Finding(
        phase="decode",
        confidence=weigh("server" if told else "counter", "inference"),
        lost_s=lost_s,
        summary=(
            f"Of {drafts.drafted:,} tokens that were drafted ahead the model took only "
            f"{drafts.accepted:,} ({taken:.0f} %), so drafting cost more than it saved: "
            f"{rate_tps:.1f} tokens/s instead of about {expected_tps:.0f} without drafts; decode "
            f"lost about {{lost}}."
        ),
        remedy=_remedy(case, per_step),
        evidence=(
            Evidence(name="accepted drafts", value=taken, unit="%", limit=100 * break_even_ratio),
            Evidence(name="drafts per step", value=per_step, unit="tokens"),
            Evidence(name="decode rate", value=rate_tps, unit="tokens/s", limit=expected_tps),
        ),
    )


def _remedy(case: Case, per_step: float) -> str:
    fewer = per_step > FEW_PER_STEP
    if case.server.kind == "llama-server":
        first = f"--spec-draft-n-max {FEW_PER_STEP} and " if fewer else ""
        return (
            f"Start llama-server with {first}--spec-draft-p-min 0.75, so that it drafts only what "
            "it is sure of; else take another draft model, or leave --spec-type and --model-draft "
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
