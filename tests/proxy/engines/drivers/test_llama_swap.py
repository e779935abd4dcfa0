"""Replies of llama-swap 250, and of a llama-server that it had started, as they were recorded."""

from collections.abc import Callable

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slowtok.proxy.engines.drivers.llama_swap import probe, read_probe
from slowtok.proxy.engines.engine import Engine
from slowtok.proxy.engines.probing.facts import Identity, Loaded, Probe
from slowtok.proxy.engines.probing.reply import ProbeReply

Recorded = Callable[[str], ProbeReply]
SWAP = Identity(kind="llama-swap", version="250")


def says(value: object) -> ProbeReply:
    return ProbeReply(status=200, body=orjson.dumps(value))


def test_names_what_it_has_and_what_runs(llama_swap_reply: Recorded) -> None:
    assert read_probe(llama_swap_reply("models"), llama_swap_reply("running")) == Probe(
        models=("other", "small"), loaded=(Loaded(name="small", aliases=("gpt-4o-mini",)),)
    )


def test_what_it_starts_or_stops_is_not_loaded(llama_swap_reply: Recorded) -> None:
    states = ("starting", "stopping", "stopped", "shutdown")
    running = says({"running": [{"model": state, "state": state} for state in states]})
    assert read_probe(llama_swap_reply("models"), running).loaded == ()


@pytest.mark.parametrize(
    "running", [None, ProbeReply(status=401), says([]), says({"running": "no"})]
)
def test_what_runs_is_not_known_where_it_does_not_tell(running: ProbeReply | None) -> None:
    assert read_probe(says({"data": [{"id": "a"}]}), running) == Probe(models=("a",))


class Both:
    """A llama-swap, and the llama-server that it has started, on two ports of this machine."""

    def __init__(self, swap: Recorded, behind: Recorded) -> None:
        self.asked: list[str] = []
        self._swap, self._behind = swap, behind
        self.behind = TestServer(self._app(self._of_behind))
        self.swap = TestServer(self._app(self._of_swap))

    def _app(self, give: Callable[[str], ProbeReply]) -> web.Application:
        async def answer(request: web.Request) -> web.Response:
            reply = give(request.path)
            headers = {"Server": reply.headers.get("server", "")}
            return web.Response(status=reply.status, body=reply.body, headers=headers)

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        return app

    def _of_behind(self, path: str) -> ProbeReply:
        names = {"/v1/models": "models", "/props": "props"}
        return self._behind(names.get(path, "error-unknown-path"))

    def _of_swap(self, path: str) -> ProbeReply:
        self.asked.append(path)
        if path != "/running":
            return self._swap({"/v1/models": "models"}.get(path, "error-unknown-path"))
        running = self._swap("running")
        at = f"http://127.0.0.1:{self.behind.port}"
        return ProbeReply(
            status=200, body=running.body.replace(b"http://localhost:47102", at.encode())
        )


async def test_the_engine_of_a_model_that_runs_speaks_for_itself(
    llama_swap_reply: Recorded, llama_server_reply: Recorded
) -> None:
    both = Both(llama_swap_reply, llama_server_reply)
    async with both.behind, both.swap, aiohttp.ClientSession() as session:
        found = await probe(session, str(both.swap.make_url("")).rstrip("/"))
        (small,) = found.loaded or ()
        assert (small.name, small.kind, small.version) == ("small", "llama-server", "b0-unknown")
        assert small.path == "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
        assert (small.context_tokens, small.url) == (2048, f"http://127.0.0.1:{both.behind.port}")
        assert sorted(both.asked) == ["/running", "/v1/models"]  # all else may load a model


async def test_an_engine_that_does_not_answer_is_only_named(
    llama_swap_reply: Recorded, llama_server_reply: Recorded
) -> None:
    both = Both(llama_swap_reply, llama_server_reply)
    async with both.swap, aiohttp.ClientSession() as session:
        await both.behind.start_server()
        await both.behind.close()
        found = await probe(session, str(both.swap.make_url("")).rstrip("/"))
        assert found.loaded == (Loaded(name="small", aliases=("gpt-4o-mini",)),)


@pytest.mark.parametrize(
    "address", ["http://203.0.113.9:8080", "https://localhost:1", "unix:/x", "http://[", 7]
)
async def test_engines_of_other_machines_and_odd_addresses_are_not_asked(
    llama_swap_reply: Recorded, llama_server_reply: Recorded, address: object
) -> None:
    both = Both(llama_swap_reply, llama_server_reply)
    entry = {"model": "small", "state": "ready", "proxy": address}
    both._of_swap = lambda path: (  # type: ignore[method-assign]
        says({"running": [entry]}) if path == "/running" else says({"data": []})
    )
    both.swap = TestServer(both._app(both._of_swap))
    async with both.swap, aiohttp.ClientSession() as session:
        found = await probe(session, str(both.swap.make_url("")).rstrip("/"))
        assert found.loaded == (Loaded(name="small"),)


def engine(*loaded: Loaded) -> Engine:
    seen = Engine(name="e", url="http://127.0.0.1:8080", given=True, identity=SWAP)
    seen.probe = Probe(models=("small", "other"), loaded=loaded)
    return seen


def test_a_model_that_does_not_run_has_to_be_loaded_first(llama_swap_reply: Recorded) -> None:
    seen = engine(Loaded(name="small", aliases=("gpt-4o-mini",)))
    seen.note_list("/v1/models", llama_swap_reply("models").json)
    waits = {
        name: seen.awaits_load(name) for name in ("small", "gpt-4o-mini", "other", "what", None)
    }
    assert waits == {
        "small": False, "gpt-4o-mini": False, "other": True, "what": None, None: None,
    }  # fmt: skip


def test_whether_a_model_has_to_be_loaded_is_not_known_where_nobody_tells() -> None:
    silent = Engine(name="e", url="http://127.0.0.1:8080", given=True, identity=SWAP)
    assert silent.awaits_load("small") is None


def test_the_port_of_a_model_is_that_of_its_engine() -> None:
    seen = engine(Loaded(name="small", url="http://127.0.0.1:5801"), Loaded(name="other"))
    assert [seen.port_of(name) for name in ("small", "other", "what")] == [5801, 8080, 8080]
    assert seen.ports == (8080, 5801)
