"""The tables and queries in a real ClickHouse, filled with records that slowtok makes."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.deployed import statements
from fakes.page_cases import dated, simulated
from fakes.records import full_record, names
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.log import to_json
from slowtok.proxy.outputs.record import make_record

NEEDED = "a real ClickHouse: pip install chdb (180 MB, 900 MB unpacked)"
SLOW = (
    "thermal-throttle", "model-too-big", "queued", "prompt-cache-miss", "power-cap",
    "host-contention", "long-context",
)  # fmt: skip
HOSTS = ("ada", "bob")
Row = dict[str, Any]


class Database:
    def __init__(self, path: Path) -> None:
        session = pytest.importorskip("chdb.session", reason=NEEDED)
        self._session = session.Session(str(path))

    def run(self, statement: str, **values: str) -> list[Row]:
        said = str(self._session.query(statement, "JSONEachRow", params=values or None))
        return [json.loads(line) for line in said.splitlines()]

    def close(self) -> None:
        self._session.close()


def records(now_unix_s: float) -> list[tuple[str, Row]]:
    """(host, record) of slow requests on two hosts; the second one has twice as many."""
    found = []
    for number, host in enumerate((HOSTS[0], HOSTS[1], HOSTS[1])):
        for i, name in enumerate(SLOW):
            case = dated(simulated(name, number), now_unix_s - 3600 + 100 * number + i)
            found.append((host, make_record(case, diagnose(case))))
    return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, list[Any]]]:
    database = Database(tmp_path_factory.mktemp("clickhouse") / "data")
    for statement in statements("schema.sql"):
        database.run(statement)
    [now] = database.run("SELECT toUnixTimestamp(now()) AS s")
    put = records(float(now["s"]))
    other = {"event": "engine-found", "ts": "2026-01-01T00:00:00Z", "engine": "main"}
    for host, line in [*put, put[0], (HOSTS[0], other)]:  # the Collector may send one twice
        row = {"Body": to_json(line), "ResourceAttributes": {"host.name": host}}
        database.run(f"INSERT INTO slowtok.lines FORMAT JSONEachRow {json.dumps(row)}")
    yield database, put
    database.close()


def query(heading: str) -> str:
    """The query of queries.sql whose text holds `heading`."""
    [found] = [statement for statement in statements("queries.sql") if heading in statement]
    return found


def charged(put: list[tuple[str, Row]]) -> Iterator[tuple[str, str, float]]:
    """(host, cause, seconds) of what slow requests lost, by their records."""
    for host, record in put:
        if record["verdict"] != "slow":
            continue
        for finding in record["findings"]:
            if not finding.get("informational"):
                yield host, finding["cause"], finding["lost_ms"] / 1000
        rest_ms = record.get("budget_ms_per_token", {}).get("unexplained", 0)
        if rest_ms > 0:
            yield host, "unexplained", rest_ms * record["tokens"]["completion"] / 1000


def test_each_record_is_one_row(filled: tuple[Database, list[Any]]) -> None:
    database, put = filled
    rows = database.run("SELECT * FROM slowtok.requests FINAL")

    assert {row["id"] for row in rows} == {record["id"] for _, record in put}
    assert len(rows) == len(put)
    for row in rows:
        [(host, record)] = [(h, r) for h, r in put if r["id"] == row["id"]]
        assert json.loads(row["record"]) == json.loads(to_json(record))
        assert row["host"] == host
        assert row["verdict"] == record["verdict"]
        assert row["decode_tps"] == record["rate"].get("decode_tps")
        assert row["queue_ms"] == record["timing"].get("queue_ms")
        assert row["findings.cause"] == [f["cause"] for f in record["findings"]]
        assert row["not_visible.fact"] == [f["fact"] for f in record["not_visible"]]


def test_time_lost_by_cause_is_what_the_records_say(filled: tuple[Database, list[Any]]) -> None:
    database, put = filled
    expected: dict[str, float] = defaultdict(float)
    for _, cause, lost_s in charged(put):
        expected[cause] += lost_s

    rows = database.run(query("AS percent"))

    found = {row["cause"]: row["lost_s"] for row in rows}
    assert found == pytest.approx({c: round(s, 1) for c, s in expected.items()}, abs=0.11)
    assert "long-context" not in found
    assert sum(row["percent"] for row in rows) == pytest.approx(100, abs=1)


def test_the_worst_host_is_first(filled: tuple[Database, list[Any]]) -> None:
    database, put = filled
    lost_s: dict[str, float] = defaultdict(float)
    for host, _, seconds in charged(put):
        lost_s[host] += seconds

    rows = database.run(query("AS first_cause"))

    assert [row["host"] for row in rows] == sorted(lost_s, key=lost_s.__getitem__, reverse=True)
    assert [row["lost_s"] for row in rows] == pytest.approx(
        sorted((round(s, 1) for s in lost_s.values()), reverse=True), abs=0.11
    )
    assert all(row["first_cause"] in SLOW for row in rows)


def test_every_query_answers(filled: tuple[Database, list[Any]]) -> None:
    database, put = filled
    silent = ("HAVING requests >= 5", "verdict = 'unknown'")  # too few of one kind here, or none

    for statement in statements("queries.sql"):
        values = {"id": put[0][1]["id"]} if "{id:String}" in statement else {}
        rows = database.run(statement, **values)
        assert rows or any(part in statement for part in silent), statement


def test_fields_that_are_read_are_fields_of_a_record() -> None:
    """Needs no ClickHouse."""
    [view] = [s for s in statements("schema.sql") if "MATERIALIZED VIEW" in s]
    read = re.findall(r"JSONExtract\w*\(Body, ((?:'\w+'(?:, )?)+)", view)
    paths = {".".join(re.findall(r"'([a-z_]+)'", part)) for part in read}
    known = {name.replace("[]", "") for name in names(full_record())}
    whole = {name.split(".")[0] for name in known}  # lists, read as such

    assert len(paths) > 25
    assert paths - known - whole == set()
