"""The Collector's configurations, as far as they can be shown without one: their structure.

Component names are those of the contrib distribution that deploy/compose names, looked up in its
manifest and sources.
"""

import re
from typing import Any

import pytest

from fakes.deployed import DEPLOY, FLEET, document, statements

CONFIGURATIONS = ("otel-collector.yaml", "otel-collector-kubernetes.yaml")
COMPONENTS = {
    "receivers": {"file_log", "otlp"},
    "processors": {"memory_limiter", "resource", "resource_detection"},
    "exporters": {"clickhouse"},
    "extensions": {"file_storage"},
}
# What the exporter's INSERT names (clickhouseexporter/internal/sql_templates/logs_insert.sql), and
# the column that it adds where the table has it.
INSERTED = {
    *("Timestamp", "TraceId", "SpanId", "TraceFlags", "SeverityText", "SeverityNumber"),
    *("ServiceName", "Body", "ResourceSchemaUrl", "ResourceAttributes", "ScopeSchemaUrl"),
    *("ScopeName", "ScopeVersion", "ScopeAttributes", "LogAttributes", "EventName"),
}


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = document(FLEET / name)
    return found


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_is_used_is_defined_and_known(name: str) -> None:
    config = read(name)
    service = config["service"]

    for kind, known in COMPONENTS.items():
        defined = set(config.get(kind, {}))
        used = set(service.get("extensions", ())) if kind == "extensions" else set()
        for pipeline in service["pipelines"].values():
            used |= set(pipeline.get(kind, ()))
        assert defined == used, kind
        assert {each.partition("/")[0] for each in defined} <= known


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_records_go_to_the_table_that_takes_them(name: str) -> None:
    config = read(name)
    [exporter] = config["service"]["pipelines"]["logs"]["exporters"]
    to = config["exporters"][exporter]
    name = f"{to['database']}.{to['logs_table_name']}"
    head = f"CREATE TABLE IF NOT EXISTS {name}\n"
    [table] = [found for found in statements("schema.sql") if found.startswith(head)]

    assert to["create_schema"] is False
    assert set(re.findall(r"^    (\w+) ", table, flags=re.MULTILINE)) == INSERTED


def test_what_slowtok_sends_over_otlp_has_a_pipeline() -> None:
    pipelines = read("otel-collector.yaml")["service"]["pipelines"]

    taken = {signal for signal, each in pipelines.items() if "otlp" in each["receivers"]}
    assert taken == {"traces", "metrics"}


def test_the_environment_that_it_needs_is_given_in_compose() -> None:
    text = (FLEET / "otel-collector.yaml").read_text()
    collector = document(DEPLOY / "compose" / "compose.yaml")["services"]["otel-collector"]

    assert set(re.findall(r"\$\{env:(\w+)\}", text)) <= set(collector["environment"])


def test_rotated_logs_are_read_to_their_end() -> None:
    [pattern] = read("otel-collector.yaml")["receivers"]["file_log"]["include"]

    assert pattern.endswith("/log.jsonl*")
