"""The record: one request as the log, the API and the page show it. Pure.

Schema 1, documented in docs/headers-and-records.md. Unknown fields are absent.
"""

from functools import lru_cache
from operator import attrgetter
from statistics import median
from typing import Any

from slowtok.detectors.analysis.prompt_change import client_remedy
from slowtok.detectors.analysis.prompt_loss import known_ratio, recomputed_of
from slowtok.detectors.case.case import Case, Envelope, Phases, PromptPrefix, Tokens
from slowtok.detectors.case.finding import Diagnosis, Finding
from slowtok.detectors.case.machine import HostSample
from slowtok.detectors.case.named_facts import how_to_enable
from slowtok.proxy.outputs.gpus import gpu_entries
from slowtok.proxy.outputs.labels import sendable
from slowtok.proxy.runtime.utc import utc_text

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
    "server_processes",
    "server_main_process_cores",
    "server_busiest_process_cores",
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


def make_record(case: Case, diagnosis: Diagnosis | None) -> dict[str, Any]:
    """Return the record of one request; without a diagnosis if it was only forwarded."""
    record = _request(case)
    if diagnosis is not None:
        _add_judgement(record, case, diagnosis)
    return record


def _request(case: Case) -> dict[str, Any]:
    timeline, server = case.timeline, case.server
    record: dict[str, Any] = {
        "event": "request",
        "schema": SCHEMA,
        "ts": utc_text(timeline.started_unix_s),
        "id": timeline.request_id,
    }
    if timeline.model is not None:
        record["model"] = _text(timeline.model[:MAX_TEXT_CHARS])
    record["upstream"] = _some(
        name=server.name,
        kind=server.kind,
        through=server.through,
        url=server.url,
        version=server.version,
    )
    record["path"] = _text(timeline.path[:MAX_TEXT_CHARS])
    record["stream"] = timeline.stream
    if timeline.status is not None:
        record["status"] = timeline.status
    record["ended"] = timeline.ended
    record["timing"] = _timing(case)
    if tokens := _tokens(timeline.tokens, recomputed_of(case)):
        record["tokens"] = tokens
    if rate := _rate(case.phases):
        record["rate"] = rate
    if case.prompt is not None:
        record["prompt"] = _prompt(case.prompt)
    if timeline.parse_errors:
        record["parse_errors"] = timeline.parse_errors
    return record


def _timing(case: Case) -> dict[str, Any]:
    phases, timeline = case.phases, case.timeline
    timing: dict[str, Any] = {}
    for name, seconds in (
        ("queue_ms", phases.queue_s),
        ("load_ms", phases.load_s),
        ("prefill_ms", phases.prefill_s),
        ("decode_ms", phases.decode_s),
        ("total_ms", phases.total_s),
        ("ttft_ms", phases.ttft_s),
        ("itl_p50_ms", timeline.itl_p50_s),
        ("itl_p99_ms", timeline.itl_p99_s),
        ("delivery_ms", phases.delivery_s),
        ("proxy_ms", timeline.proxy_s),
        ("decode_stream_ms", phases.decode_stream_s),
        ("loop_lag_ms", timeline.loop_lag_s),
    ):
        if seconds is not None:
            timing[name] = round(seconds * _MS, 3)
    if phases.queue_estimated:
        timing["queue_source"] = "estimate"
    if "prefill_ms" in timing or "decode_ms" in timing:
        timing["source"] = phases.source
    return timing


def _tokens(tokens: Tokens, recomputed: int | None) -> dict[str, int]:
    counts = (
        ("prompt", tokens.prompt),
        ("cached", tokens.cached),
        ("recomputed", recomputed),
        ("completion", tokens.completion),
        ("drafted", tokens.drafted),
        ("accepted", tokens.accepted),
    )
    return {name: count for name, count in counts if count is not None}


def _prompt(prompt: PromptPrefix) -> dict[str, Any]:
    """Return the comparison with the conversation's previous prompt: counts, no text."""
    fields: dict[str, Any] = {"known_ratio": round(known_ratio(prompt), 4)}
    if prompt.difference_message is not None:
        fields |= known(
            {
                "message": prompt.difference_message + 1,
                "role": prompt.difference_role,
                "change": prompt.difference_kind,
                "at_char": prompt.first_difference,
            }
        )
        if prompt.difference_kind is not None:
            fields["remedy"] = client_remedy(prompt)
    return fields


