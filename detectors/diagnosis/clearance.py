"""Clearance: which causes are ruled out, some of them without running their detectors.

A detector without a finding rules its cause out only if the cause could have been seen. Not if the
request was cut off before the phase that it slows; not, for a cause in the machine, if there are no
samples; and not if there is no verdict on the request at all.
"""

import itertools
from collections.abc import Mapping, Sequence

from slowtok.detectors.analysis.phase_loss import is_cut_short
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Traits, Verdict
from slowtok.detectors.diagnosis.catalog import TRAITS, causes_with

IN_EXCHANGE = causes_with(lambda traits: traits.in_exchange)
GPU_CAUSES = causes_with(lambda traits: traits.requires == "gpu")

Answers = Mapping[str, str | None]
"""What detectors say by cause: the fact that is missing, or None where the cause is ruled out."""

_WITHOUT_GPU: Answers = dict.fromkeys(
    causes_with(lambda traits: traits.requires in ("gpu", "gpu-use"))
)
_WITHOUT_HOST: Answers = dict.fromkeys(
    causes_with(lambda traits: traits.requires == "host-samples"), "host samples during decode"
)
_WITHOUT_READS: Answers = dict.fromkeys(
    causes_with(lambda traits: traits.requires == "kv-reads"), "KV bytes read per token"
)
_BEFOREHAND: Mapping[tuple[bool, bool, bool], Answers] = {
    (may_use_gpu, has_host, has_reads): {
        **({} if may_use_gpu else _WITHOUT_GPU),
        **({} if has_host else _WITHOUT_HOST),
        **({} if has_reads else _WITHOUT_READS),
    }
    for may_use_gpu, has_host, has_reads in itertools.product((True, False), repeat=3)
}


def known_beforehand(case: Case) -> Answers:
    """Return the answers of those detectors that three properties of the case determine.

    For a short request on a machine without a GPU, they answer two thirds of the catalogue, which
    saves time.
    """
    server, sees_gpu = case.server, bool(case.device.gpus or case.gpu)
    may_use_gpu = sees_gpu and server.local is not False and server.gpu_layers != 0
    has_host, has_reads = bool(case.host_during("decode")), case.envelope.kv_bytes is not None
    return _BEFOREHAND[may_use_gpu, has_host, has_reads]


def ruled_out(case: Case, verdict: Verdict, cleared: Sequence[str]) -> tuple[str, ...]:
    """Return those of the causes without a finding (`cleared`) that are really ruled out."""
    if verdict == "unknown":
        return ()
    if not (case.host or case.gpu):
        cleared = [cause for cause in cleared if cause in IN_EXCHANGE]
    if is_cut_short(case):
        cleared = [cause for cause in cleared if could_apply(case, cause)]
    return tuple(cleared)


def could_apply(case: Case, cause: str) -> bool:
    """Return True if the request reached a phase that this cause slows, or was not cut short."""
    if not is_cut_short(case):
        return True
    had = {
        "queue": case.phases.queue_s,
        "load": case.phases.load_s,
        "prefill": case.phases.prefill_s,
        "decode": case.phases.decode_s,
        "delivery": case.phases.delivery_s,
    }
    return any(had[phase] is not None for phase in TRAITS.get(cause, Traits()).phases)
