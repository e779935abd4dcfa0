"""An engine that is a process of its own, to be killed and stopped: `python -m fakes.paced_engine`.

It says its address, and answers each chat with as many numbered tokens as `max_tokens` asks for,
`gap_s` apart; without a gap as fast as they are taken. It ends when its standard input does.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fakes.upstream import Arrival, Upstream, listening
from fakes.wire import JSON, LAST_CHUNK, SSE, WAIT_S, chunk, chunked_head, reply

TESTS = Path(__file__).parents[1]
DONE = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def token(number: int) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%d "}}]}\n\n' % number


def whole_stream(tokens: int) -> bytes:
    """What a client gets in all."""
    return b"".join(map(token, range(tokens))) + DONE


async def answer(arrived: Arrival) -> None:
    asked = json.loads(await arrived.body() or b"{}")
    if not asked.get("stream"):
        await arrived.answer(reply(b'{"choices":[{"message":{"content":"hi"}}]}', JSON))
        return
    await arrived.send(chunked_head(SSE))
    for number in range(asked["max_tokens"]):
        await arrived.send(chunk(token(number)), limit_s=60)
        await asyncio.sleep(asked.get("gap_s", 0))
    await arrived.send(chunk(DONE) + LAST_CHUNK)
    arrived.over.set()


async def answer_all(engine: Upstream) -> None:
    """Answer what arrives, each in a task of its own; a client that leaves costs only its own."""

    async def answer_one(arrived: Arrival) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            await answer(arrived)
        arrived.over.set()

    tasks: set[asyncio.Task[None]] = set()
    while True:
        task = asyncio.create_task(answer_one(await engine.arrivals.get()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def main() -> None:
    async with listening("llama-server", model=sys.argv[1]) as engine:
        sys.stdout.write(f"{engine.url}\n")
        sys.stdout.flush()
        answering = asyncio.create_task(answer_all(engine))
        await asyncio.to_thread(sys.stdin.read)
        answering.cancel()


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """Where it is, and how to send it a signal."""

    url: str
    model: str
    signal: Callable[[int], None]


@asynccontextmanager
async def engine_process(
    model: str = "small",
    *options: str,
    env: Mapping[str, str] | None = None,
    program: str = sys.executable,
) -> AsyncIterator[EngineProcess]:
    """An engine that serves `model` until the block ends, however it was treated.

    `options` stand in its command line, and are not heeded.
    """
    process = await asyncio.create_subprocess_exec(
        *(program, "-m", "fakes.paced_engine", model, *options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(env or {}), "PYTHONPATH": str(TESTS)},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S * 4):
            url = (await process.stdout.readline()).decode().strip()
        yield EngineProcess(url, model, process.send_signal)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


if __name__ == "__main__":
    asyncio.run(main())
