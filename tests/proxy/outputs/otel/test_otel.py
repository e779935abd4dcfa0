"""Traces and metrics over OTLP, as a real receiver decodes them."""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="the extra [otel] is not here")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra [otel] is not here")

from fakes.cases import FIRING, case, with_phases, with_server, with_timeline
from fakes.otlp import Receiver, attributes, grpc_receiver, http_receiver
from slowtok.config.settings import SettingsError, load
from slowtok.detectors.case.case import Case
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.otel import open_otel
from slowtok.proxy.outputs.otel.export import PROTOCOL
from slowtok.proxy.outputs.otel.metrics import MAX_GAPS, NAMES, gaps_s, server_values
from slowtok.proxy.outputs.otel.sink import Otel
from slowtok.proxy.outputs.otel.spans import phases_of
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.stream.apis import find_api

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OURS = "00-11111111111111111111111111111111-2222222222222222-00"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPORTER_OTLP_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(PROTOCOL, raising=False)


@pytest.fixture(params=["http", "grpc"])
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    if request.param == "grpc":
        monkeypatch.setenv(PROTOCOL, "grpc")
    with (grpc_receiver if request.param == "grpc" else http_receiver)() as listening:
        yield listening


@pytest.fixture
def http() -> Iterator[Receiver]:
    with http_receiver() as listening:
        yield listening


def exchange(of: Case, traceparent: str | None, *, ours: bool = False) -> Exchange:
    return Exchange(
        request_id=of.timeline.request_id,
        method="POST",
        path=of.timeline.path,
        started_unix_s=of.timeline.started_unix_s,
        accepted_at_s=of.timeline.accepted_at_s,
        api=find_api("POST", of.timeline.path),
        traceparent=traceparent,
        began_trace=ours,
    )


def send(
    receiver: Receiver, of: Case, traceparent: str | None = None, *, ours: bool = False
) -> Otel:
    """Tell the receiver of one request, and everything that is left at the end."""
    otel = Otel(receiver.url)
    otel.note("sent", exchange(of, traceparent, ours=ours))
    otel(of, diagnose(of), {})
    otel.writer.close()
    return otel


def by_name(spans: list[Any]) -> dict[str, Any]:
    return {span.name: span for span in spans}


def unix_ns(of: Case, at_s: float) -> float:
    timeline = of.timeline
    return (timeline.started_unix_s + at_s - timeline.accepted_at_s) * 1e9


def test_a_request_is_a_span_with_its_phases(receiver: Receiver) -> None:
    slow = FIRING["queued"]()
    send(receiver, slow)
    spans = by_name(receiver.spans())
    root = spans["chat smollm2"]

    assert set(spans) == {"chat smollm2", "queue", "prefill", "decode"}
    assert root.kind == root.SPAN_KIND_CLIENT
    assert root.parent_span_id == b""
    for name, begin_s, end_s in phases_of(slow):
        span = spans[name]
        assert span.parent_span_id == root.span_id
        assert span.start_time_unix_nano == pytest.approx(unix_ns(slow, begin_s), abs=1000)
        assert span.end_time_unix_nano == pytest.approx(unix_ns(slow, end_s), abs=1000)
    assert attributes(spans["queue"].attributes)["slowtok.lost"] == pytest.approx(2.5)
    assert "slowtok.lost" not in attributes(spans["decode"].attributes)


def test_a_span_says_what_the_record_says(http: Receiver) -> None:
    slow = FIRING["queued"]()
    send(http, slow)
    said = attributes(by_name(http.spans())["chat smollm2"].attributes)

    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.provider.name"] == "llama-server"
    assert said["gen_ai.response.finish_reasons"] == ["length"]
    assert said["gen_ai.usage.input_tokens"] == 240
    assert said["gen_ai.usage.cache_read.input_tokens"] == 170
    assert said["gen_ai.usage.output_tokens"] == 450
    assert (said["server.address"], said["server.port"]) == ("127.0.0.1", 8080)
    assert said["slowtok.request.id"] == slow.timeline.request_id
    assert (said["slowtok.verdict"], said["slowtok.phase"]) == ("slow", "queue")
    assert said["slowtok.causes"] == ["queued"]
    assert "error.type" not in said


