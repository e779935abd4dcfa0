"""The record: one request as the log, the API and the page show it. Pure.

Schema 1, documented in docs/headers-and-records.md. Fields that are not known are absent.
"""

import statistics
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from slowtok.detectors.case import Case
from slowtok.detectors.facts import how_to_enable
from slowtok.detectors.finding import Diagnosis, Finding
from slowtok.detectors.machine import HostSample
from slowtok.proxy.outputs.gpus import gpu_entries

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


def make_record(case: Case, diagnosis: Diagnosis | None) -> dict[str, Any]:
    """Return the record of one request; without a diagnosis, of one that only passed through."""
    record = _request(case)
    if diagnosis is not None:
        record |= _judged(case, diagnosis)
    whole: dict[str, Any] = known(record)
    return {name: value for name, value in whole.items() if value != {}}


def _request(case: Case) -> dict[str, Any]:
    timeline, phases, tokens = case.timeline, case.phases, case.timeline.tokens
    timed = phases.prefill_s is not None or phases.decode_s is not None
    return {
        "event": "request",
        "schema": SCHEMA,
        "ts": datetime.fromtimestamp(timeline.started_unix_s, UTC).isoformat(
            timespec="milliseconds"
        ),
        "id": timeline.request_id,
        "model": _text(timeline.model),
        "upstream": {
            "name": case.server.name,
            "kind": case.server.kind,
            "url": case.server.url,
            "version": case.server.version,
        },
        "path": _text(timeline.path),
        "stream": timeline.stream,
        "status": timeline.status,
        "ended": timeline.ended,
        "timing": {
            "queue_ms": _ms(phases.queue_s),
            "load_ms": _ms(phases.load_s),
            "prefill_ms": _ms(phases.prefill_s),
            "decode_ms": _ms(phases.decode_s),
            "total_ms": _ms(phases.total_s),
            "ttft_ms": _ms(phases.ttft_s),
            "itl_p50_ms": _ms(timeline.itl_p50_s),
            "itl_p99_ms": _ms(timeline.itl_p99_s),
            "delivery_ms": _ms(phases.delivery_s),
            "proxy_ms": _ms(timeline.proxy_s),
            "decode_stream_ms": _ms(phases.decode_stream_s),
            "source": phases.source if timed else None,
        },
        "tokens": {
            "prompt": tokens.prompt,
            "cached": tokens.cached,
            "completion": tokens.completion,
            "drafted": tokens.drafted,
            "accepted": tokens.accepted,
        },
        "rate": {
            "prefill_tps": _rate(phases.prefill_tps),
            "decode_tps": _rate(phases.decode_tps),
        },
        "parse_errors": timeline.parse_errors or None,
    }


def _judged(case: Case, diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "expected": _expected(case),
        "verdict": diagnosis.verdict,
        "phase": diagnosis.phase,
        "reason": diagnosis.reason or None,
        "findings": [_finding(cause, f) for cause, f in diagnosis.findings.items()],
        "budget_ms_per_token": {k: round(v, 3) for k, v in diagnosis.budget_ms_per_token.items()},
        "cleared": list(diagnosis.cleared),
        "not_visible": [
            {"fact": fact, "how_to_enable": how_to_enable(fact, case)}
            for fact in dict.fromkeys([*_estimated(case), *diagnosis.missing.values()])
        ],
        "failed": dict(diagnosis.failed) or None,
        "gpu": gpu_entries(case),
        "host": _host(case.host),
    }


def _estimated(case: Case) -> list[str]:
    counted = case.timeline.tokens.completion is not None
    return ["decode time"] if counted and case.phases.source == "estimate" else []


def _expected(case: Case) -> dict[str, Any]:
    envelope = case.envelope
    configured = envelope.as_configured
    return {
        "decode_low_tps": _rate(envelope.decode.low if envelope.decode else None),
        "decode_high_tps": _rate(envelope.decode.high if envelope.decode else None),
        "ceiling_tps": _rate(envelope.ceiling_tps),
        "as_configured": None
        if configured is None
        else {"low_tps": _rate(configured.low), "high_tps": _rate(configured.high)},
        "basis": envelope.basis,
        "because": list(envelope.because) or None,
    }


def _finding(cause: str, finding: Finding) -> dict[str, Any]:
    return {
        "cause": cause,
        "confidence": round(finding.confidence, 2),
        "lost_ms": round(finding.lost_s * _MS),
        "phase": finding.phase,
        "informational": finding.informational or None,
        "summary": finding.summary,
        "evidence": [
            known({"name": e.name, "value": _number(e.value), "unit": e.unit, "limit": e.limit})
            for e in finding.evidence
        ],
        "remedy": finding.remedy,
    }


def _host(samples: tuple[HostSample, ...]) -> dict[str, Any]:
    medians = {name: _values(samples, name) for name in _HOST_FIELDS}
    found = {name: _number(statistics.median(v)) for name, v in medians.items() if v}
    return {"samples": len(samples), **found}


def _values(samples: Iterable[HostSample], name: str) -> list[float]:
    return [value for s in samples if (value := getattr(s, name)) is not None]


def _text(text: str | None) -> str | None:
    """Bound what a client wrote, and make it text that JSON can carry."""
    if text is None:
        return None
    return text[:MAX_TEXT_CHARS].encode("utf-8", "replace").decode()


def known(value: Any) -> Any:
    """Leave out what is None, at every depth."""
    if isinstance(value, dict):
        return {k: known(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [known(v) for v in value]
    return value


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * _MS, 3)


def _rate(tokens_per_s: float | None) -> float | None:
    return None if tokens_per_s is None else round(tokens_per_s, 2)


def _number(value: float) -> float:
    return round(value, 3)
