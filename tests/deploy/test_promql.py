"""Every query of the dashboard, the rules and docs/fleet.md names what slowtok gives."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fakes.deployed import (
    FLEET,
    SCRAPED,
    dashboard_queries,
    documented_queries,
    metrics,
    recorded,
    rule_queries,
    used,
)

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (apt-get install prometheus)"
)
QUERIES = {
    f"{where}: {name}": query
    for where, found in (
        ("dashboard", dashboard_queries()),
        ("rules", rule_queries()),
        ("docs", documented_queries()),
    )
    for name, query in found.items()
}


def known() -> dict[str, frozenset[str]]:
    """Series and their labels, those of the recording rules included."""
    of_rules = {name: used(expr).grouped | SCRAPED for name, expr in recorded().items()}
    return {**metrics(), **of_rules, "up": SCRAPED}


@pytest.mark.parametrize("name", QUERIES)
def test_names_and_labels_exist(name: str) -> None:
    series, found = known(), used(QUERIES[name])

    assert found.series
    for metric, labels in found.series:
        assert metric in series, metric
        assert labels <= series[metric], (metric, labels)
    everywhere = frozenset[str]().union(*(series[metric] for metric, _ in found.series))
    assert found.grouped <= everywhere


def test_a_wrong_name_or_label_would_be_found() -> None:
    found = used('sum by (phase) (rate(slowtok_lost_time_total{cause="queued", mode!~"x"}[5m]))')

    assert found.series == {("slowtok_lost_time_total", frozenset({"cause", "mode"}))}
    assert found.grouped == {"phase"}
    assert "slowtok_lost_time_total" not in known()
    assert "mode" not in known()["slowtok_lost_seconds_total"]


def test_what_the_dashboard_promises_is_asked_for() -> None:
    asked = {metric for query in dashboard_queries().values() for metric, _ in used(query).series}

    assert asked >= {
        "slowtok_requests_total",
        "slowtok_lost_seconds_total",
        "slowtok_decode_of_expected_ratio_bucket",
        "slowtok_time_to_first_token_seconds_bucket",
        "slowtok_queue_seconds_bucket",
        "slowtok_gpu_busy_ratio",
        "slowtok_engine_up",
        "slowtok_sampling_up",
    }


def promtool(*arguments: str | Path) -> str:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], cwd=FLEET, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_rules_are_valid() -> None:
    assert "12 rules found" in promtool("check", "rules", "slowtok.rules.yml")


@needs_promtool
def test_rules_do_what_they_say() -> None:
    assert "SUCCESS" in promtool("test", "rules", "slowtok.rules.test.yml")


@needs_promtool
@pytest.mark.parametrize("name", ["prometheus-central.yml", "../compose/prometheus.yml"])
def test_configuration_is_valid(name: str) -> None:
    promtool("check", "config", "--syntax-only", name)


@needs_promtool
def test_agent_configuration_is_valid() -> None:
    promtool("check", "config", "--agent", "prometheus-agent.yml")