def _rate(phases: Phases) -> dict[str, float]:
    rate = {}
    if phases.prefill_tps is not None:
        rate["prefill_tps"] = round(phases.prefill_tps, 2)
    if phases.decode_tps is not None:
        rate["decode_tps"] = round(phases.decode_tps, 2)
    return rate


def _add_judgement(record: dict[str, Any], case: Case, diagnosis: Diagnosis) -> None:
    if expected := _expected(case.envelope):
        record["expected"] = expected
    record["verdict"] = diagnosis.verdict
    if diagnosis.phase is not None:
        record["phase"] = diagnosis.phase
    if diagnosis.reason:
        record["reason"] = diagnosis.reason
    findings, budget = diagnosis.findings, diagnosis.budget_ms_per_token
    record["findings"] = [_finding(c, f) for c, f in findings.items()] if findings else []
    if budget:
        record["budget_ms_per_token"] = {k: round(v, 3) for k, v in budget.items()}
    record["cleared"] = list(diagnosis.cleared)
    if diagnosis.unused:
        record["unused"] = list(diagnosis.unused)
    record["not_visible"] = _not_visible(case, diagnosis)
    if diagnosis.failed:
        record["failed"] = dict(diagnosis.failed)
    record["gpu"] = gpu_entries(case) if case.gpu else []
    record["host"] = _medians(case.host) if case.host else _unread(case)


def _not_visible(case: Case, diagnosis: Diagnosis) -> list[dict[str, str]]:
    facts = list(diagnosis.missing.values())
    if case.phases.source == "estimate" and case.timeline.tokens.completion is not None:
        facts.insert(0, "decode time")
    return [
        {"fact": fact, "how_to_enable": how_to_enable(fact, case)} for fact in dict.fromkeys(facts)
    ]


def _expected(envelope: Envelope) -> dict[str, Any]:
    expected: dict[str, Any] = {}
    if (band := envelope.decode) is not None:
        expected["decode_low_tps"] = round(band.low, 2)
        expected["decode_high_tps"] = round(band.high, 2)
    if envelope.ceiling_tps is not None:
        expected["ceiling_tps"] = round(envelope.ceiling_tps, 2)
    if (today := envelope.as_configured) is not None:
        expected["as_configured"] = {
            "low_tps": round(today.low, 2),
            "high_tps": round(today.high, 2),
        }
    if envelope.basis is not None:
        expected["basis"] = envelope.basis
    if envelope.because:
        expected["because"] = list(envelope.because)
    return expected


def _finding(cause: str, finding: Finding) -> dict[str, Any] | None:
    return _some(
        cause=cause,
        confidence=round(finding.confidence, 2),
        lost_ms=round(finding.lost_s * _MS),
        phase=finding.phase,
        informational=finding.informational or None,
        summary=finding.summary,
        evidence=[
            _some(
                name=e.name,
                value=round(e.value, 3),
                unit=e.unit,
                limit=None if e.limit is None else round(e.limit, 3),
            )
            for e in finding.evidence
        ],
        remedy=finding.remedy,
    )


def _unread(case: Case) -> dict[str, Any]:
    """Return why a request has no samples of the machine."""
    if case.server.local is False:
        why = case.server.unmapped or "the engine runs on another machine"
    else:
        why = case.device.sampling_failure or "the sampling process wrote no samples in that time"
    return {"samples": 0, "why": why}


def _medians(samples: tuple[HostSample, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"samples": len(samples)}
    columns = zip(*map(_HOST_READINGS, samples), strict=True)
    for name, column in zip(_HOST_FIELDS, columns, strict=True):
        if known := [value for value in column if value is not None]:
            found[name] = round(median(known), 3)
    return found


def _some(**values: Any) -> dict[str, Any] | None:
    """Return the known fields; None if none is known."""
    return {name: value for name, value in values.items() if value is not None} or None


_text = lru_cache(maxsize=64)(sendable)
"""A name or a path, cut before, as text that JSON can carry: requests repeat them."""


def known(value: Any) -> Any:
    """Return a mapping without None values, at every depth."""
    if isinstance(value, dict):
        return {k: known(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [known(v) for v in value]
    return value