def test_findings_are_events(http: Receiver) -> None:
    slow = FIRING["queued"]()
    send(http, slow)
    [event] = by_name(http.spans())["chat smollm2"].events
    [finding] = diagnose(slow).findings.values()
    said = attributes(event.attributes)

    assert event.name == "slowtok.finding"
    assert said["slowtok.cause"] == "queued"
    assert said["slowtok.lost"] == finding.lost_s
    assert said["slowtok.remedy"] == finding.remedy


def test_normal_request_has_no_finding_and_no_error(http: Receiver) -> None:
    send(http, case())
    root = by_name(http.spans())["chat smollm2"]

    assert list(root.events) == []
    assert root.status.code == root.status.STATUS_CODE_UNSET
    assert attributes(root.attributes)["slowtok.causes"] == []


def test_it_joins_the_callers_trace(http: Receiver) -> None:
    send(http, case(), CALLER)
    spans = by_name(http.spans())

    assert {span.trace_id.hex() for span in spans.values()} == {CALLER[3:35]}
    assert spans["chat smollm2"].parent_span_id.hex() == CALLER[36:52]


def test_a_trace_of_our_own_has_the_ids_that_the_engine_got(http: Receiver) -> None:
    send(http, case(), OURS, ours=True)
    spans = by_name(http.spans())

    assert {span.trace_id.hex() for span in spans.values()} == {OURS[3:35]}
    assert spans["chat smollm2"].span_id.hex() == OURS[36:52]
    assert spans["chat smollm2"].parent_span_id == b""
    assert len({span.span_id for span in spans.values()}) == len(spans)


def test_what_the_caller_does_not_sample_is_not_recorded(http: Receiver) -> None:
    send(http, case(), CALLER[:-1] + "0")

    assert "gen_ai.client.operation.duration" in http.histograms()
    assert http.traces.empty()


