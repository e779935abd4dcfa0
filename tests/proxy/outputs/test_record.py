"""The record: every field where it is known, no field where it is not."""

import itertools
from dataclasses import replace
from datetime import datetime
from typing import Any

import orjson
import pytest

from fakes.cases import FIRING, case, healthy, with_phases, with_server, with_timeline
from fakes.records import full_record, names
from slowtok.detectors.case.case import Case, Envelope, Phases, Timeline
from slowtok.detectors.case.engine import ModelFacts
from slowtok.detectors.case.finding import Diagnosis
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts, GpuSample
from slowtok.detectors.case.named_facts import how_to_enable
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.record import MAX_TEXT_CHARS, SCHEMA, make_record

CONTRACT = """
event schema ts id model upstream.kind upstream.url upstream.version path stream status ended
timing.queue_ms timing.load_ms timing.prefill_ms timing.decode_ms timing.total_ms timing.ttft_ms
timing.itl_p50_ms timing.itl_p99_ms timing.delivery_ms timing.proxy_ms timing.source
tokens.prompt tokens.cached tokens.completion tokens.drafted tokens.accepted
rate.prefill_tps rate.decode_tps
expected.decode_low_tps expected.decode_high_tps expected.ceiling_tps
expected.as_configured.low_tps expected.as_configured.high_tps expected.basis expected.because[]
verdict phase findings[].cause findings[].confidence findings[].lost_ms findings[].summary
findings[].evidence[].name findings[].evidence[].value findings[].evidence[].unit
findings[].evidence[].limit findings[].remedy budget_ms_per_token.unexplained cleared[]
not_visible[].fact not_visible[].how_to_enable
gpu[].index gpu[].name gpu[].power_w.median gpu[].power_w.p10 gpu[].power_w.p90
gpu[].reasons.sw-power-cap host.cpu_busy_cores
"""


def record(before: Case) -> dict[str, Any]:
    return make_record(before, diagnose(before))


def test_every_field_of_the_contract_is_there_when_known() -> None:
    found = full_record()

    assert set(CONTRACT.split()) <= names(found)


def test_identity() -> None:
    found = record(healthy())

    assert (found["event"], found["schema"], SCHEMA) == ("request", 1, 1)
    assert found["id"] == healthy().timeline.request_id
    assert datetime.fromisoformat(found["ts"]).timestamp() == 1.8e9
    assert found["upstream"] == {"kind": "llama-server", "url": "http://127.0.0.1:8080"}


def test_how_to_see_more_is_told_by_the_machine_engine_and_model_of_each_request() -> None:
    facts = ("host samples during decode", "KV bytes read per token", "power of the GPU")
    lacking = Diagnosis(verdict="normal", missing=dict(zip("abc", facts, strict=True)))
    gpus = (GpuFacts(index=0), GpuFacts(index=1, absent={"power_w": "not on this one"}))
    first = replace(
        healthy(),
        device=DeviceFacts(gpus=gpus),
        model=ModelFacts(read_bytes=1, kv_bytes_per_token=1),
        envelope=Envelope(because=("no bandwidth",)),
    )
    others = (
        replace(first, device=DeviceFacts(gpus=gpus, sampling_failure="it broke")),
        replace(first, device=DeviceFacts(gpus_reason="no driver")),
        with_server(first, gpu_indices=(0,)),
        replace(first, model=ModelFacts()),
        replace(first, envelope=Envelope(because=("another reason",))),
    )

    told = []
    for one in itertools.chain(*((first, first, other) for other in others)):
        told.append([e["how_to_enable"] for e in make_record(one, lacking)["not_visible"]])
        assert told[-1] == [how_to_enable(fact, one) for fact in facts]
    assert len(set(map(tuple, told))) == 6


def test_zero_is_a_measurement_and_stays() -> None:
    timing = record(healthy())["timing"]

    assert (timing["queue_ms"], timing["delivery_ms"]) == (0.0, 0.0)


