"""One worker in the test's own loop, and the test in the observing process's place."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.client import connect
from fakes.upstream import Upstream
from fakes.wire import JSON, reply
from slowtok.config.settings import load
from slowtok.proxy.relay.settings import relay_settings
from slowtok.proxy.server.listener import open_listener
from slowtok.proxy.workers.__main__ import Worker
from slowtok.proxy.workers.channel import Channel
from slowtok.proxy.workers.wire import RemoteDirectory, RemoteEngine, Start

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is one process only")

WHOLE = b'{"model":"small","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}'


class MainProcess:
    """Hears what a worker says, and answers nothing."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ready, self.drained = asyncio.Event(), asyncio.Event()
        every = (
            "begin",
            "sent",
            "fingerprinted",
            "arrived",
            "diagnose",
            "end",
            "heartbeat",
            "choose",
        )
        handlers: dict[str, Any] = {name: self._hear(name) for name in every}
        handlers |= {"ready": self.ready.set, "drained": lambda _: self.drained.set()}
        self.channel = Channel(handlers, self.heard.append)

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
