"""One worker in the test's own loop, and the test in the observing process's place."""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.cases import healthy
from fakes.client import connect
from fakes.upstream import Upstream
from fakes.wire import JSON, reply
from slowtok.config.settings import load
from slowtok.detectors.case.case import Case, Tokens
from slowtok.proxy.observe.setups import SetupKey, setup_key
from slowtok.proxy.relay.settings import relay_settings
from slowtok.proxy.server.listener import open_listener
from slowtok.proxy.workers import remote
from slowtok.proxy.workers.__main__ import Worker
from slowtok.proxy.workers.channel import Channel
from slowtok.proxy.workers.wire import Diagnosed, RemoteDirectory, RemoteEngine, Start

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is one process only")

WHOLE = b'{"model":"small","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}'


TIMED = WHOLE[:-1] + (
    b',"timings":{"prompt_n":100,"cache_n":20,"prompt_ms":10.0,"predicted_n":9,"predicted_ms":40.0}}'
)


class MainProcess:
    """Hears what a worker says, and answers a diagnosis where it has one."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.diagnosed: Callable[[], Diagnosed | None] = lambda: None
        self.ready, self.drained = asyncio.Event(), asyncio.Event()
        every = (
            "begin",
            "sent",
            "fingerprinted",
            "arrived",
            "end",
            "end_diagnosed",
            "heartbeat",
            "choose",
            "sync",
        )
        self._handlers: dict[str, Any] = {name: self._hear(name) for name in every}
        self._handlers |= {"diagnose": self._diagnose}
        self._handlers |= {"ready": self.ready.set, "drained": lambda _: self.drained.set()}
        self.channel = Channel(self._handlers, self.heard.append)

    def _diagnose(self, *_said: object) -> Diagnosed | None:
        self.heard.append("diagnose")
        return self.diagnosed()

    def hears_nothing_of(self, name: str) -> None:
        """Let this question wait for ever."""
        self._handlers[name] = self._wait_for_ever

    async def _wait_for_ever(self, *_said: object) -> None:
        self.heard.append("choose")
        await asyncio.Event().wait()

    def _hear(self, name: str) -> Any:
        return lambda *_said: self.heard.append(name)


@pytest.fixture
async def main_process(engine: Upstream, tmp_path: Path) -> AsyncIterator[tuple[MainProcess, int]]:
    """A worker that was told of one engine, in the order in which it is told; and its port."""
    settings = load({"state_dir": str(tmp_path)}, {})
    place = RemoteEngine(name="engine", url=engine.url, kind="llama-server", sleeping=None)
    ours, theirs = socket.socketpair()
    main = MainProcess()
    await asyncio.get_running_loop().create_unix_connection(lambda: main.channel, sock=ours)
    main.channel.tell("directory", RemoteDirectory(only=place))
    main.channel.tell(
        "start",
        Start(settings=relay_settings(settings), pages_path=str(tmp_path / "own" / "pages")),
    )
    listener = open_listener("127.0.0.1", 0, settings.client_timeout_s)
    port = int(listener.getsockname()[1])
    working = asyncio.create_task(Worker().run(theirs, listener))
    try:
        await main.ready.wait()
        yield main, port
    finally:
        main.channel.tell("stop")
        await main.drained.wait()
        await working


async def test_where_one_engine_answers_nobody_is_asked_for_it(
    main_process: tuple[MainProcess, int], engine: Upstream
) -> None:
    main, port = main_process
    client = await connect(port)
    await client.chat(stream=False)
    await (await engine.next()).answer(reply(WHOLE, JSON))

    assert (await client.reply())[1] == WHOLE
    client.close()
    await asyncio.sleep(0)
    assert "begin" in main.heard
    assert "choose" not in main.heard


async def test_a_prompt_is_told_before_its_reply_is_diagnosed(
    main_process: tuple[MainProcess, int], engine: Upstream
) -> None:
    main, port = main_process
    client = await connect(port)
    asked = b'{"model":"small","messages":[{"role":"user","content":"Why is the sky blue?"}]}'
    await client.ask("POST", "/v1/chat/completions", JSON, body=asked)
    await (await engine.next()).answer(reply(WHOLE, JSON))
    await client.reply()
    client.close()

    assert main.heard.index("fingerprinted") < main.heard.index("diagnose")


def setup_of_small(tokens: Tokens) -> dict[SetupKey, Case]:
    return {setup_key("engine", "small", tokens): healthy()}


async def test_short_reply_of_a_known_setup_waits_for_nobody(
    main_process: tuple[MainProcess, int], engine: Upstream
) -> None:
    main, port = main_process
    main.channel.tell("setups", setup_of_small(Tokens(prompt=120, completion=9)))
    main.diagnosed = lambda: ({"slowtok-verdict": "normal"}, (time.monotonic(), 'normal;id="a"'))
    client = await connect(port)
    heads = []
    for _ in range(3):
        await client.chat(stream=False)
        await (await engine.next()).answer(reply(TIMED, JSON))
        heads.append((await client.reply())[0])
    client.close()

    assert main.heard.count("diagnose") == 1  # there was no verdict before the first one
    assert [head.get("slowtok-verdict") for head in heads] == ["normal"] * 3
    assert heads[1].get("slowtok-previous") == 'normal;id="a"'
    assert heads[2].get("slowtok-previous") == f'normal;id="{heads[1].get("slowtok-id")}"'
    assert heads[2].get("slowtok-decode") == "9;ms=40.0;rate=200.0"


async def test_engine_that_was_there_is_asked_while_the_observing_process_is_silent(
    main_process: tuple[MainProcess, int], engine: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, port = main_process
    monkeypatch.setattr(remote, "CHOOSE_S", 0.05)
    main.hears_nothing_of("choose")
    place = RemoteEngine(name="engine", url=engine.url, kind="llama-server", sleeping=None)
    await main.channel.ask("directory", RemoteDirectory(first=place))  # it was lost
    client = await connect(port)
    await client.chat(stream=False)
    await (await engine.next()).answer(reply(WHOLE, JSON))

    assert (await client.reply())[1] == WHOLE
    client.close()
    assert "choose" in main.heard


async def test_page_is_asked_for_when_the_observing_process_knows_all_that_was_before(
    main_process: tuple[MainProcess, int], engine: Upstream
) -> None:
    main, port = main_process
    client = await connect(port)
    await client.chat(stream=False)
    await (await engine.next()).answer(reply(WHOLE, JSON))
    await client.reply()
    await client.ask("GET", "/slowtok/requests")
    head, _ = await client.reply()
    client.close()

    assert head.status == 503, "nobody serves pages here"
    assert main.heard.index("end") < main.heard.index("sync")


async def test_short_request_is_judged_while_the_observing_process_is_silent(
    main_process: tuple[MainProcess, int], engine: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, port = main_process
    monkeypatch.setattr(remote, "WHOLE_S", 0.05)
    main.hears_nothing_of("diagnose")
    await main.channel.ask("setups", setup_of_small(Tokens(prompt=120, completion=9)))
    client = await connect(port)
    verdicts = []
    for body in (WHOLE, TIMED, TIMED):  # of the first one only the observing process could tell
        await client.chat(stream=False)
        await (await engine.next()).answer(reply(body, JSON))
        head, _ = await client.reply()
        verdicts.append((head.get("slowtok-verdict"), head.get("slowtok-previous")))
    client.close()

    assert verdicts[0] == (None, None)
    assert [verdict for verdict, _ in verdicts[1:]] == ["normal", "normal"]
    assert verdicts[1][1] is None, "the verdict before it has not come"
    assert (verdicts[2][1] or "").startswith("normal")