def test_what_is_not_known_is_absent_at_every_depth() -> None:
    timeline = Timeline(
        request_id="x", path="/v1/completions", stream=True, started_unix_s=0.0, accepted_at_s=1.0
    )
    bare = Case(timeline=timeline, phases=Phases(source="estimate", total_s=1.5))
    found = make_record(bare, Diagnosis(verdict="unknown", reason="nothing known"))

    assert found == {
        "event": "request",
        "schema": 1,
        "ts": "1970-01-01T00:00:00.000+00:00",
        "id": "x",
        "upstream": {"kind": "unknown"},
        "path": "/v1/completions",
        "stream": True,
        "ended": "unknown",
        "timing": {"total_ms": 1500.0, "proxy_ms": 0.0},
        "verdict": "unknown",
        "reason": "nothing known",
        "findings": [],
        "cleared": [],
        "not_visible": [],
        "gpu": [],
        "host": {"samples": 0, "why": "the sampling process wrote no samples in that time"},
    }


def test_request_that_only_passed_has_no_judgement() -> None:
    found = make_record(healthy(), None)

    assert "verdict" not in found
    assert found["status"] == 200


def test_informational_finding_says_so() -> None:
    [finding] = record(FIRING["long-context"]())["findings"]

    assert finding["informational"] is True
    assert "informational" not in record(FIRING["queued"]())["findings"][0]


def test_budget_and_loss_are_of_this_request() -> None:
    found = record(FIRING["queued"]())

    assert found["findings"][0]["lost_ms"] == 2500
    assert found["budget_ms_per_token"] == {"queued": 5.556, "unexplained": 0.0}


def test_fact_that_several_causes_lack_stands_once() -> None:
    blind = replace(healthy(), host=())
    hidden = [entry["fact"] for entry in record(blind)["not_visible"]]

    assert "host samples during decode" in hidden
    assert len(hidden) == len(set(hidden))


def gpu_case(*samples: GpuSample) -> Case:
    return replace(healthy(), gpu=samples)


def test_gpu_is_summed_up_by_card() -> None:
    samples = [GpuSample(at_s=1000.0, index=i % 2, power_w=100.0 + i) for i in range(22)]
    first, second = record(gpu_case(*samples))["gpu"]

    assert (first["index"], second["index"]) == (0, 1)
    assert first["power_w"] == {"median": 110.0, "p10": 102.0, "p90": 118.0}
    assert "temperature_c" not in first


@pytest.mark.parametrize(
    ("masks", "reasons"),
    [
        ((None, None), None),
        ((0, 0, 0, 0), {}),
        ((0x4, 0x4 | 0x1, 0, None, 0), {"gpu-idle": 0.25, "sw-power-cap": 0.5}),
        ((0x100000,), {}),
    ],
)
def test_share_of_samples_for_each_reason(
    masks: tuple[int | None, ...], reasons: dict[str, float] | None
) -> None:
    samples = [GpuSample(at_s=1000.0, index=0, reasons=mask) for mask in masks]

    assert record(gpu_case(*samples))["gpu"][0].get("reasons") == reasons


def test_host_is_a_median() -> None:
    spread = replace(
        healthy(),
        host=tuple(
            replace(sample, cpu_busy_cores=float(i)) for i, sample in enumerate(healthy().host)
        ),
    )
    host = record(spread)["host"]

    assert host["samples"] == len(spread.host)
    assert host["cpu_busy_cores"] == (len(spread.host) - 1) / 2
    assert "cpu_mhz" not in host


def test_what_a_client_wrote_is_bounded_and_can_be_written() -> None:
    odd = with_timeline(healthy(), model="m" * 5000, path="/\udcff")
    found = record(odd)

    assert len(found["model"]) == MAX_TEXT_CHARS
    assert found["path"] == "/?"
    assert orjson.loads(orjson.dumps(found)) == found


def test_source_is_absent_where_nothing_was_timed() -> None:
    untimed = with_phases(case(), source="estimate", prefill_s=None, decode_s=None)

    assert "source" not in record(untimed)["timing"]


@pytest.mark.parametrize("cause", sorted(FIRING))
def test_every_record_is_json(cause: str) -> None:
    found = record(FIRING[cause]())

    assert orjson.loads(orjson.dumps(found)) == found
