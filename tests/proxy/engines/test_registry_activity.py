"""Engines' counters around a request, and the geometry of models that are folders."""

import time
from pathlib import Path

import aiohttp
import pytest

from fakes import recordings
from fakes.engines import looking
from fakes.hf_folder import small_llama, write_folder
from fakes.upstream import Upstream
from fakes.wire import JSON, reply
from slowtok.proxy.engines.look import look
from slowtok.proxy.sampling.protocol import ProcessFacts

VLLM = recordings.unframe(recordings.load("vllm-0.32.metrics")).body
LLAMA_SERVER = recordings.unframe(recordings.load("llama-server-2026.10.metrics")).body
TEXT = "Content-Type: text/plain"
PATIENCE_S = 10.0


def show(upstream: Upstream, page: bytes) -> None:
    upstream.looks["/metrics"] = reply(page, TEXT, "Connection: close")


def one_more_request(page: bytes) -> bytes:
    """Return the recorded page after one more request of 20 tokens and half a second."""
    for before, after in (
        (b'e2e_request_latency_seconds_count{engine="0",model_name="smollm2"} 15.0', b"16.0"),
        (b'request_params_n_count{engine="0",model_name="smollm2"} 14.0', b"15.0"),
        (b'generation_tokens_total{engine="0",model_name="smollm2"} 157.0', b"177.0"),
        (b'prefill_time_seconds_sum{engine="0",model_name="smollm2"} 11.823042323000891', b"12.32"),
    ):
        assert page.count(b"vllm:" + before) + page.count(b"_" + before) == 1, before
        page = page.replace(before, before.rpartition(b" ")[0] + b" " + after)
    return page


@pytest.mark.parametrize("kind", ["vllm"])
async def test_what_a_vllm_gained_around_a_request(engine: Upstream, tmp_path: Path) -> None:
    show(engine, VLLM)
    async with looking(tmp_path, engine.url) as engines:
        name = engines.all[0].name
        engines.note_sent(name, "small")
        begin_s = time.monotonic()
        assert await engines.wait_for_scrapes(name, PATIENCE_S)
        show(engine, one_more_request(VLLM))
        end_s = time.monotonic()
        engines.note_arrived(name)
        assert await engines.wait_for_scrapes(name, PATIENCE_S)
        found = engines.all[0].activity.between(begin_s, end_s)

    assert found is not None
    assert found.alone is True
    assert found.prefill_s == pytest.approx(0.497, abs=1e-3)
    assert engines.all[0].scrape_failures == 0


@pytest.mark.parametrize("kind", ["vllm"])
async def test_restart_of_an_engine_is_given_another_try(engine: Upstream, tmp_path: Path) -> None:
    async with looking(tmp_path, engine.url) as engines:
        only = engines.all[0]
        engines.note_sent(only.name)
        await engines.wait_for_scrapes(only.name, PATIENCE_S)
        assert only.scraper is not None
        assert only.scraper.refused, "it has no /metrics"
        engines.lose(only.name)
        await engines.choose(None)

        assert not only.scraper.refused


@pytest.mark.parametrize("kind", ["ollama", "unknown"])
async def test_engines_without_counters_are_not_asked(engine: Upstream, tmp_path: Path) -> None:
    async with looking(tmp_path, engine.url) as engines:
        only = engines.all[0]
        engines.note_sent(only.name)
        engines.note_arrived(only.name)

        assert await engines.wait_for_scrapes(only.name, 0.0)
        assert (only.scraper, only.activity.between(1.0, 2.0)) == (None, None)


async def test_model_that_sleeps_is_left_alone(engine: Upstream, tmp_path: Path) -> None:
    engine.looks["/props"] = reply(b'{"build_info":"b1-0","is_sleeping":true}', JSON)
    show(engine, LLAMA_SERVER)
    async with looking(tmp_path, engine.url) as engines:
        engines.note_sent(engines.all[0].name)

        assert engines.all[0].scraper is None


async def test_nobody_has_gained_nothing(engine: Upstream, tmp_path: Path) -> None:
    async with looking(tmp_path, engine.url) as engines:
        engines.note_sent("nobody")
        engines.note_arrived(None)

        assert await engines.wait_for_scrapes("nobody", 0.0)


@pytest.mark.parametrize("kind", ["vllm"])
@pytest.mark.parametrize("from_cache", [False, True])
async def test_geometry_of_a_local_folder(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_cache: bool
) -> None:
    snapshot = tmp_path / "hub/models--org--m/snapshots/abc"
    folder = write_folder(snapshot, *small_llama())
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    root = "org/m" if from_cache else str(folder)
    body = f'{{"data":[{{"id":"small","owned_by":"vllm","root":"{root}"}}]}}'
    engine.looks["/v1/models"] = reply(body.encode(), JSON, "Connection: close")
    async with looking(tmp_path / "kept", engine.url) as engines:
        model = engines.facts(engines.all[0].name, "small")[1]

    assert (model.name, model.path, model.layers) == ("small", str(folder), 2)


@pytest.mark.parametrize("kind", ["vllm"])
async def test_another_way_to_load_the_same_folder_is_another_model(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "m", *small_llama())
    body = f'{{"data":[{{"id":"small","owned_by":"vllm","root":"{folder}"}}]}}'
    engine.looks["/v1/models"] = reply(body.encode(), JSON, "Connection: close")
    serve = ("vllm", "serve", str(folder))
    async with looking(tmp_path / "kept", engine.url) as engines:
        seen = engines.all[0]
        found = []
        async with aiohttp.ClientSession() as session:
            for argv in (serve, (*serve, "-q", "fp8"), None, (*serve, "-q", "torchao"), serve):
                process = argv and ProcessFacts(port=seen.port, pid=7, cmdline=argv)
                await look(session, seen, process, tmp_path / "kept")
                found.append(seen.models["small"])
    plain, fp8, unseen, torchao, again = found

    assert plain == again
    assert fp8 == unseen, "a process that is not seen for once runs as it did"
    assert (fp8.quantisation, fp8.read_bytes) == ("FP8", (plain.read_bytes or 0) // 2 + 100 * 64)
    assert (torchao.read_bytes, torchao.file_bytes, torchao.layers) == (None, None, 2)
    assert "--quantization torchao" in (torchao.bytes_unknown or "")
    assert len({model.digest for model in found}) == 3, "what was learned of one is not the other's"


@pytest.mark.parametrize("kind", ["vllm"])
async def test_folder_of_another_machine_is_not_looked_for(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elsewhere(_url: str) -> bool:
        return False

    folder = write_folder(tmp_path / "m", *small_llama())
    body = f'{{"data":[{{"id":"small","owned_by":"vllm","root":"{folder}"}}]}}'
    engine.looks["/v1/models"] = reply(body.encode(), JSON, "Connection: close")
    monkeypatch.setattr("slowtok.proxy.engines.look.is_local", elsewhere)
    async with looking(tmp_path / "kept", engine.url) as engines:
        assert engines.facts(engines.all[0].name, "small")[1].layers is None
