"""What is known of an engine follows at once what it loads and what runs in its place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.engines import Told, looking
from fakes.upstream import Upstream
from fakes.wire import JSON, reply, until
from slowtok.proxy.engines.registry import Engines
from slowtok.proxy.sampling.protocol import ChildProcess, ProcessFacts
from slowtok.proxy.sampling.supervisor import Sampler

PATIENCE_S = 10.0
GIB = 2**30

Show = Callable[..., None]


@pytest.fixture
def show_process(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Have the sampler see a process with these children behind every port."""
    seen: dict[str, ProcessFacts] = {}
    monkeypatch.setattr(Sampler, "process", lambda _self, port: seen.get("process"))

    def show(pid: int | None, *children: int, created_unix_s: float = 1e9) -> None:
        below = tuple(ChildProcess(pid=child) for child in children)
        seen["process"] = ProcessFacts(
            port=1, pid=pid, created_unix_s=created_unix_s, children=below
        )

    return show


def told_as(body: object) -> bytes:
    return reply(json.dumps(body).encode(), JSON, "Connection: close")


def hold(upstream: Upstream, gpu_bytes: int) -> None:
    entry = {"name": "small", "model": "small", "size": 8 * GIB, "size_vram": gpu_bytes}
    upstream.looks["/api/ps"] = told_as({"models": [entry | {"context_length": 4096}]})


def gpu_bytes(engines: Engines) -> int | None:
    return engines.facts(engines.all[0].name, "small")[0].loaded_gpu_bytes


@pytest.mark.parametrize("kind", ["ollama"])
async def test_a_request_that_loaded_a_model_has_it_looked_at_again(
    engine: Upstream, tmp_path: Path
) -> None:
    hold(engine, 8 * GIB)
    async with looking(tmp_path, engine.url) as engines:
        name = engines.all[0].name
        hold(engine, 3 * GIB)
        engines.note_sent(name, "small")
        engines.note_arrived(name, load_s=0.04)  # as Ollama reports it for a model that is there
        unchanged = await engines.wait_for_look(name, PATIENCE_S), gpu_bytes(engines)
        engines.note_arrived(name, load_s=2.5)
        assert await engines.wait_for_look(name, PATIENCE_S)

        assert unchanged == (True, 8 * GIB)
        assert gpu_bytes(engines) == 3 * GIB


@pytest.mark.parametrize("kind", ["ollama"])
async def test_another_runner_has_the_engine_looked_at_again(
    engine: Upstream, tmp_path: Path, show_process: Show
) -> None:
    hold(engine, 8 * GIB)
    show_process(700, 701)
    told: Told = []
    async with looking(tmp_path, engine.url, told=told) as engines:
        hold(engine, 3 * GIB)
        show_process(700, 702)
        engines.note_arrived(engines.all[0].name)
        assert await engines.wait_for_look(engines.all[0].name, PATIENCE_S)

        assert gpu_bytes(engines) == 3 * GIB
        assert [event for event, _ in told] == ["engine-found"]  # the same engine


@pytest.mark.parametrize("kind", ["vllm"])
async def test_an_engine_that_was_started_anew_is_another(
    engine: Upstream, tmp_path: Path, show_process: Show
) -> None:
    show_process(700, 701)
    told: Told = []
    async with looking(tmp_path, engine.url, told=told) as engines:
        [seen] = engines.all
        before_s = seen.found_at_s or 0.0
        engine.looks["/version"] = told_as({"version": "0.34.0"})
        show_process(900, 901, created_unix_s=1e9 + 60)
        await until(lambda: seen.version == "0.34.0")  # without any request
        await engines.wait_for_look(seen.name, PATIENCE_S)

        assert [facts.get("version") for _, facts in told] == ["0.32.0", "0.34.0"]
        assert (seen.found_at_s or 0.0) > before_s


@pytest.mark.parametrize("kind", ["vllm"])
async def test_another_fingerprint_in_a_reply_has_the_engine_looked_at_again(
    engine: Upstream, tmp_path: Path
) -> None:
    async with looking(tmp_path, engine.url) as engines:
        [seen] = engines.all
        wanted = []
        for model, fingerprint in (("a", "b1"), ("a", "b1"), ("b", "b9"), ("a", "b1"), ("a", "b2")):
            engines.note_sent(seen.name, model)
            engines.note_arrived(seen.name, None, fingerprint)
            wanted.append(seen.wanted.is_set())

        assert wanted == [False, False, False, False, True]


@pytest.mark.parametrize("kind", ["vllm"])
async def test_an_engine_whose_process_is_not_seen_any_more_has_not_changed(
    engine: Upstream, tmp_path: Path, show_process: Show
) -> None:
    show_process(700, 701)
    async with looking(tmp_path, engine.url) as engines:
        [seen] = engines.all
        show_process(None)
        engines.note_arrived(seen.name)

        assert not seen.wanted.is_set()


async def test_a_look_that_does_not_end_is_not_waited_for(engine: Upstream, tmp_path: Path) -> None:
    async with looking(tmp_path, engine.url) as engines:
        engines.all[0].is_looked_at = True
        late: dict[str, Any] = {"in time": await engines.wait_for_look(engines.all[0].name, 0.01)}

        assert late == {"in time": False}
        assert await engines.wait_for_look("no such engine", 0.01)


async def test_who_listens_here_is_nothing_to_an_engine_elsewhere(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[list[int]] = []
    monkeypatch.setattr(Sampler, "watch", lambda _self, ports: watched.append(list(ports)))
    async with looking(tmp_path, engine.url, "http://192.0.2.1:8080") as engines:
        here, there = engines.all
        there.local = False  # as its address tells at the first look
        engines._watch_ports()

        assert watched[-1] == [here.port]
