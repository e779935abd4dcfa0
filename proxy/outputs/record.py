"""The record: one request as the log, the API and the page show it. Pure.

Schema 1, documented in docs/headers-and-records.md. Fields that are not known are absent.
"""

import statistics
from operator import attrgetter
from typing import Any

from slowtok.detectors.case import Case
from slowtok.detectors.facts import how_to_enable
from slowtok.detectors.finding import Diagnosis, Finding
from slowtok.detectors.machine import HostSample
from slowtok.proxy.outputs.gpus import gpu_entries
from slowtok.proxy.outputs.names import sendable
from slowtok.proxy.utc import utc_text

SCHEMA = 1
MAX_TEXT_CHARS = 256
_MS = 1000.0
_HOST_FIELDS = (  # of HostSample, medians over the request
    "cpu_cores",
    "cpu_busy_cores",
    "cpu_steal_cores",
    "others_cpu_cores",
    "server_cpu_cores",
    "server_busy_threads",
    "server_run_delay_cores",
    "server_major_faults_per_s",
    "server_read_bytes_per_s",
    "server_quota_cores",
    "server_throttled_ratio",
    "psi_cpu_some_ratio",
    "psi_io_full_ratio",
    "psi_memory_full_ratio",
    "available_bytes",
    "swap_in_bytes_per_s",
    "cpu_mhz",
)
_HOST_READINGS = attrgetter(*_HOST_FIELDS)
_TIMING = {  # milliseconds in the record: seconds of the case
    "queue_ms": "phases.queue_s",
    "load_ms": "phases.load_s",
    "prefill_ms": "phases.prefill_s",
    "decode_ms": "phases.decode_s",
    "total_ms": "phases.total_s",
    "ttft_ms": "phases.ttft_s",
    "itl_p50_ms": "timeline.itl_p50_s",
    "itl_p99_ms": "timeline.itl_p99_s",
    "delivery_ms": "phases.delivery_s",
    "proxy_ms": "timeline.proxy_s",
    "decode_stream_ms": "phases.decode_stream_s",
}
_TIMES_S = attrgetter(*_TIMING.values())
_TOKENS = ("prompt", "cached", "completion", "drafted", "accepted")
_TOKEN_COUNTS = attrgetter(*_TOKENS)


def make_record(case: Case, diagnosis: Diagnosis | None) -> dict[str, Any]:
    """Return the record of one request; without a diagnosis, of one that only passed through."""
    record = _request(case)
    if diagnosis is not None:
        record |= _judged(case, diagnosis)
    return {name: value for name, value in record.items() if value is not None}


def _request(case: Case) -> dict[str, Any]:
    timeline, phases, server = case.timeline, case.phases, case.server
    return {
        "event": "request",
        "schema": SCHEMA,
        "ts": utc_text(timeline.started_unix_s),
        "id": timeline.request_id,
        "model": _text(timeline.model),
        "upstream": _some(
            name=server.name, kind=server.kind, url=server.url, version=server.version
        ),
        "path": _text(timeline.path),
        "stream": timeline.stream,
        "status": timeline.status,
        "ended": timeline.ended,
        "timing": _timing(case),
        "tokens": {
            name: count
            for name, count in zip(_TOKENS, _TOKEN_COUNTS(timeline.tokens), strict=True)
            if count is not None
        }
        or None,
        "rate": _some(prefill_tps=_rate(phases.prefill_tps), decode_tps=_rate(phases.decode_tps)),
        "parse_errors": timeline.parse_errors or None,
    }


def _timing(case: Case) -> dict[str, Any]:
    phases = case.phases
    timing: dict[str, Any] = {
        name: round(seconds * _MS, 3)
        for name, seconds in zip(_TIMING, _TIMES_S(case), strict=True)
        if seconds is not None
    }
    if phases.prefill_s is not None or phases.decode_s is not None:
        timing["source"] = phases.source
    return timing


def _judged(case: Case, diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "expected": _expected(case),
        "verdict": diagnosis.verdict,
        "phase": diagnosis.phase,
        "reason": diagnosis.reason or None,
        "findings": [_finding(cause, f) for cause, f in diagnosis.findings.items()],
        "budget_ms_per_token": {k: round(v, 3) for k, v in diagnosis.budget_ms_per_token.items()}
        or None,
        "cleared": list(diagnosis.cleared),
        "not_visible": [
            {"fact": fact, "how_to_enable": how_to_enable(fact, case)}
            for fact in dict.fromkeys([*_estimated(case), *diagnosis.missing.values()])
        ],
        "failed": dict(diagnosis.failed) or None,
        "gpu": known(gpu_entries(case)) if case.gpu else [],
        "host": _host(case),
    }


def _estimated(case: Case) -> list[str]:
    counted = case.timeline.tokens.completion is not None
    return ["decode time"] if counted and case.phases.source == "estimate" else []


def _expected(case: Case) -> dict[str, Any] | None:
    envelope = case.envelope
    configured = envelope.as_configured
    return _some(
        decode_low_tps=_rate(envelope.decode.low if envelope.decode else None),
        decode_high_tps=_rate(envelope.decode.high if envelope.decode else None),
        ceiling_tps=_rate(envelope.ceiling_tps),
        as_configured=None
        if configured is None
        else {"low_tps": _rate(configured.low), "high_tps": _rate(configured.high)},
        basis=envelope.basis,
        because=list(envelope.because) or None,
    )


def _finding(cause: str, finding: Finding) -> dict[str, Any] | None:
    return _some(
        cause=cause,
        confidence=round(finding.confidence, 2),
        lost_ms=round(finding.lost_s * _MS),
        phase=finding.phase,
        informational=finding.informational or None,
        summary=finding.summary,
        evidence=[
            _some(name=e.name, value=_number(e.value), unit=e.unit, limit=e.limit)
            for e in finding.evidence
        ],
        remedy=finding.remedy,
    )


def _host(case: Case) -> dict[str, Any]:
    if not case.host:
        return {"samples": 0, "why": _why_unread(case)}
    return _medians(case.host)


def _why_unread(case: Case) -> str:
    """Say why a request has no readings of the machine."""
    if case.server.local is False:
        return "the engine runs on another machine"
    return case.device.sampling_failure or "the sampling process gave none in that time"


def _medians(samples: tuple[HostSample, ...]) -> dict[str, Any]:
    columns = zip(*map(_HOST_READINGS, samples), strict=True)
    known = {
        name: [value for value in column if value is not None]
        for name, column in zip(_HOST_FIELDS, columns, strict=True)
    }
    found = {name: _number(statistics.median(v)) for name, v in known.items() if v}
    return {"samples": len(samples), **found}


def _some(**values: Any) -> dict[str, Any] | None:
    """Return what is known of these; None where nothing is."""
    return {name: value for name, value in values.items() if value is not None} or None


def _text(text: str | None) -> str | None:
    """Bound what a client wrote, and make it text that JSON can carry."""
    return None if text is None else sendable(text[:MAX_TEXT_CHARS])


def known(value: Any) -> Any:
    """Leave out what is None, at every depth."""
    if isinstance(value, dict):
        return {k: known(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [known(v) for v in value]
    return value


def _rate(tokens_per_s: float | None) -> float | None:
    return None if tokens_per_s is None else round(tokens_per_s, 2)


def _number(value: float) -> float:
    return round(value, 3)
