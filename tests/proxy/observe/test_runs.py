"""Agent runs over HTTP: who belongs together, what is told of them, and what goes to the engine."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from fakes.client import Client
from fakes.conversations import body
from fakes.proxy import Served, serving
from fakes.upstream import Arrival, Upstream
from fakes.wire import JSON, reply

ANSWER = orjson.dumps(
    {
        "model": "small",
        "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 90, "completion_tokens": 2},
        "timings": {
            "cache_n": 10,
            "prompt_n": 80,
            "prompt_ms": 5.0,
            "predicted_n": 2,
            "predicted_ms": 1.0,
        },
    }
)
PATH = "/v1/chat/completions"


async def ask(
    client: Client, engine: Upstream, said: dict[str, Any], *fields: str, path: str = PATH
) -> tuple[Arrival, str]:
    """Ask, and return what came to the engine, and the request's id."""
    await client.ask("POST", path, JSON, *fields, body=orjson.dumps(said))
    arrived = await engine.next()
    await arrived.answer(reply(ANSWER, JSON))
    head, _ = await client.reply()
    return arrived, head.get("slowtok-id") or ""


async def test_a_client_that_says_nothing_of_its_run(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    ids = [(await ask(client, engine, body(steps)))[1] for steps in range(3)]

    records = [await proxy.record(one) for one in ids]
    assert len({record["run"]["id"] for record in records}) == 1
    assert [record["run"]["turn"] for record in records] == [1, 2, 3]
    assert [record["run"].get("parent") for record in records] == [None, 1, 2]
    assert records[2]["since_previous_ms"] >= 0
    assert records[2]["run"]["reads"].keys() == {"assistant", "tool"}

    (run,) = (await proxy.own("/slowtok/runs"))["runs"]
    assert (run["id"], run["by"], run["requests"]) == (records[0]["run"]["id"], "prompt", 3)
    whole = await proxy.own(f"/slowtok/runs/{run['id']}")
    assert [turn["request"] for turn in whole["turns"]] == ids
    assert sum(whole["split_ms"].values()) == pytest.approx(whole["wall_ms"], abs=0.1)


async def test_one_request_without_a_name_is_no_run(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    await ask(client, engine, body(0))
    await proxy.newest()

    assert await proxy.own("/slowtok/runs") == {"runs": []}


@pytest.mark.parametrize(
    ("path", "field", "by"),
    [("/run/night%20job" + PATH, "X-Other: 1", "url"), (PATH, "Slowtok-Run: night job", "header")],
)
async def test_a_run_with_a_name(
    proxy: Served, engine: Upstream, client: Client, path: str, field: str, by: str
) -> None:
    arrived, request_id = await ask(client, engine, body(0), field, path=path)

    assert arrived.head.first_line == f"POST {PATH} HTTP/1.1"
    assert arrived.head.get("slowtok-run") is None
    record = await proxy.record(request_id)
    assert record["path"] == PATH
    assert (record["run"]["name"], record["run"]["by"]) == ("night job", by)
    found = await proxy.own("/slowtok/runs/night%20job")
    assert found["requests"] == 1


@pytest.mark.parametrize("target", ["//v1/chat/completions", "/v1//chat?x=/#y", "/v1%2Fchat"])
async def test_a_run_in_the_url_leaves_the_rest_as_it_is(
    proxy: Served, engine: Upstream, client: Client, target: str
) -> None:
    paths = []
    for prefix in ("", "/run/night"):
        arrived, request_id = await ask(client, engine, body(0), path=prefix + target)
        assert arrived.head.first_line == f"POST {target.partition('#')[0]} HTTP/1.1"
        paths.append((await proxy.record(request_id))["path"])

    assert paths[0] == paths[1]


async def test_a_name_of_which_nothing_can_be_shown_is_none(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    _, request_id = await ask(client, engine, body(0), path="/run/%01%02" + PATH)

    run = (await proxy.record(request_id))["run"]
    assert run["by"] == "url"
    assert "name" not in run


async def test_ids_of_clients_are_hashed(proxy: Served, engine: Upstream, client: Client) -> None:
    said = body(0) | {"prompt_cache_key": "tell-nobody", "metadata": {"session_id": "nor-this"}}
    _, request_id = await ask(client, engine, said, "X-Session-Id: a-secret", "User-Agent: agent/1")

    record = await proxy.record(request_id)
    runs = await proxy.own("/slowtok/runs")
    assert record["run"]["by"] == "session"
    assert record["client"] == "agent"
    for secret in ("tell-nobody", "nor-this", "a-secret"):
        assert secret not in repr((record, runs))


async def test_a_run_that_goes_on(proxy: Served, engine: Upstream, client: Client) -> None:
    await client.ask("POST", PATH, JSON, "slowtok-run: now", body=orjson.dumps(body(0)))
    arrived = await engine.next()

    run = await proxy.own("/slowtok/runs/last")

    assert run["live"] is True
    assert run["turns"][0]["live"] is True
    await arrived.answer(reply(ANSWER, JSON))
    await client.reply()
    await proxy.newest()
    assert (await proxy.own("/slowtok/runs/now"))["live"] is False


async def test_a_run_goes_on_after_a_restart(engine: Upstream, tmp_path: Path) -> None:
    turns = []
    for _ in range(2):
        log = tmp_path / "log.jsonl"
        async with serving(tmp_path, engine.url, log=str(log)) as served:
            client = await served.connect()
            _, request_id = await ask(client, engine, body(0), "slowtok-run: nightly")
            record = await served.record(request_id)
            turns.append((record["run"]["id"], record["run"]["turn"]))
            with log.open("ab") as file:
                file.write(orjson.dumps(record) + b"\n")
            assert (await served.own("/slowtok/runs/nightly"))["requests"] == len(turns)

    assert turns[0][0] == turns[1][0]
    assert [turn for _, turn in turns] == [1, 2]


async def test_unknown_runs_and_odd_limits(proxy: Served) -> None:
    client = await proxy.connect()
    for path, status in (("runs/none", 404), ("runs?limit=x", 400), ("runs?limit=1", 200)):
        await client.ask("GET", f"/slowtok/{path}")
        head, _ = await client.reply()
        assert head.status == status


async def test_own_pages_are_not_reached_through_a_run(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.ask("GET", "/run/x/slowtok/status")
    arrived = await engine.next()

    assert arrived.head.first_line == "GET /run/x/slowtok/status HTTP/1.1"
    await arrived.answer(reply(b"{}", JSON, status="404 Not Found"))
    await client.reply()
