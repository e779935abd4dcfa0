"""deploy's configurations in a real OpenTelemetry Collector, which `TEST_OTELCOL` names.

It writes what it would send to ClickHouse into files: one is made of the components that
`test_collector.COMPONENTS` names and the file exporter, with the Collector's own builder.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra [otel] is not here")

from fakes.cases import FIRING
from fakes.deployed import FLEET, document
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.cli.demo.children import free_port
from slowtok.proxy.outputs.log import to_json
from slowtok.proxy.outputs.otel.export import PROTOCOL
from slowtok.proxy.outputs.otel.sink import Otel
from slowtok.proxy.outputs.record import make_record

PROGRAM = os.environ.get("TEST_OTELCOL", "")
WAIT_S = 30.0
CONFIGURATIONS = ("otel-collector.yaml", "otel-collector-kubernetes.yaml")

pytestmark = pytest.mark.skipif(not PROGRAM, reason="TEST_OTELCOL names no Collector")


def environment(folder: Path, name: str) -> dict[str, str]:
    """Return all that a configuration takes from the environment."""
    text = (FLEET / name).read_text(encoding="utf-8")
    given = dict.fromkeys(re.findall(r"\$\{env:(\w+)\}", text), "given")
    given |= {"CLICKHOUSE_ENDPOINT": "tcp://127.0.0.1:9000", "SLOWTOK_STATE_DIR": str(folder)}
    return {**os.environ, **given}


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """A Collector that reads the log in a folder; and its ports, by protocol."""
    ports = {"http": free_port(), "grpc": free_port()}
    config: Any = document(FLEET / "otel-collector.yaml")
    for protocol, port in ports.items():
        config["receivers"]["otlp"]["protocols"][protocol]["endpoint"] = f"127.0.0.1:{port}"
    config["exporters"] = {
        f"file/{signal}": {"path": str(tmp_path / f"{signal}.jsonl"), "flush_interval": "100ms"}
        for signal in ("logs", "traces", "metrics")
    }
    for signal, pipeline in config["service"]["pipelines"].items():
        pipeline["exporters"] = [f"file/{signal}"]
    config["service"]["telemetry"] = {"metrics": {"level": "none"}}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    with (tmp_path / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [PROGRAM, "--config", str(path)],
            env=environment(tmp_path, "otel-collector.yaml"),
            stdout=said,
            stderr=said,
        )
        try:
            wait_for(tmp_path / "said.txt", "Everything is ready")
            yield tmp_path, ports
        finally:
            process.terminate()
            process.wait(20)


def wait_for(path: Path, text: str) -> str:
    """Return what a file holds once `text` is in it."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        found = path.read_text(encoding="utf-8") if path.exists() else ""
        if text in found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{text} is not in {path.name}")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_it_takes_the_configuration(name: str, tmp_path: Path) -> None:
    command = [PROGRAM, "validate", "--config", str(FLEET / name)]
    ran = subprocess.run(
        command, env=environment(tmp_path, name), check=False, capture_output=True, text=True
    )

    assert ran.returncode == 0, ran.stderr


def test_a_line_of_the_log_is_sent_with_its_host(sent: tuple[Path, dict[str, int]]) -> None:
    folder, _ = sent
    case = FIRING["queued"]()
    record = make_record(case, diagnose(case))
    (folder / "log.jsonl").write_text(to_json(record) + "\n", encoding="utf-8")

    [sent_log] = json.loads(wait_for(folder / "logs.jsonl", record["id"]))["resourceLogs"]
    host = {"key": "host.name", "value": {"stringValue": os.uname().nodename}}
    [line] = sent_log["scopeLogs"][0]["logRecords"]
    assert json.loads(line["body"]["stringValue"]) == json.loads(to_json(record))
    assert host in sent_log["resource"]["attributes"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_span_and_its_metrics_arrive(
    sent: tuple[Path, dict[str, int]], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ports = sent
    monkeypatch.setenv(PROTOCOL, "grpc" if protocol == "grpc" else "http/protobuf")
    case = FIRING["queued"]()
    otel = Otel(f"http://127.0.0.1:{ports[protocol]}")
    otel(case, diagnose(case), {})
    otel.writer.close()

    assert "slowtok.verdict" in wait_for(folder / "traces.jsonl", case.timeline.request_id)
    wait_for(folder / "metrics.jsonl", "gen_ai.client.operation.duration")
