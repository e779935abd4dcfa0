"""What lies in deploy/, read: YAML, queries, and the names that stand in them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
FLEET = DEPLOY / "fleet"
DASHBOARD = DEPLOY / "grafana" / "slowtok.json"
RULES = FLEET / "slowtok.rules.yml"

SCRAPED = frozenset({"instance", "job"})  # labels that Prometheus itself adds
PARTS = {"histogram": ("_bucket", "_sum", "_count")}


def documents(path: Path) -> list[Any]:
    """Return the YAML documents of a file."""
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def document(path: Path) -> Any:
    """Return the only YAML document of a file."""
    [only] = documents(path)
    return only


def metrics() -> dict[str, frozenset[str]]:
    """Return each series that docs/metrics.md promises, with its labels."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    found: dict[str, frozenset[str]] = {}
    rows = re.findall(r"^\| `(slowtok_\w+)` \| (\w+) \|([^|]*)\|", text, flags=re.MULTILINE)
    for name, kind, cell in rows:
        labels = frozenset(re.findall(r"`(\w+)`", cell)) | SCRAPED
        for part in PARTS.get(kind, ("",)):
            found[name + part] = labels | ({"le"} if part == "_bucket" else set())
    return found


def recorded() -> dict[str, str]:
    """Return the expressions of the recording rules by what they record."""
    groups = document(RULES)["groups"]
    return {r["record"]: r["expr"] for g in groups for r in g["rules"] if "record" in r}


@dataclass(frozen=True, slots=True)
class Used:
    """A series in a query with the labels of its selector, and the labels grouped by."""

    series: frozenset[tuple[str, frozenset[str]]]
    grouped: frozenset[str]


def used(promql: str) -> Used:
    """Return which names stand in a query."""
    plain = re.sub(r"#.*", "", promql)
    selectors = re.findall(r"\b(slowtok[a-z0-9_:]*|up)\b(?![\"'(])(?:\s*\{([^}]*)\})?", plain)
    series = frozenset(
        (name, frozenset(re.findall(r"(\w+)\s*[=!]~?", matchers))) for name, matchers in selectors
    )
    groupings = re.findall(r"\b(?:by|on|without|ignoring|group_left)\s*\(([^)]*)\)", plain)
    grouped = {label.strip() for group in groupings for label in group.split(",")} - {""}
    return Used(series, frozenset(grouped))


def panels() -> Iterator[dict[str, Any]]:
    """Yield the panels of the dashboard that show something."""

    whole = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    yield from (panel for panel in whole["panels"] if panel["type"] != "row")


def dashboard_queries() -> dict[str, str]:
    """Return each query of the dashboard by its panel's title and its letter."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in panels()
        for target in panel["targets"]
    }


def rule_queries() -> dict[str, str]:
    """Return the expressions of all rules."""
    groups = document(RULES)["groups"]
    return {r.get("record") or r["alert"]: r["expr"] for g in groups for r in g["rules"]}


def documented_queries() -> dict[str, str]:
    """Return the queries of docs/fleet.md by their first line."""
    text = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    found = re.findall(r"^```promql\n(.*?)\n```$", text, flags=re.DOTALL | re.MULTILINE)
    return {query.splitlines()[0]: query for query in found}


def statements(name: str) -> list[str]:
    """Return the statements of one of the SQL files, without comments."""
    text = (FLEET / "clickhouse" / name).read_text(encoding="utf-8")
    bare = re.sub(r"^\s*--.*$", "", text, flags=re.MULTILINE)
    return [part.strip() for part in bare.split(";") if part.strip()]