@pytest.mark.parametrize("traceparent", ["", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_bad_traceparent_begins_a_trace(traceparent: str, http: Receiver) -> None:
    send(http, case(), traceparent)

    assert by_name(http.spans())["chat smollm2"].parent_span_id == b""


@pytest.mark.parametrize(
    ("status", "ended", "error"),
    [(502, "upstream-refused", "502"), (200, "upstream-error", "upstream-error")],
)
def test_an_error_is_marked(status: int, ended: str, error: str, http: Receiver) -> None:
    send(http, with_timeline(case(), status=status, ended=ended))
    root = by_name(http.spans())["chat smollm2"]

    assert root.status.code == root.status.STATUS_CODE_ERROR
    assert attributes(root.attributes)["error.type"] == error


def test_client_that_left_is_no_error(http: Receiver) -> None:
    send(http, with_timeline(case(), ended="client-gone"))
    root = by_name(http.spans())["chat smollm2"]

    assert root.status.code == root.status.STATUS_CODE_UNSET
    assert attributes(root.attributes)["slowtok.ended"] == "client-gone"


def sums(metric: Any) -> dict[str, Any]:
    """Count and sum of each point, by its type of token."""
    return {
        attributes(p.attributes).get("gen_ai.token.type", ""): (p.count, p.sum)
        for p in metric.histogram.data_points
    }


def test_metrics_are_those_of_the_conventions(receiver: Receiver) -> None:
    timed = with_timeline(
        case(queue_s=0.5, prefill_s=0.1, ms_per_token=8), token_at_s=(1.0, 1.5, 1.75)
    )
    send(receiver, timed)
    found = receiver.histograms()

    assert set(found) == set(NAMES)
    assert {name: metric.unit for name, metric in found.items()} == {
        name: unit for name, (unit, _, _) in NAMES.items()
    }
    assert sums(found["gen_ai.client.token.usage"]) == {"input": (1, 240), "output": (1, 450)}
    chunks = sums(found["gen_ai.client.operation.time_per_output_chunk"])
    assert chunks == {"": (2, pytest.approx(0.75))}
    per_token = sums(found["gen_ai.server.time_per_output_token"])
    assert per_token == {"": (1, pytest.approx(0.008))}
    assert sums(found["gen_ai.server.time_to_first_token"]) == {"": (1, pytest.approx(0.6))}
    [point] = found["gen_ai.client.operation.duration"].histogram.data_points
    assert tuple(point.explicit_bounds) == pytest.approx(
        NAMES["gen_ai.client.operation.duration"][2]
    )
    said = attributes(point.attributes)
    assert (said["gen_ai.request.model"], said["server.port"]) == ("smollm2", 8080)


def test_a_metric_leads_to_its_trace(http: Receiver) -> None:
    send(http, case(), CALLER)
    [point] = http.histograms()["gen_ai.client.operation.duration"].histogram.data_points
    [exemplar] = point.exemplars

    assert exemplar.trace_id.hex() == CALLER[3:35]


@pytest.mark.parametrize("source", ["stream", "estimate"])
def test_server_metrics_need_the_engines_word(source: str) -> None:
    assert server_values(with_phases(case(), source=source)) == {}
    assert server_values(with_timeline(case(), status=500)) == {}


def test_gaps_are_bounded_and_never_made_of_thinned_times() -> None:
    every = tuple(float(i) for i in range(4000))

    assert gaps_s(with_timeline(case(), token_at_s=every)) == [1.0] * MAX_GAPS
    assert gaps_s(with_timeline(case(), token_at_s=every * 3)) == []
    assert gaps_s(with_timeline(case(), token_at_s=(1.0,))) == []


def test_estimated_phases_are_no_spans() -> None:
    assert [p for p, _, _ in phases_of(with_phases(case(), source="estimate"))] == []


def test_load_comes_after_the_queue() -> None:
    loaded = case(queue_s=1.0, load_s=2.0)
    sent_s = loaded.timeline.sent_at_s or 0.0
    queue, load, *_ = phases_of(loaded)

    assert queue == ("queue", sent_s, sent_s + 1)
    assert load == ("load", sent_s + 1, sent_s + 3)


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "slowtok"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine,team=a"}, "mine"),
    ],
)
def test_standard_variables_count(
    environment: dict[str, str], name: str, http: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=one")
    send(http, case())

    assert http.resource()["service.name"] == name
    assert all(sent["x-tenant"] == "one" for sent in http.headers)


def test_receiver_that_refuses_costs_traces_that_are_counted(http: Receiver) -> None:
    http.status = 400
    otel = send(http, case())

    assert otel.writer.failed == 1


def test_receiver_that_is_gone_holds_nobody_up(http: Receiver) -> None:
    url = http.url.replace("127.0.0.1", "127.0.0.2")
    begin_s = time.monotonic()
    otel = Otel(url)
    for _ in range(5):
        otel(case(), diagnose(case()), {})
    sent_s = time.monotonic() - begin_s
    otel.writer.close()

    assert sent_s < 1.0
    assert time.monotonic() - begin_s < 10.0


def test_what_merely_passed_through_is_not_told(http: Receiver) -> None:
    otel = Otel(http.url)
    otel(case(), None, {})
    otel.writer.close()

    assert http.traces.empty()


def test_traces_of_requests_without_a_record_are_forgotten(
    http: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slowtok.proxy.outputs.otel.sink.MAX_TRACES", 2)
    otel = Otel(http.url)
    for i in range(5):
        one = exchange(with_timeline(case(), request_id=str(i)), CALLER)
        otel.note("sent", one)
    otel.writer.close()

    assert list(otel._traces) == ["3", "4"]


def test_without_the_extra_it_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "slowtok.proxy.outputs.otel.sink", None)
    settings = load({"otlp_endpoint": "http://127.0.0.1:4318"}, {})

    with pytest.raises(SettingsError, match=r"otlp_endpoint = .*pip install 'slowtok\[otel\]'"):
        open_otel(settings)


def test_unknown_protocol_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROTOCOL, "carrier-pigeon")
    settings = load({"otlp_endpoint": "http://127.0.0.1:4318"}, {})

    with pytest.raises(SettingsError, match="expected grpc or http/protobuf"):
        open_otel(settings)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/generate", "/v1/rerank", "/unheard-of"])
def test_any_path_has_an_operation(path: str, http: Receiver) -> None:
    asked = with_timeline(with_server(case(), url=None), path=path, model=None)
    send(http, replace(asked, model=replace(asked.model, name=None)))
    [root] = [span for span in http.spans() if not span.parent_span_id]

    expected = {"/v1/embeddings": "embeddings", "/api/generate": "text_completion"}
    assert root.name == expected.get(path, "rerank" if path == "/v1/rerank" else "chat")
