"""Which engines there are, and which one a request goes to."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fakes.engines import Told, looking
from fakes.proxy import SILENT
from fakes.upstream import Upstream, listening
from fakes.wire import JSON, reply
from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines import look
from slowtok.proxy.engines import registry as module
from slowtok.proxy.engines.engine import Engine
from slowtok.proxy.engines.probing.facts import Identity
from slowtok.proxy.engines.registry import Engines
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.upstream.client import make_session

REFUSED = "http://127.0.0.1:9"  # discard: nobody listens there


def with_models(upstream: Upstream, *names: str) -> None:
    entries = ",".join(f'{{"id":"{name}","owned_by":"llamacpp"}}' for name in names)
    upstream.looks["/v1/models"] = reply(
        f'{{"data":[{entries}]}}'.encode(), JSON, "Server: llama.cpp"
    )


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not done():  # noqa: ASYNC110 - a look has no event
            await asyncio.sleep(0.005)


async def test_given_engine_is_told_by_its_replies(engine: Upstream, tmp_path: Path) -> None:
    told: Told = []
    async with looking(tmp_path, engine.url, told=told) as engines:
        [found] = engines.all

        assert (found.kind, found.version, list(found.models)) == (
            "llama-server",
            "b1-0",
            ["small"],
        )
        assert found.name == urlsplit(engine.url).netloc
        assert told == [
            (
                "engine-found",
                {
                    "engine": found.name,
                    "url": engine.url,
                    "kind": "llama-server",
                    "version": "b1-0",
                },
            )
        ]


async def test_engine_that_does_not_answer_is_kept(tmp_path: Path) -> None:
    async with looking(tmp_path, REFUSED) as engines:
        chosen = await engines.choose("any")

        assert chosen is engines.all[0]
        assert chosen.kind == "unknown"
        assert engines.searched_at == REFUSED


@pytest.mark.parametrize(
    ("model", "position"), [("first", 0), ("second", 1), ("neither", 0), (None, 0)]
)
async def test_request_goes_where_its_model_is(
    model: str | None, position: int, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(listening("llama-server")) for _ in "ab"]
        with_models(upstreams[0], "first")
        with_models(upstreams[1], "second")
        urls = [upstream.url for upstream in upstreams]
        engines = await stack.enter_async_context(looking(tmp_path, *urls))

        assert await engines.choose(model) is engines.all[position]


async def test_unknown_model_goes_to_one_that_answers(engine: Upstream, tmp_path: Path) -> None:
    async with looking(tmp_path, REFUSED, engine.url) as engines:
        assert await engines.choose("neither") is engines.all[1]


async def test_no_engine_is_no_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "USUAL_PORTS", {9: "llama-server", 1: "own"})
    async with looking(tmp_path) as engines:
        assert await engines.choose("any") is None
        assert engines.searched_at == "ports 9", "its own port is not an engine's"


async def test_engine_on_a_usual_port_is_found(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = urlsplit(engine.url).port or 0
    monkeypatch.setattr(module, "USUAL_PORTS", {9: "vllm", port: "ollama"})
    async with looking(tmp_path) as engines:
        [found] = engines.all

        assert (found.name, found.given) == (f"llama-server:{port}", False)


@pytest.mark.parametrize("kind", ["unknown"])
async def test_web_server_on_a_usual_port_is_no_engine(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "USUAL_PORTS", {urlsplit(engine.url).port: "llama-server"})
    async with looking(tmp_path) as engines:
        assert engines.all == []


async def test_engine_that_comes_later_is_found(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "USUAL_PORTS", {urlsplit(engine.url).port: "llama-server"})
    looks, engine.looks = engine.looks, {}
    async with looking(tmp_path) as engines:
        assert engines.all == []
        engine.looks = looks
        await until(lambda: engines.all and engines.all[0].looked.is_set())

        assert engines.all[0].kind == "llama-server"


async def test_engine_that_goes_and_comes_back_is_told(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "REFRESH_S", 0.01)
    told: Told = []
    async with looking(tmp_path, engine.url, told=told) as engines:
        with monkeypatch.context() as away:
            away.setattr(look, "identify", lambda *_: asyncio.sleep(0, None))
            await until(lambda: engines.all[0].identity is None)
            gone, _ = engines.facts(engines.all[0].name, None)
            assert (gone.kind, gone.uptime_s) == ("llama-server", None), "as it was last seen"
            assert engines.all[0].lost_unix_s is not None
        await until(lambda: engines.all[0].identity is not None)
        await until(lambda: len(told) >= 3)
        assert engines.all[0].lost_unix_s is None
        assert {facts["kind"] for _, facts in told} == {"llama-server"}

        assert [event for event, _ in told] == ["engine-found", "engine-lost", "engine-found"]


async def test_look_that_breaks_leaves_what_was_known(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_off(*_: object) -> None:
        raise ValueError("secret")

    told: Told = []
    monkeypatch.setattr(module, "REFRESH_S", 0.01)
    async with looking(tmp_path, engine.url, told=told) as engines:
        monkeypatch.setattr(look, "identify", break_off)
        await until(lambda: len(told) >= 2)

        assert told[1] == (
            "engine-look-failed",
            {"engine": engines.all[0].name, "error": "ValueError"},
        )
        assert engines.all[0].kind == "llama-server"


async def test_engine_that_hangs_costs_a_request_little(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def hang(*_: object) -> None:
        nonlocal looks
        looks += 1
        await asyncio.sleep(600)

    monkeypatch.setattr(module, "FIRST_LOOK_S", 0.02)
    monkeypatch.setattr(look, "identify", hang)
    async with make_session(1.0) as session:
        engines = Engines(
            session,
            [(None, engine.url)],
            sampler=Sampler(command=SILENT),
            cache_dir=tmp_path,
            own_port=1,
            log_event=lambda *_, **__: None,
        )
        engines.start(lambda _name: False)
        async with asyncio.timeout(5):
            assert await engines.choose(None) is engines.all[0]  # never seen yet
            assert await engines.choose(None) is engines.all[0]  # waited for in vain
        assert looks <= 1  # in the background, where that has got so far
        await engines.stop()


async def test_engine_that_was_late_is_waited_for_again_once_it_was_found(
    engine: Upstream, tmp_path: Path
) -> None:
    async with looking(tmp_path, engine.url) as engines:
        [late] = engines.all
        late.identity, late.is_late = None, True
        assert await engines.choose(None) is late
        assert late.identity is None

        await engines._look(late)
        assert not late.is_late
        engines.lose(late.name)
        assert await engines.choose(None) is late
        assert late.identity is not None


async def test_facts_of_an_engine_and_its_only_model(engine: Upstream, tmp_path: Path) -> None:
    async with looking(tmp_path, engine.url) as engines:
        server, model = engines.facts(engines.all[0].name, "alias of it")

        assert (server.kind, server.url, server.slots) == ("llama-server", engine.url, 1)
        assert server.local is True
        assert model == ModelFacts(name="small")


async def test_facts_follow_what_is_told(engine: Upstream, tmp_path: Path) -> None:
    async with looking(tmp_path, engine.url) as engines:
        [found] = engines.all
        before, _ = engines.facts(found.name, "small")
        found.probe = replace(found.probe, slots=7, sleeping=True)
        later, _ = engines.facts(found.name, "small", slept=False, gpu_indices=(1,))

        assert before.slots == 1
        assert (later.slots, later.slept, later.gpu_indices) == (7, False, (1,))
        assert engines.facts(found.name, "small")[0].slept is True


def test_facts_are_one_object_until_something_else_is_told() -> None:
    engine = Engine(name="e", url="http://h:1", given=True, identity=Identity(kind="vllm"))
    first = engine.facts(None, "m", {"slept": False})

    assert engine.facts(None, "m", {"slept": False}) is first
    assert engine.facts(None, "m", {"slept": True}).slept is True
    engine.probe = replace(engine.probe, slots=7)
    assert engine.facts(None, "m", {"slept": False}).slots == 7


def test_facts_tell_how_long_an_engine_is_there_in_whole_seconds() -> None:
    engine = Engine(name="e", url="http://h:1", given=True, identity=Identity(kind="vllm"))
    assert engine.facts(None, "m", {}).uptime_s is None

    engine.found_at_s = time.monotonic() - 100.5
    uptime_s = engine.facts(None, "m", {}).uptime_s

    assert uptime_s is not None
    assert uptime_s >= 101.0, "a second that has begun counts: it is never too little"
    assert uptime_s.is_integer()


async def test_facts_of_nobody(tmp_path: Path) -> None:
    async with looking(tmp_path, REFUSED) as engines:
        assert engines.facts("nobody", "m")[0].kind == "unknown"
        assert engines.facts(None, "m")[1] == ModelFacts(name="m")


@pytest.mark.parametrize(
    ("url", "port"), [("http://h", 80), ("https://h/v1", 443), ("http://[::1]:8080", 8080)]
)
def test_port_of_a_url(url: str, port: int) -> None:
    assert Engine(name="x", url=url, given=True).port == port


async def test_engine_that_refused_a_request_is_looked_at_before_the_next(
    engine: Upstream, tmp_path: Path
) -> None:
    told: Told = []
    async with looking(tmp_path, engine.url, told=told) as engines:
        engines.lose(engines.all[0].name)
        lost = engines.all[0].identity
        found = await engines.choose(None)

    assert lost is None
    assert found is not None
    assert found.identity is not None
    assert [event for event, _ in told] == ["engine-found", "engine-lost", "engine-found"]


async def test_a_name_without_a_tag_means_the_latest(engine: Upstream, tmp_path: Path) -> None:
    async with looking(tmp_path, engine.url) as engines:
        engines.all[0].models = {"llama3:latest": ModelFacts(name="l"), "other": ModelFacts()}

        assert engines.facts(engines.all[0].name, "llama3")[1].name == "l"


async def test_an_engine_that_was_found_is_left_out_while_it_is_away(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "USUAL_PORTS", {urlsplit(engine.url).port: "llama-server"})
    async with looking(tmp_path) as engines:
        [found] = engines.all
        here = engines.present
        engines.lose(found.name)

        assert (here, engines.present) == ([found], [])
        assert await engines.choose(None) is found, "better than nobody"


async def test_a_port_that_hangs_does_not_hide_the_others(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_looked = asyncio.Event()

    async def look_at(session: object, url: str) -> Identity | None:
        if url.endswith(":9"):
            await asyncio.wait_for(other_looked.wait(), 10)
            return None
        other_looked.set()
        return Identity(kind="llama-server")

    monkeypatch.setattr(module, "identify", look_at)
    monkeypatch.setattr(module, "USUAL_PORTS", {9: "vllm", urlsplit(engine.url).port: "ollama"})
    async with looking(tmp_path) as engines:
        assert [found.url for found in engines.all] == [engine.url]


async def test_a_model_that_is_found_ends_the_waiting_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_LOOK_S", 60.0)
    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(listening("llama-server")) for _ in "abc"]
        urls = [upstream.url for upstream in upstreams]
        engines = await stack.enter_async_context(looking(tmp_path, *urls))
        with_models(upstreams[2], "new")
        monkeypatch.setattr(upstreams[1], "_take", lambda _: asyncio.Event().wait())

        assert await engines.choose("new") is engines.all[2]


async def test_a_look_at_an_engine_at_work_that_comes_to_nothing_changes_nothing(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "identify", lambda *_: asyncio.sleep(0, None))
    busy = Engine(name="x", url=engine.url, given=True, identity=Identity(kind="ollama"))
    async with make_session(1.0) as session:
        await look.look(session, busy, None, tmp_path, is_asked=lambda: True)
        at_work = busy.identity
        await look.look(session, busy, None, tmp_path, is_asked=lambda: False)

    assert at_work == Identity(kind="ollama"), "its requests would be judged as an unknown one's"
    assert busy.identity is None


async def test_a_late_answer_of_an_engine_at_work_takes_no_models_away(
    engine: Upstream, tmp_path: Path
) -> None:
    known = {"small": ModelFacts(name="small")}
    busy = Engine(name="x", url=engine.url, given=True)
    async with make_session(1.0) as session:
        await look.look(session, busy, None, tmp_path)
        with_models(engine)
        await look.look(session, busy, None, tmp_path, is_asked=lambda: True)
        at_work = busy.models
        assert at_work == known
        await look.look(session, busy, None, tmp_path, is_asked=lambda: False)

    assert busy.models == {}


async def test_counting_that_breaks_goes_on(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []

    def break_off(*facts: object) -> None:
        tries.append(facts)
        raise ValueError("odd")

    told: Told = []
    monkeypatch.setattr(module, "POLL_S", 0.001)
    monkeypatch.setattr(module, "slots_url", break_off)
    async with looking(tmp_path, engine.url, told=told) as engines:
        monkeypatch.setattr(engines, "_is_asked", lambda _name: True)
        await until(lambda: len(tries) >= 2)

    assert ("engine-look-failed", {"engine": engines.all[0].name, "error": "ValueError"}) in told


async def test_an_engine_that_was_away_is_asked_before_another_gets_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(listening("llama-server")) for _ in "ab"]
        with_models(upstreams[0], "first")
        with_models(upstreams[1], "second")
        ports = {urlsplit(upstream.url).port: "llama-server" for upstream in upstreams}
        monkeypatch.setattr(module, "USUAL_PORTS", ports)
        engines = await stack.enter_async_context(looking(tmp_path))
        away = next(e for e in engines.all if e.serves("second"))
        other = next(e for e in engines.all if e.serves("first"))
        engines.lose(away.name)
        back = await engines.choose("second")
        engines.lose(away.name)
        monkeypatch.setattr(look, "identify", lambda *_: asyncio.sleep(0, None))

        assert back is away
        assert await engines.choose("second") is other, "better than nobody"
