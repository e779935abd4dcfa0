"""The whole answer: fit, rates at several contexts, what fits at most, and the claim. Pure."""

from dataclasses import dataclass, replace
from typing import Any

from slowtok.detectors.case.case import Range
from slowtok.detectors.expectation.envelope import Claim, judge_claim
from slowtok.detectors.expectation.footprint import MAX_OVERHEAD_BYTES, context_that_fits
from slowtok.detectors.expectation.prospect import Prospect, layers_that_fit, prospect, room_bytes
from slowtok.proxy.cli.fit.answer import as_json, claim_as_json, rate
from slowtok.proxy.cli.fit.asked import Question
from slowtok.proxy.cli.fit.launch import launches, launches_json
from slowtok.proxy.cli.fit.table import Row, table, table_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What `slowtok fit` says.

    `most_context_tokens` is the context that fits for sure with all layers on GPUs, by the same
    measure as `found.fits`; `most_gpu_layers` the layers that do at the context asked for. `empty`
    and `full` are the rates at the start and the end of the context. `rows` say it for each type of
    weights that can be chosen, at each usual context.
    """

    question: Question
    found: Prospect
    empty: Prospect
    full: Prospect
    rows: tuple[Row, ...]
    most_context_tokens: int | None
    most_gpu_layers: int | None
    claim: Claim | None


def outlook(question: Question, claimed_tps: float | None) -> Outlook:
    """Return the answer to a question."""
    found = prospect(question.facts, reserved_tokens=question.context_tokens)
    return Outlook(
        question=question,
        found=found,
        empty=_at(question, 0),
        full=_at(question, question.context_tokens),
        rows=table(question),
        most_context_tokens=_most_context(question, fits=found.fits),
        most_gpu_layers=layers_that_fit(question.facts, question.context_tokens),
        claim=None if claimed_tps is None else judge(found, claimed_tps),
    )


def judge(found: Prospect, claimed_tps: float) -> Claim:
    """Judge a claimed rate against the setup as it was asked for."""
    decode = found.decode
    known = decode.low is not None and decode.high is not None
    band = Range(low=decode.low or 0.0, high=decode.high or 0.0) if known else None
    reasons = tuple(line for line in found.basis if not line.startswith(("roofline", "reference")))
    envelope = replace(
        found.envelope,
        decode=band,
        ceiling_tps=decode.ceiling,
        because=reasons[::-1] or found.basis,
    )
    return judge_claim(envelope, claimed_tps)


def outlook_json(answer: Outlook) -> dict[str, Any]:
    """Return the whole answer as one JSON object; it holds the keys of a line of `--batch`."""
    claim, facts = answer.claim, answer.question.facts
    return {
        "setup": answer.question.title,
        "context_tokens": answer.question.context_tokens,
        "depth_tokens": facts.context_tokens,
        "layers": facts.model.layers,
        "gpu_layers": answer.found.gpu_layers,
        **as_json(answer.found),
        "decode_tps_empty": rate(answer.empty.decode),
        "decode_tps_full": rate(answer.full.decode),
        "most_context_tokens": answer.most_context_tokens,
        "most_gpu_layers": answer.most_gpu_layers,
        "table": table_json(answer.rows),
        "commands": launches_json(launches(answer.question, answer.rows)),
        **({} if claim is None else {"claim": claim_as_json(claim)}),
    }


def _at(question: Question, depth_tokens: int) -> Prospect:
    facts = replace(question.facts, context_tokens=depth_tokens)
    return prospect(facts, reserved_tokens=question.context_tokens)


def _most_context(question: Question, *, fits: bool | None) -> int | None:
    facts = question.facts
    room = room_bytes(facts.device)
    if room is None or not facts.device.gpus:
        return None
    others = MAX_OVERHEAD_BYTES * (len(facts.device.gpus) - 1)  # each has buffers of its own
    fitting = context_that_fits(facts.model, facts.server, room - others)
    if fitting is None:
        return None
    if fits:  # a window shorter than its layers could have leaves a little more than that
        fitting = max(fitting, question.context_tokens)
    return min(fitting, question.trained_context_tokens or fitting)
