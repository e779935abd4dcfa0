"""Which engine is asked what, partly at a real llama-server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import orjson
import psutil
import pytest

from fakes.engine import RunningEngine, real_engine
from slowtok.proxy.engines.drivers.openai_server import read_probe
from slowtok.proxy.engines.probing.facts import Identity, Loaded, Probe
from slowtok.proxy.engines.probing.identify import identify
from slowtok.proxy.engines.probing.probe import PROBES, ask, slots_url
from slowtok.proxy.engines.probing.reply import ProbeReply, get
from slowtok.proxy.engines.probing.server_facts import server_facts
from slowtok.proxy.sampling.protocol import ChildProcess, ProcessFacts

URL = "http://127.0.0.1:8080"
LLAMA_SERVER, OLLAMA = Identity(kind="llama-server"), Identity(kind="ollama")
CHILD = ("/usr/lib/ollama/llama-server", "--model", "/blobs/a", "--port", "37893", "-np", "1")


def test_every_driver_has_its_test_file() -> None:
    tests = {path.stem for path in Path(__file__).parents[1].glob("drivers/test_*.py")}

    assert {f"test_{kind.replace('-', '_')}" for kind in PROBES} <= tests


def test_engines_without_slots_to_look_at() -> None:
    for kind in ("vllm", "sglang", "lm-studio", "openai", "unknown"):
        assert slots_url(URL, Identity(kind=kind), Probe(), None, None) is None
    assert slots_url(URL, OLLAMA, Probe(), None, "a") is None
    assert slots_url(URL, OLLAMA, Probe(), ProcessFacts(port=1), "a") is None


def test_a_router_is_asked_only_for_what_is_loaded_and_awake() -> None:
    held = (Loaded(name="a b", aliases=("x",)), Loaded(name="c", sleeping=True))
    router = Probe(loaded=held)
    assert slots_url(URL, LLAMA_SERVER, router, None, "unloaded") is None
    assert slots_url(URL, LLAMA_SERVER, router, None, "c") is None
    wanted = f"{URL}/slots?model=a+b&autoload=false"
    assert slots_url(URL, LLAMA_SERVER, router, None, "x") == wanted


def test_a_plain_llama_server_is_asked_itself() -> None:
    assert slots_url(f"{URL}/", LLAMA_SERVER, Probe(), None, "any") == f"{URL}/slots"


def test_ollama_is_asked_at_the_child_that_runs_the_model() -> None:
    process = ProcessFacts(port=11434, children=(ChildProcess(pid=2, cmdline=CHILD),))
    probe = Probe(loaded=(Loaded(name="m:latest", path="/blobs/a"),))
    assert slots_url(URL, OLLAMA, probe, process, "m") == "http://127.0.0.1:37893/slots"
    assert slots_url(URL, OLLAMA, probe, process, "other") is None


def test_llama_swap_is_never_asked_for_slots_but_the_llama_server_behind_it() -> None:
    swap, at = Identity(kind="llama-swap"), "http://127.0.0.1:5801"
    small = Loaded(name="small", aliases=("gpt",), kind="llama-server", url=at)
    probe = Probe(loaded=(small, Loaded(name="v", kind="vllm", url="http://127.0.0.1:5802")))
    assert slots_url(URL, swap, probe, None, "gpt") == f"{at}/slots"
    assert slots_url(URL, swap, probe, None, "v") is None
    assert slots_url(URL, swap, probe, None, "unloaded") is None


@pytest.mark.parametrize(
    ("models", "context_tokens"),
    [
        ([], None),
        ([{"id": "a"}], None),
        ([{"id": "a", "max_model_len": 4096}], 4096),
        ([{"id": "a", "context_length": 4096}, {"id": "b", "context_length": 8192}], None),
        ([{"id": "a", "context_length": "long"}], None),
    ],
)
def test_a_server_of_openais_interface(
    models: list[dict[str, object]], context_tokens: int | None
) -> None:
    found = read_probe(ProbeReply(status=200, body=orjson.dumps({"data": models})))
    assert found.context_tokens == context_tokens
    assert found.models == tuple(model["id"] for model in models)


# At a real engine.


@pytest.fixture(scope="module")
def engine() -> Iterator[RunningEngine]:
    with real_engine(threads=1, slots=4, context=2048, gpu_layers=0) as running:
        yield running


@pytest.mark.engine
def test_a_real_llama_server_tells_its_facts(engine: RunningEngine) -> None:
    async def look() -> tuple[Identity | None, Probe]:
        async with aiohttp.ClientSession() as session:
            identity = await identify(session, engine.url)
            return identity, await ask(session, identity or Identity(kind="unknown"), engine.url)

    identity, probe = asyncio.run(look())
    assert identity is not None
    assert identity.kind == "llama-server"
    line = tuple(psutil.Process(engine.pid).cmdline())
    process = ProcessFacts(port=1, pid=engine.pid, cmdline=line)
    facts = server_facts(identity, probe, process, local=True)
    assert (facts.slots, facts.context_tokens, facts.kv_cache_tokens) == (4, 512, 2048)
    assert (facts.gpu_layers, facts.threads, facts.speculative, facts.slept) == (0, 1, False, False)
    assert facts.loaded_models is None


@pytest.mark.engine
def test_the_slots_of_a_real_child_are_seen(engine: RunningEngine) -> None:
    """Ollama's child is a llama-server like any other: here one that it did not start."""
    port = engine.url.rpartition(":")[2]
    child = ("/lib/ollama/llama-server", "--model", "/blobs/a", "--port", port)
    process = ProcessFacts(port=11434, children=(ChildProcess(pid=engine.pid, cmdline=child),))
    url = slots_url("http://127.0.0.1:11434", OLLAMA, Probe(), process, "m")
    assert url is not None

    async def look() -> ProbeReply | None:
        async with aiohttp.ClientSession() as session:
            return await get(session, url, "")

    reply = asyncio.run(look())
    assert reply is not None
    assert [slot["n_ctx"] for slot in reply.json] == [512] * 4
