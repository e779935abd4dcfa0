"""Several engines behind one address: routing, the merged list, one that is down or hangs."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from fakes.client import CHAT
from fakes.proxy import Served, serving
from fakes.upstream import CLOSE, Upstream, listening
from fakes.wire import JSON, reply, until
from slowtok.proxy.engines import registry as module

LLAMA = {"id": "a", "object": "model", "owned_by": "llamacpp", "meta": {"n_params": 1.5e3}}
VLLM = {"id": "b", "object": "model", "owned_by": "vllm", "permission": [{"id": "x"}]}
DONE = b'{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
REFUSED = reply(b'{"error":"key"}', JSON, CLOSE, status="401 Unauthorized")


def listing(*entries: dict[str, Any], **more: Any) -> bytes:
    said = {"object": "list", "data": list(entries), **more}
    return reply(json.dumps(said).encode(), JSON, CLOSE)


@pytest.fixture
async def llama() -> AsyncIterator[Upstream]:
    async with listening("llama-server") as upstream:
        upstream.looks["/v1/models"] = listing(LLAMA, models=[{"name": "a"}])
        upstream.reply = reply(DONE, JSON)
        yield upstream


@pytest.fixture
async def vllm() -> AsyncIterator[Upstream]:
    async with listening("vllm") as upstream:
        upstream.looks["/v1/models"] = listing(VLLM)
        upstream.reply = reply(DONE, JSON)
        yield upstream


@pytest.fixture
async def both(llama: Upstream, vllm: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, f"one={llama.url}", f"two={vllm.url}") as served:
        yield served


async def get(served: Served, target: str, *fields: str) -> tuple[int, Any]:
    client = await served.connect()
    await client.ask("GET", target, *fields)
    head, body = await client.reply()
    return head.status, json.loads(body)


async def ask(served: Served, model: str) -> dict[str, Any]:
    client = await served.connect()
    await client.chat(model=model, stream=False)
    head, _ = await client.reply()
    return await served.record(head.get("slowtok-id"))


async def test_a_single_engines_list_passes_byte_for_byte(llama: Upstream, tmp_path: Path) -> None:
    odd = b'{ "data":[ {"id":"a"}  ],"object" :"list"}'
    llama.reply = reply(odd, JSON)
    async with serving(tmp_path, llama.url) as served:
        client = await served.connect()
        await client.ask("GET", "/v1/models")
        _, body = await client.reply()

    assert body == odd


async def test_lists_are_merged_in_order_each_entry_as_it_is(both: Served) -> None:
    status, said = await get(both, "/v1/models")

    assert status == 200
    assert said == {"object": "list", "data": [LLAMA, VLLM], "models": [{"name": "a"}]}
    assert list(said["data"][0]) == list(LLAMA), "not even the order of the fields changes"


async def test_of_equal_ids_the_first_stands(both: Served, vllm: Upstream) -> None:
    vllm.looks["/v1/models"] = listing({**LLAMA, "owned_by": "vllm"}, VLLM)

    assert (await get(both, "/v1/models"))[1]["data"] == [LLAMA, VLLM]


async def test_the_merged_list_is_in_the_log_as_any_request(both: Served, llama: Upstream) -> None:
    client = await both.connect()
    await client.ask("GET", "/v1/models", "X-Request-Id: mine")
    head, _ = await client.reply()
    record = await both.record(head.get("slowtok-id"))

    assert head.get("x-request-id") == "mine"
    assert (record["path"], record["status"], record["ended"]) == ("/v1/models", 200, "complete")
    assert "verdict" not in record
    assert llama.count == 0


async def test_an_engine_that_is_down_keeps_its_last_list(both: Served, vllm: Upstream) -> None:
    vllm.looks["/v1/models"] = reply(b"{}", JSON, CLOSE, status="503 Service Unavailable")

    assert (await get(both, "/v1/models"))[1]["data"] == [LLAMA, VLLM]


async def test_an_engine_that_was_never_seen_lists_nothing(llama: Upstream, tmp_path: Path) -> None:
    async with serving(tmp_path, "http://127.0.0.1:9", llama.url) as served:
        assert (await get(served, "/v1/models"))[1]["data"] == [LLAMA]


async def test_where_none_lists_anything_the_first_one_answers(
    both: Served, llama: Upstream, vllm: Upstream
) -> None:
    for upstream in (llama, vllm):
        upstream.looks["/v1/models"] = REFUSED
        upstream.reply = REFUSED

    assert await get(both, "/v1/models") == (401, {"error": "key"})
    assert (llama.count, vllm.count) == (1, 0)


async def test_a_key_is_shown_only_to_the_engine_that_wants_one(
    both: Served, llama: Upstream, vllm: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: dict[str, list[str]] = {"llama": [], "vllm": []}
    monkeypatch.setattr(llama, "_take", keyed(llama, shown["llama"], wants=False))
    monkeypatch.setattr(vllm, "_take", keyed(vllm, shown["vllm"], wants=True))

    _, without = await get(both, "/v1/models")
    _, said = await get(both, "/v1/models", "Authorization: Bearer k")

    assert without["data"] == [LLAMA]
    assert said["data"] == [LLAMA, VLLM]
    assert shown == {"llama": [], "vllm": ["Bearer k"]}


def keyed(upstream: Upstream, shown: list[str], *, wants: bool) -> Any:
    """An engine that notes the keys that looks show, and may want one for its models."""

    async def take(arrival: Any) -> None:
        key = arrival.head.get("authorization")
        if key is not None:
            shown.append(key)
        refused = wants and key is None and arrival.head.target == "/v1/models"
        await arrival.answer(REFUSED if refused else upstream.looks[arrival.head.target])
        arrival.close()

    return take


@pytest.mark.parametrize(("model", "name"), [("a", "one"), ("b", "two"), ("nobody's", "one")])
async def test_a_request_goes_where_its_model_is(both: Served, model: str, name: str) -> None:
    assert (await ask(both, model))["upstream"]["name"] == name


async def test_what_is_no_generation_goes_by_its_model_too(
    both: Served, llama: Upstream, vllm: Upstream
) -> None:
    client = await both.connect()
    for method, target, body in (
        ("POST", "/tokenize", b'{"model": "b", "prompt": "x"}'),
        ("GET", "/v1/models/b", b""),
        ("GET", "/metrics?model=b", b""),
    ):
        await client.ask(method, target, JSON, body=body)
        await client.reply()
        arrival = await vllm.next()
        assert (arrival.head.target, await arrival.body()) == (target, body)

    assert llama.count == 0


async def test_a_model_that_appears_later_is_found_at_once(both: Served, vllm: Upstream) -> None:
    assert (await ask(both, "new"))["upstream"]["name"] == "one"
    vllm.looks["/v1/models"] = listing(VLLM, {"id": "new", "owned_by": "vllm"})
    both.proxy.engines._lists._asked_at_s = float("-inf")  # as if it were some seconds later

    assert (await ask(both, "new"))["upstream"]["name"] == "two"
    await until(lambda: "new" in both.proxy.engines.all[1].models)


async def test_engines_are_not_asked_again_for_each_request(both: Served, llama: Upstream) -> None:
    await ask(both, "nobody's")
    before = llama.connections
    for _ in range(5):
        await ask(both, "nobody's")

    assert llama.connections - before <= 6, "one for each request, at most one for a look"


async def test_an_engine_that_refuses_does_not_take_the_others_requests(
    llama: Upstream, tmp_path: Path
) -> None:
    async with serving(tmp_path, "gone=http://127.0.0.1:9", f"here={llama.url}") as served:
        assert (await ask(served, "a"))["upstream"]["name"] == "here"
        assert (await ask(served, "nobody's"))["upstream"]["name"] == "here"


async def test_a_request_too_large_to_be_read_is_refused_and_reaches_no_engine(
    both: Served, llama: Upstream, vllm: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(both.proxy.relay, "_max_body_bytes", 1000)
    before = llama.count, vllm.count
    client = await both.connect()

    await client.ask("POST", CHAT, body=b'{"model":"b","prompt":"' + b"a" * 2000 + b'"}')
    head, body = await client.reply()

    assert (head.status, (llama.count, vllm.count)) == (413, before)
    assert "max_body_bytes" in json.loads(body)["error"]["message"]
    assert both.proxy.relay.memory_budget.now_bytes == 0


async def test_a_request_for_a_model_of_an_engine_that_went_away_names_it(
    both: Served, vllm: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = both.proxy.engines.all[1]
    monkeypatch.setattr(two, "url", "http://127.0.0.1:9")

    record = await ask(both, "b")

    assert (record["upstream"]["name"], record["status"]) == ("two", 502)
    assert (await ask(both, "a"))["status"] == 200


async def test_an_engine_that_hangs_does_not_hold_up_the_others(
    both: Served, vllm: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_arrival: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(vllm, "_take", hang)
    monkeypatch.setattr(module, "FIRST_LOOK_S", 60.0)  # who waited for it would not come back
    waiting = asyncio.create_task(ask(both, "b"))
    began_s = time.monotonic()
    known = await ask(both, "a")
    took_s = time.monotonic() - began_s
    status, said = await get(both, "/v1/models")
    waiting.cancel()

    assert known["upstream"]["name"] == "one"
    assert took_s < 5
    assert (status, said["data"]) == (200, [LLAMA, VLLM]), "its last list stands in"


async def test_ollamas_own_paths_go_to_ollama(llama: Upstream, tmp_path: Path) -> None:
    async with listening("ollama") as ollama, serving(tmp_path, llama.url, ollama.url) as served:
        tags = b'{"models":[{"name":"small"}]}'
        ollama.reply = reply(tags, JSON)
        client = await served.connect()
        await client.ask("GET", "/api/tags")
        _, body = await client.reply()

        assert body == tags
        assert llama.count == 0


async def test_several_ollamas_share_their_tags(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        ollamas = [await stack.enter_async_context(listening("ollama")) for _ in "ab"]
        for name, ollama in zip("ab", ollamas, strict=True):
            tags = {"models": [{"name": f"{name}:latest", "size": 1}, {"name": "shared:latest"}]}
            ollama.looks["/api/tags"] = reply(json.dumps(tags).encode(), JSON, CLOSE)
            ollama.reply = reply(b'{"message":{"content":"hi"},"done":true}', JSON)
        served = await stack.enter_async_context(serving(tmp_path, *(o.url for o in ollamas)))
        _, said = await get(served, "/api/tags")
        client = await served.connect()
        await client.chat(target="/api/chat", model="b", stream=False)
        await client.reply()

        assert [entry["name"] for entry in said["models"]] == [
            "a:latest",
            "shared:latest",
            "b:latest",
        ]
        assert [ollama.count for ollama in ollamas] == [0, 1]


ROUTER = {"role": "router", "build_info": "b11434-x", "max_instances": 4, "models_autoload": True}


async def test_a_router_gives_the_facts_of_the_model_that_was_asked_for(tmp_path: Path) -> None:
    entries = [
        {
            "id": name,
            "owned_by": "llamacpp",
            "status": {"value": "loaded", "args": ["llama-server", "-c", str(context), "-t", "3"]},
            "meta": {"n_params": parameters},
        }
        for name, context, parameters in (("a", 1024, 7), ("b", 2048, 9))
    ]
    async with listening("llama-server") as router:
        fields = (JSON, CLOSE, "Server: llama.cpp")
        router.looks["/props"] = reply(json.dumps(ROUTER).encode(), *fields)
        router.looks["/v1/models"] = reply(json.dumps({"data": entries}).encode(), *fields)
        for name, slots in (("a", 1), ("b", 4)):
            props = json.dumps({"total_slots": slots}).encode()
            router.looks[f"/props?model={name}&autoload=false"] = reply(props, *fields)
        router.reply = reply(DONE, JSON)
        async with serving(tmp_path, router.url) as served:
            for name in ("b", "a"):
                await ask(served, name)
            facts = [(c.server.context_tokens, c.server.slots) for c in served.cases]
            models = [(c.model.name, c.model.parameters) for c in served.cases]

    assert facts == [(2048, 4), (1024, 1)]
    assert models == [("b", 9), ("a", 7)]


async def test_ollama_gives_the_facts_of_the_model_that_was_asked_for(tmp_path: Path) -> None:
    running = [
        {"name": "a:latest", "size": 100, "size_vram": 100, "context_length": 4096},
        {"name": "b:latest", "size": 300, "size_vram": 120, "context_length": 8192},
    ]
    tags = [{"name": entry["name"]} for entry in running]
    async with listening("ollama") as ollama:
        ollama.looks["/api/tags"] = reply(json.dumps({"models": tags}).encode(), JSON, CLOSE)
        ollama.looks["/api/ps"] = reply(json.dumps({"models": running}).encode(), JSON, CLOSE)
        ollama.reply = reply(b'{"message":{"content":"hi"},"done":true}', JSON)
        async with serving(tmp_path, ollama.url) as served:
            for name in ("b", "a:latest"):
                client = await served.connect()
                await client.chat(target="/api/chat", model=name, stream=False)
                head, _ = await client.reply()
                await served.record(head.get("slowtok-id"))
            facts = [
                (c.server.context_tokens, c.server.loaded_bytes, c.server.loaded_gpu_bytes)
                for c in served.cases
            ]

    assert facts == [(8192, 300, 120), (4096, 100, 100)]


async def test_a_model_that_was_just_loaded_is_looked_at(tmp_path: Path) -> None:
    async with listening("ollama") as ollama:
        ollama.reply = reply(b'{"message":{"content":"hi"},"done":true}', JSON)
        async with serving(tmp_path, ollama.url) as served:
            [only] = served.proxy.engines.all
            before = only.probe.loaded
            running = {"models": [{"name": "small", "size": 5, "size_vram": 5}]}
            ollama.looks["/api/ps"] = reply(json.dumps(running).encode(), JSON, CLOSE)
            client = await served.connect()
            await client.chat(target="/api/chat", stream=False)
            await client.reply()
            await until(lambda: only.probe.loaded)

            assert before == ()
            assert [each.name for each in only.probe.loaded or ()] == ["small"]
