"""Two proxies, a Prometheus agent that reads them, and the Prometheus that it writes to."""

import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.deployed import FLEET, RULES, dashboard_queries, documented_queries, rule_queries
from fakes.page_cases import dated, simulated
from fakes.page_stage import MachineOf, Stage, page_stage
from slowtok.proxy.cli.demo.children import free_port

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="Prometheus is not installed (apt-get install prometheus)",
)

WAIT_S = 40.0
HOSTS = ("ada", "bob")
CASES = ("thermal-throttle", "queued", "prompt-cache-miss", "draft-rejected", "model-load")
VALUES = {"$__range": "10m", "$__rate_interval": "1m", "$instance": ".*", "$model": ".*"}
MAY_BE_SILENT = re.compile(
    r"gpu_memory_temperature|gpu_pcie|dram|critical_errors|throttled|power_limit"  # GPUs that do
    r'|failures_total|== 0|unless on \(instance\)|verdict="unknown"|engine_cpu|host_'  # not tell
)
Result = list[dict[str, Any]]


@contextlib.contextmanager
def prometheus(folder: Path, config: str, *options: str) -> Iterator[tuple[str, Path]]:
    folder.mkdir()
    path, port = folder / "prometheus.yml", free_port()
    path.write_text(config)
    command = ["prometheus", f"--config.file={path}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen([*command, *options], cwd=folder, stdout=said, stderr=said)
        try:
            yield f"127.0.0.1:{port}", folder / "said.txt"
        finally:
            process.terminate()
            process.wait(20)


def agent_config(stages: dict[str, Stage], central: str) -> str:
    """deploy/fleet's, for these machines and quicker."""
    text = (
        (FLEET / "prometheus-agent.yml")
        .read_text()
        .replace("scrape_interval: 15s", "scrape_interval: 1s")
    )
    [one] = re.findall(r"^      - targets: .*\n        labels: .*\n", text, flags=re.MULTILINE)
    every = "".join(
        one.replace("127.0.0.1:4141", stage.url.removeprefix("http://")).replace("HOST", host)
        for host, stage in stages.items()
    )
    return text.replace(one, every).replace("CENTRAL", central)


def central_config() -> str:
    text = (FLEET / "prometheus-central.yml").read_text()
    return text.replace("[slowtok.rules.yml]", f"[{RULES}]").replace(": 1m", ": 1s")


class Central:
    def __init__(self, address: str, said: Path) -> None:
        self._url = f"http://{address}/api/v1"
        self._said = said

    def ask(self, page: str, **params: str) -> Any:
        reply = httpx.get(f"{self._url}/{page}", params=params, timeout=20, trust_env=False)
        answer = reply.json()
        assert answer["status"] == "success", (params, answer)
        return answer["data"]

    def query(self, promql: str) -> Result:
        found: Result = self.ask("query", query=promql)["result"]
        return found

    def until(self, enough: Callable[[], Any]) -> Any:
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(httpx.TransportError, json.JSONDecodeError):
                if found := enough():
                    return found
            time.sleep(0.2)
        raise AssertionError(f"not within {WAIT_S} s: {self._said.read_text()[-2000:]}")


def put(stage: Stage, rounds: int) -> None:
    now = time.time()
    for number in range(rounds):
        stage.put(*(dated(simulated(n, number + 2), now + i) for i, n in enumerate(CASES)))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Central]:
    folder = tmp_path_factory.mktemp("fleet")
    machine = MachineOf(simulated("thermal-throttle"))
    with contextlib.ExitStack() as stack:
        stages = {}
        for host in HOSTS:
            (folder / host).mkdir()
            stages[host] = stack.enter_context(
                page_stage(folder / host, change=lambda p: setattr(p, "sampler", machine))
            )
        options = (
            "--web.enable-remote-write-receiver",
            "--enable-feature=exemplar-storage",
            "--storage.tsdb.path=kept",
        )
        address, said = stack.enter_context(
            prometheus(folder / "central", central_config(), *options)
        )
        central = Central(address, said)
        agent = ("--enable-feature=agent", "--storage.agent.path=agent")
        stack.enter_context(prometheus(folder / "agent", agent_config(stages, address), *agent))
        for i, stage in enumerate(stages.values()):
            put(stage, i + 1)
        seen = "count by (instance) (slowtok_lost_seconds_total)"
        central.until(lambda: len(central.query(seen)) == len(HOSTS))
        for stage in stages.values():
            put(stage, 1)
        rates = 'sum by (instance) (rate(slowtok_requests_total{verdict="slow"}[1m])) > 0'
        central.until(lambda: len(central.query(rates)) == len(HOSTS))
        yield central


def test_every_machine_arrives_under_its_name(fleet: Central) -> None:
    for name in ("slowtok_build_info", "slowtok_engine_up", "up"):
        assert {r["metric"]["instance"] for r in fleet.query(name)} == set(HOSTS), name


def test_requests_arrive_as_exemplars(fleet: Central) -> None:
    now = time.time()

    def exemplars() -> Any:
        params = {"start": str(now - 600), "end": str(now + 600)}
        return fleet.ask("query_exemplars", query="slowtok_request_seconds_bucket", **params)

    found = fleet.until(exemplars)
    assert all("request_id" in e["labels"] for series in found for e in series["exemplars"])


def filled_in(promql: str) -> str:
    for variable, value in VALUES.items():
        promql = promql.replace(variable, value)
    return promql


def test_every_query_of_the_dashboard_answers(fleet: Central) -> None:
    for name, promql in dashboard_queries().items():
        found = fleet.query(filled_in(promql))
        assert found or MAY_BE_SILENT.search(promql), (name, promql)


def test_every_query_of_the_documentation_answers(fleet: Central) -> None:
    assert len(documented_queries()) >= 5
    for name, promql in documented_queries().items():
        found = fleet.query(promql)
        assert found or MAY_BE_SILENT.search(promql), name


def test_time_lost_is_counted_from_its_first_second(fleet: Central) -> None:
    """A series that is born with a loss: increase() alone would not see it."""
    promql = dashboard_queries()["Time lost by cause A"]
    counted = fleet.query("sum by (cause) (slowtok_lost_seconds_total) > 0")
    shown = {r["metric"]["cause"]: float(r["value"][1]) for r in fleet.query(filled_in(promql))}

    assert len(shown) >= len(CASES) - 1
    assert shown == pytest.approx(
        {r["metric"]["cause"]: float(r["value"][1]) for r in counted}, rel=0.01
    )


def test_rules_are_evaluated(fleet: Central) -> None:
    def healthy() -> Any:
        rules = [r for g in fleet.ask("rules")["groups"] for r in g["rules"]]
        done = [r["name"] for r in rules if r["health"] == "ok"]
        return done if len(done) == len(rules) else None

    assert sorted(fleet.until(healthy)) == sorted(rule_queries())
    ratios = fleet.until(lambda: fleet.query("slowtok:lost_ratio:1h"))
    assert {r["metric"]["instance"] for r in ratios} == set(HOSTS)
    assert all(0 <= float(r["value"][1]) <= 1 for r in ratios)
    assert any(float(r["value"][1]) > 0 for r in ratios)
