"""Metrics of finished requests: parsed by Prometheus' own parsers, checked by its own tool."""

import asyncio
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_metrics

from fakes.cases import FIRING, case, with_phases, with_server, with_timeline
from fakes.records import full_case
from slowtok.detectors.case.case import Case
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.labels import MAX_MODELS
from slowtok.proxy.outputs.metrics.metrics import Metrics
from slowtok.proxy.outputs.metrics.snapshot import EngineState, Snapshot, gpus_now

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "metrics.md"
OPEN = "application/openmetrics-text; version=1.0.0"
Sample = tuple[str, tuple[tuple[str, str], ...]]


def told(*cases: Case) -> Metrics:
    metrics = Metrics()
    for one in cases:
        metrics(one, diagnose(one), {})
    return metrics


def full_now() -> Snapshot:
    known = full_case()
    return Snapshot(
        version="0.1.0",
        in_flight=2,
        engines=(EngineState(name="main", kind="llama-server", up=True),),
        gpus=gpus_now(known.device, known.gpu),
        host=known.host[-1],
        loop_lag_ms={"p50_ms": 0.2, "max_ms": 3.0},
        sampling_up=True,
        sampling_cpu_ratio=0.004,
        failures={"sink log": 2},
    )


def text_of(metrics: Metrics, now: Snapshot | None = None, accept: str = "") -> str:
    body, _ = asyncio.run(metrics.exposition(accept, now or Snapshot()))
    return body.decode()


def samples(metrics: Metrics, now: Snapshot | None = None) -> dict[Sample, float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in plain_metrics(text_of(metrics, now))
        for sample in family.samples
        if sample.name.startswith("slowtok_")
    }


def value(found: dict[Sample, float], name: str, /, **labels: str) -> float | None:
    return found.get((f"slowtok_{name}", tuple(sorted(labels.items()))))


OF = {"kind": "llama-server", "model": "smollm2"}


def test_normal_request_loses_nothing() -> None:
    found = samples(told(case()))

    assert value(found, "requests_total", verdict="normal", phase="none", **OF) == 1
    assert [name for name, _ in found if name == "slowtok_lost_seconds_total"] == []
    assert [name for name, _ in found if name == "slowtok_findings_total"] == []


def test_slow_request_counts_for_its_cause() -> None:
    queued = FIRING["queued"]()
    found = samples(told(queued, queued, case()))

    [finding] = diagnose(queued).findings.values()
    assert value(found, "requests_total", verdict="slow", phase="queue", **OF) == 2
    assert value(found, "findings_total", cause="queued", phase="queue", **OF) == 2
    lost_s = value(found, "lost_seconds_total", cause="queued", phase="queue", **OF)
    assert lost_s == pytest.approx(2 * finding.lost_s)


def test_what_no_cause_explains_is_called_so() -> None:
    slow = case(ms_per_token=40)
    diagnosis = diagnose(slow)
    found = samples(told(slow))

    [loss] = [loss for loss in diagnosis.losses if loss.slow]
    named_s = sum(f.lost_s for f in diagnosis.findings.values() if not f.informational)
    lost_s = value(found, "lost_seconds_total", cause="unexplained", phase="decode", **OF)
    assert lost_s == pytest.approx(loss.lost_s - named_s)


def test_informing_finding_is_not_a_cause() -> None:
    found = samples(told(FIRING["long-context"]()))

    assert not any(dict(labels).get("cause") == "long-context" for _, labels in found)


def test_tokens_and_times() -> None:
    one = case(queue_s=0.02, prefill_s=0.1, ms_per_token=8)
    found = samples(told(one, one))

    assert value(found, "prompt_tokens_total", **OF) == 480
    assert value(found, "cached_tokens_total", **OF) == 340
    assert value(found, "completion_tokens_total", **OF) == 900
    assert value(found, "drafted_tokens_total", **OF) is None
    assert value(found, "time_to_first_token_seconds_count", **OF) == 2
    assert value(found, "prefill_seconds_sum", **OF) == pytest.approx(0.2)
    assert value(found, "time_per_output_token_seconds_sum", **OF) == pytest.approx(0.016)
    assert value(found, "decode_tokens_per_second_sum", **OF) == pytest.approx(250)
    assert value(found, "decode_of_expected_ratio_sum", **OF) == pytest.approx(250 / 151)


def test_estimated_times_are_not_measurements() -> None:
    found = samples(told(with_phases(case(), source="estimate")))

    assert value(found, "prefill_seconds_count", **OF) is None
    assert value(found, "decode_tokens_per_second_count", **OF) is None
    assert value(found, "request_seconds_count", **OF) == 1


def test_relayed_request_without_a_verdict() -> None:
    metrics = Metrics()
    metrics(case(), None, {})

    assert samples(metrics)["slowtok_passed_through_total", (("kind", "llama-server"),)] == 1


