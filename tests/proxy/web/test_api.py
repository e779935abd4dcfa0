"""The proxy's own pages."""

import json
import time

import pytest

from fakes.client import Client
from fakes.proxy import Served
from fakes.upstream import MODEL, Upstream
from fakes.wire import reply
from slowtok.proxy.sampling.host.ram import BESIDE_OTHERS, Kept
from slowtok.proxy.web import status as status_module


async def ask(client: Client, target: str, method: str = "GET") -> tuple[int, dict[str, object]]:
    await client.ask(method, target)
    head, body = await client.reply()
    assert head.get("content-type") == "application/json; charset=utf-8"
    return head.status, json.loads(body)


async def test_health(client: Client) -> None:
    assert await ask(client, "/slowtok/health") == (200, {"status": "ok"})


async def test_status_tells_engines_machine_and_cost(proxy: Served, engine: Upstream) -> None:
    status = await proxy.own("/slowtok/status")

    (seen,) = status["engines"]
    assert (seen["kind"], seen["url"], seen["answers"]) == ("llama-server", engine.url, True)
    assert [model["name"] for model in seen["models"]] == [MODEL]
    assert status["machine"]["ram_bandwidth_bytes_per_s"] == 2e10
    assert status["overhead"]["proxy"]["resident_bytes"] > 1e6
    assert status["overhead"]["sampling"]["alive"] is False
    assert status["overhead"]["held"] == {"now_bytes": 0, "most_bytes": 0}
    assert "GPUs" in [hidden["fact"] for hidden in status["not_visible"]]
    assert status["counts"] == {
        "requests": 0,
        "in_flight": 0,
        "connections_refused": 0,
        "failures": {},
        "log_lines_lost": 0,
        "baseline_errors": 0,
    }


async def test_its_version_is_that_of_its_start(
    proxy: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (await proxy.own("/slowtok/status"))["version"]
    # As when pip has put a newer one there.
    monkeypatch.setattr("slowtok.proxy.runtime.version.version", lambda _: "9.9.9")

    assert (await proxy.own("/slowtok/status"))["version"] == before
    assert proxy.proxy.status.snapshot().version == before


async def test_a_fit_that_cannot_be_told_costs_only_itself(
    proxy: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[dict[str, object]]:
        raise ZeroDivisionError

    monkeypatch.setattr(status_module, "fit_status", broken)
    status = await proxy.own("/slowtok/status")

    assert [engine["answers"] for engine in status["engines"]] == [True]
    assert "fit" not in status["engines"][0]
    assert status["counts"]["failures"] == {"fit": 1}


async def test_ram_measured_beside_others_is_said(proxy: Served) -> None:
    beside = Kept(bytes_per_s=1e10, measured_unix_s=time.time(), windows=0)
    proxy.proxy.ram._kept = beside
    status = await proxy.own("/slowtok/status")

    assert status["machine"]["ram_bandwidth_how"] == BESIDE_OTHERS
    [hidden] = [h for h in status["not_visible"] if h["fact"].startswith("RAM bandwidth")]
    assert hidden["why"].startswith(BESIDE_OTHERS)


async def test_status_counts_requests(proxy: Served, engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok")
    await client.ask("GET", "/x")
    await client.reply()
    other = await proxy.connect()
    engine.reply = None
    await other.ask("GET", "/y")
    await engine.next()
    await engine.next()

    counts = (await proxy.own("/slowtok/status"))["counts"]
    assert (counts["requests"], counts["in_flight"]) == (2, 1)


async def test_requests_are_listed_newest_first_and_bounded(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"ok")
    for path in ("/a", "/b", "/c"):
        await client.ask("GET", path)
        await client.reply()

    listed = await proxy.own("/slowtok/requests")
    assert [record["path"] for record in listed] == ["/c", "/b", "/a"]
    two = await proxy.own("/slowtok/requests?limit=2")
    assert [record["path"] for record in two] == ["/c", "/b"]
    assert await proxy.own("/slowtok/requests?limit=0") == []


async def test_metrics_are_plain_text(engine: Upstream, proxy: Served, client: Client) -> None:
    await client.ask("GET", "/slowtok/metrics")
    head, body = await client.reply()

    assert head.get("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    assert b'\nslowtok_engine_up{engine="%s"' % engine.url[7:].encode() in body
    assert b"\nslowtok_requests_in_flight 0.0\n" in body


async def test_metrics_in_the_format_that_was_asked_for(client: Client) -> None:
    await client.ask("GET", "/slowtok/metrics", "Accept: application/openmetrics-text")
    head, body = await client.reply()

    assert (head.get("content-type") or "").startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize("limit", ["x", "-1", "", "1.5", "%C2%B2", "9" * 5000])
async def test_bad_limit_is_refused(limit: str, client: Client) -> None:
    status, said = await ask(client, f"/slowtok/requests?limit={limit}")

    assert status == 400
    assert said["error"]["code"] == "bad-request"  # type: ignore[index]


async def test_unknown_request_is_not_found_at_once(client: Client) -> None:
    status, said = await ask(client, "/slowtok/requests/0199f3c2-0000-7000-8000-000000000000")

    assert status == 404
    assert said["error"]["code"] == "not-found"  # type: ignore[index]


@pytest.mark.parametrize(
    ("method", "target"),
    [
        *((method, "/slowtok/v1/models") for method in ("GET", "POST", "DELETE")),
        *((method, "/slowtok/x/y") for method in ("GET", "POST", "DELETE")),
    ],
)
async def test_other_pages_are_not_found_and_reach_no_engine(
    target: str, method: str, engine: Upstream, client: Client
) -> None:
    status, said = await ask(client, target, method)

    assert status == 404
    assert "there are /slowtok/, /slowtok/requests" in said["error"]["message"]  # type: ignore[index]
    assert engine.count == 0


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        ("/slowtok/", "GET, HEAD"),
        ("/slowtok/status", "GET, HEAD"),
        ("/slowtok/requests/0199", "GET, HEAD"),
        ("/slowtok/events", "GET"),
    ],
)
async def test_pages_can_only_be_read(
    target: str, allowed: str, method: str, engine: Upstream, client: Client
) -> None:
    await client.ask(method, target)
    head, body = await client.reply()

    assert head.status == 405
    assert head.get("allow") == allowed
    assert b"method-not-allowed" in body
    assert engine.count == 0


async def test_own_pages_are_not_recorded(proxy: Served) -> None:
    await proxy.own("/slowtok/status")

    assert await proxy.own("/slowtok/requests") == []
