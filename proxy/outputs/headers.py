"""The response headers of docs/headers-and-records.md, made from a finished diagnosis.

Their values are structured fields (RFC 9651), of which they use a few forms.
"""

import math
from collections.abc import Iterable, Mapping

from slowtok.detectors.case.case import Case, Envelope, Phases, Range
from slowtok.detectors.case.finding import Diagnosis, Finding

_MS = 1000.0

Bare = int | float | str
MAX_STRING_CHARS = 240
_MAX_INTEGER = 999_999_999_999_999
_MAX_DECIMAL = 999_999_999_999.0


def diagnosis_headers(case: Case, diagnosis: Diagnosis) -> dict[str, str]:
    """Return the headers of a reply whose diagnosis is known when its head is sent."""
    tokens, phases, is_slow = case.timeline.tokens, case.phases, diagnosis.verdict == "slow"
    fields = {
        "server-timing": server_timing(phases, case.timeline.proxy_s),
        # The phase is one of five tokens of the contract, written without quotes.
        "slowtok-verdict": f"slow;phase={diagnosis.phase}" if is_slow else diagnosis.verdict,
    }
    if tokens.prompt is not None:
        cached = "" if tokens.cached is None else f";cached={bare(tokens.cached)}"
        took = _took(phases.prefill_s, phases.prefill_tps)
        fields["slowtok-prefill"] = f"{tokens.prompt}{cached}{took}"
    if tokens.completion is not None:
        took = _took(phases.decode_s, phases.decode_tps)
        fields["slowtok-decode"] = f"{tokens.completion}{took}"
    if case.envelope.decode is not None:
        fields["slowtok-expected"] = _expected(case.envelope, case.envelope.decode)
    if is_slow:
        if causes := _causes(diagnosis):
            fields["slowtok-cause"] = causes
        fields["slowtok-hint"] = string(hint(diagnosis))
    return fields


def server_timing(phases: Phases | None, proxy_s: float) -> str:
    """Return `Server-Timing` with the phases that are known, in milliseconds."""
    text = ""
    if phases is not None:
        for name, took_s in (
            ("queue", phases.queue_s),
            ("load", phases.load_s),
            ("prefill", phases.prefill_s),
            ("decode", phases.decode_s),
        ):
            if took_s is not None:
                text += f"{name};dur={decimal(took_s * _MS)}, "
    return f"{text}proxy;dur={decimal(proxy_s * _MS)}"


def previous(request_id: str, diagnosis: Diagnosis) -> str:
    """Return `slowtok-previous`: the verdict on the last finished request of the same model."""
    named = _named(diagnosis) if diagnosis.findings else {}
    cause = f";cause={string(next(iter(named)))}" if named else ""
    return f'{diagnosis.verdict};id="{request_id}"{cause}'  # an ID of our own making


def hint(diagnosis: Diagnosis) -> str:
    """Return one sentence on what to do: the remedy of the first cause, or that no cause fits.

    If most of the loss is unexplained, it says that first.
    """
    for finding in _named(diagnosis).values():
        before = (
            f"{diagnosis.reason[0].upper()}{diagnosis.reason[1:]}; " if diagnosis.reason else ""
        )
        return f"{before}{finding.remedy}"
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


def _expected(envelope: Envelope, band: Range) -> str:
    edges = inner_list((float(round(band.low, 1)), float(round(band.high, 1))))
    ceiling = (
        f";ceiling={decimal(envelope.ceiling_tps, 2)}" if envelope.ceiling_tps is not None else ""
    )
    basis = (envelope.basis or "").split(",")[0] or None
    return item(f"{edges}{ceiling}", {"basis": basis})


def _took(seconds: float | None, tokens_per_s: float | None) -> str:
    ms = "" if seconds is None else f";ms={decimal(seconds * _MS, 1)}"
    return ms if tokens_per_s is None else f"{ms};rate={decimal(tokens_per_s, 2)}"


def item(value: str, params: Mapping[str, Bare | None] | None = None) -> str:
    """Return a serialised bare value with its parameters, without those that are None."""
    kept = [f";{key}={bare(v)}" for key, v in (params or {}).items() if v is not None]
    return value + "".join(kept)


def inner_list(values: Iterable[Bare]) -> str:
    """Return an inner list, `(14.2 19.0)`."""
    return "(" + " ".join(bare(value) for value in values) + ")"


def bare(value: Bare) -> str:
    """Serialise an integer, a decimal or a string."""
    if isinstance(value, float):
        return decimal(value)
    if isinstance(value, int):
        return str(max(min(value, _MAX_INTEGER), -_MAX_INTEGER))
    return string(value)


def decimal(value: float, digits: int = 3) -> str:
    """Serialise a decimal, rounded to at most `digits` fraction digits (one to three)."""
    if abs(value) > _MAX_DECIMAL:
        value = math.copysign(_MAX_DECIMAL, value)
    text = f"{value:.{digits}f}".rstrip("0")
    return f"{text}0" if text[-1] == "." else text


def string(text: str) -> str:
    """Serialise a string: printable ASCII, cut after a word, quotes and backslashes escaped."""
    plain = text
    if not (text.isascii() and text.isprintable()):
        plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    if len(plain) > MAX_STRING_CHARS:
        whole_words = plain[: MAX_STRING_CHARS - 3].rpartition(" ")[0]
        plain = (whole_words or plain[: MAX_STRING_CHARS - 3]) + "..."
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