def of_model(name: str, status: int = 200) -> Case:
    asked = with_timeline(case(), model=name, status=status)
    return replace(asked, model=replace(asked.model, name=None))


def models(metrics: Metrics) -> set[str]:
    return {dict(labels)["model"] for _, labels in samples(metrics) if "model" in dict(labels)}


def test_models_are_bounded() -> None:
    metrics = told(*(of_model(f"m{i}") for i in range(MAX_MODELS + 5)))

    assert models(metrics) == {f"m{i}" for i in range(MAX_MODELS)} | {"other"}


def test_request_that_failed_brings_in_no_model() -> None:
    metrics = told(of_model("there"), of_model("mistyped", 404), of_model("there", 500))

    assert models(metrics) == {"there", "other"}


def test_names_and_endings_are_bounded_too() -> None:
    odd = with_server(with_timeline(of_model("m" * 5000), ended="made up"), kind="vllm")
    found = samples(told(odd))

    assert value(found, "endings_total", kind="vllm", model="m" * 128, ended="other") == 1


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("/home/me/models/a.gguf", "a.gguf"),
        ("C:\\models\\a.gguf", "a.gguf"),
        ("org/model", "org/model"),
        ("qwen3:8b", "qwen3:8b"),
        ("/", "unknown"),
    ],
)
def test_label_of_a_model_has_no_folders(name: str, label: str) -> None:
    assert models(told(of_model(name))) == {label}


@pytest.mark.parametrize("name", ['a"b', "a\nb", "a\\b", "\udc80", "模型"])
def test_any_name_of_a_model_can_be_told(name: str) -> None:
    assert models(told(of_model(name))) == {name.encode("utf-8", "replace").decode()}
    assert "# EOF" in text_of(told(of_model(name)), accept=OPEN)


def test_exemplars_name_the_request_where_the_format_has_them() -> None:
    metrics = told(FIRING["queued"]())
    body, content_type = asyncio.run(metrics.exposition(OPEN, full_now()))
    seen = {
        sample.name: sample.exemplar.labels
        for family in open_metrics(body.decode())  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar
    }

    assert content_type.startswith("application/openmetrics-text")
    assert set(map(tuple, (labels.items() for labels in seen.values()))) == {
        (("request_id", full_case().timeline.request_id),)
    }
    assert {"slowtok_lost_seconds_total", "slowtok_queue_seconds_bucket"} <= set(seen)
    assert "request_id" not in text_of(metrics)


def test_what_is_so_now() -> None:
    found = samples(Metrics(), full_now())
    gpu = {"gpu": "0", "name": "NVIDIA GeForce RTX 3090"}

    assert value(found, "requests_in_flight") == 2
    assert value(found, "engine_up", engine="main", kind="llama-server") == 1
    assert value(found, "event_loop_lag_max_seconds") == pytest.approx(0.003)
    assert value(found, "failures_total", place="sink log") == 2
    assert value(found, "gpu_power_limit_watts", **gpu) == 350
    assert value(found, "gpu_sm_clock_hertz", **gpu) == 1.9e9
    throttled = value(found, "gpu_throttled_seconds_total", reason="sw-power-cap", **gpu)
    assert throttled is not None
    assert throttled > 1


def test_what_is_not_known_has_no_sample() -> None:
    found = samples(Metrics())

    assert value(found, "event_loop_lag_max_seconds") is None
    assert value(found, "sampling_cpu_ratio") is None
    assert [name for name, _ in found if name.startswith("slowtok_gpu")] == []


def test_gpu_is_shown_with_the_newest_value_of_each_tier() -> None:
    known = full_case()
    *before, last = [s for s in known.gpu if s.index == 0]
    fast = replace(last, at_s=last.at_s + 0.1, power_w=99.0, power_limit_w=None, free_bytes=None)
    [gpu] = gpus_now(known.device, [*before, last, fast])

    assert (gpu.sample.power_w, gpu.sample.power_limit_w) == (99.0, 350.0)
    assert gpu.sample.free_bytes == last.free_bytes


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing() -> None:
    metrics = told(*(make() for make in FIRING.values()), full_case())
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text_of(metrics, full_now()),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def documented() -> dict[str, tuple[str, set[str]]]:
    """Name to type and labels, of the tables under "Prometheus"."""
    section = DOCUMENT.read_text(encoding="utf-8").split("\n## OpenTelemetry")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `slowtok_")]
    return {
        row[1].strip(" `"): (row[2].strip(), set(re.findall(r"`(\w+)`", row[3]))) for row in rows
    }


def test_every_metric_is_documented_with_its_type_and_labels() -> None:
    metrics = told(*(make() for make in FIRING.values()), full_case())
    metrics(case(), None, {})
    written = {}
    for family in plain_metrics(text_of(metrics, full_now())):
        if family.name.startswith("slowtok_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels}
            written[name] = (family.type, labels - {"le"})

    assert written == documented()
