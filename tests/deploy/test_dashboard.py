"""The dashboard, as far as it can be shown without a Grafana: its structure."""

import json
from typing import Any

import pytest

from fakes.deployed import DASHBOARD, DEPLOY, document, panels

WIDTH = 24
KINDS = {"stat", "timeseries", "bargauge", "state-timeline", "table"}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def test_it_can_be_imported_anywhere(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] >= 39  # Grafana 11
    assert dashboard["uid"] == "slowtok"
    assert "id" not in dashboard  # a number of one Grafana's own
    assert "__inputs" not in dashboard


def test_panels_have_a_number_and_a_place_of_their_own(dashboard: dict[str, Any]) -> None:
    every = dashboard["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= WIDTH
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_source_and_the_choices_are_variables(dashboard: dict[str, Any]) -> None:
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}

    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert {"instance", "model"} < variables.keys()
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}", panel["title"]


def test_every_panel_asks_and_knows_its_unit() -> None:
    for panel in panels():
        letters = [target["refId"] for target in panel["targets"]]
        assert panel["type"] in KINDS, panel["title"]
        assert letters
        assert len(set(letters)) == len(letters)
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_every_query_heeds_the_choice_of_machines() -> None:
    for panel in panels():
        for target in panel["targets"]:
            assert 'instance=~"$instance"' in target["expr"], panel["title"]


def test_dots_on_charts_lead_to_the_request() -> None:
    dots = [
        panel["title"] for panel in panels() if any(t.get("exemplar") for t in panel["targets"])
    ]
    provisioned = document(DEPLOY / "compose/grafana/provisioning/datasources/prometheus.yaml")
    [source] = provisioned["datasources"]
    [link] = source["jsonData"]["exemplarTraceIdDestinations"]

    assert "Seconds lost per second, by cause" in dots
    assert "Time to first token" in dots
    assert link["name"] == "request_id"
    assert link["url"] == "http://127.0.0.1:4141/slowtok/#request/$${__value.raw}"  # $$ is one $


def test_it_is_provisioned_from_where_it_is_mounted() -> None:
    [provider] = document(DEPLOY / "compose/grafana/provisioning/dashboards/slowtok.yaml")[
        "providers"
    ]
    mounts = document(DEPLOY / "compose/compose.yaml")["services"]["grafana"]["volumes"]

    assert f"../grafana:{provider['options']['path']}:ro" in mounts
