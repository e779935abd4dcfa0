"""The response headers of docs/headers-and-records.md, from a finished diagnosis. Pure."""

from slowtok.detectors.case import Case, Phases
from slowtok.detectors.finding import Diagnosis, Finding
from slowtok.proxy.outputs.structured import bare, decimal, inner_list, item, string

_MS = 1000.0


def diagnosis_headers(case: Case, diagnosis: Diagnosis) -> dict[str, str]:
    """Return the headers of a reply whose own diagnosis is known when its head is sent."""
    found = {
        "server-timing": server_timing(case.phases, case.timeline.proxy_s),
        "slowtok-verdict": diagnosis.verdict,
        "slowtok-prefill": _prefill(case),
        "slowtok-decode": _decode(case),
        "slowtok-expected": _expected(case),
    }
    if diagnosis.verdict == "slow":
        # The phase is one of five tokens of the contract, written without quotes.
        found["slowtok-verdict"] = f"slow;phase={diagnosis.phase}"
        found["slowtok-cause"] = _causes(diagnosis)
        found["slowtok-hint"] = string(hint(diagnosis))
    return {name: value for name, value in found.items() if value}


def server_timing(phases: Phases | None, proxy_s: float) -> str:
    """Return `Server-Timing` with the phases that are known, in milliseconds."""
    parts: tuple[tuple[str, float | None], ...] = (("proxy", proxy_s),)
    if phases is not None:
        parts = (
            ("queue", phases.queue_s),
            ("load", phases.load_s),
            ("prefill", phases.prefill_s),
            ("decode", phases.decode_s),
            *parts,
        )
    known = [f"{name};dur={decimal(took_s * _MS)}" for name, took_s in parts if took_s is not None]
    return ", ".join(known)


def previous(request_id: str, diagnosis: Diagnosis) -> str:
    """Return `slowtok-previous`: the verdict on the last finished request of the same model."""
    named = _named(diagnosis)
    cause = f";cause={string(next(iter(named)))}" if named else ""
    return f"{diagnosis.verdict};id={string(request_id)}{cause}"


def hint(diagnosis: Diagnosis) -> str:
    """Return one sentence on what to do: the first cause's remedy, or that no cause fits."""
    for finding in _named(diagnosis).values():
        return finding.remedy
    ruled_out = len(diagnosis.cleared)
    return f"Slow, and no known cause fits ({ruled_out} ruled out); see slowtok explain"


def _named(diagnosis: Diagnosis) -> dict[str, Finding]:
    return {c: f for c, f in diagnosis.findings.items() if not f.informational}


def _causes(diagnosis: Diagnosis) -> str:
    return ", ".join(
        item(
            cause,
            {"confidence": round(f.confidence, 2), "lost-ms": round(f.lost_s * _MS) or None},
        )
        for cause, f in _named(diagnosis).items()
    )


def _prefill(case: Case) -> str | None:
    tokens, phases = case.timeline.tokens, case.phases
    if tokens.prompt is None:
        return None
    cached = "" if tokens.cached is None else f";cached={bare(tokens.cached)}"
    return f"{tokens.prompt}{cached}{_ms(phases.prefill_s)}{_rate('rate', phases.prefill_tps)}"


def _decode(case: Case) -> str | None:
    completion, phases = case.timeline.tokens.completion, case.phases
    if completion is None:
        return None
    return f"{completion}{_ms(phases.decode_s)}{_rate('rate', phases.decode_tps)}"


def _expected(case: Case) -> str | None:
    band = case.envelope.decode
    if band is None:
        return None
    edges = inner_list((float(round(band.low, 1)), float(round(band.high, 1))))
    word = (case.envelope.basis or "").split(",")[0] or None
    return item(f"{edges}{_rate('ceiling', case.envelope.ceiling_tps)}", {"basis": word})


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f";ms={decimal(seconds * _MS, 1)}"


def _rate(name: str, tokens_per_s: float | None) -> str:
    return "" if tokens_per_s is None else f";{name}={decimal(tokens_per_s, 2)}"
